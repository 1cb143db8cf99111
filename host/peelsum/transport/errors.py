"""Errors of the transport, split by whose fault they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TransportError(Exception):
    """Base of the transport's errors. Messages name field, value and remedy in one line."""


class TransportConfigError(TransportError, ValueError):
    """The caller passed a value out of range or made a call out of order."""


class SwitchUnreachableError(TransportError):
    """The switch does not answer at its address, or the socket to it failed."""


class StalledError(TransportError):
    """The job made no progress; the message names the job, its oldest chunk and the missing workers."""


@contextmanager
def in_plane(plane: int, planes: int) -> Iterator[None]:
    """Name the plane in the body's TransportError, unless there is only one."""
    try:
        yield
    except TransportError as error:
        if planes == 1:
            raise
        raise type(error)(f"plane {plane}: {error}") from error
