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

    def __init__(self, message: str, missing_workers: tuple[int, ...] = ()) -> None:
        """missing_workers: the numbers of the missing workers, if they are known."""
        super().__init__(message)
        self.missing_workers = missing_workers


class WorkerLeftError(TransportError):
    """Another worker has finished, while this one still sums."""


@contextmanager
def in_plane(plane: int, planes: int) -> Iterator[None]:
    """Name the plane in the body's TransportError, unless there is only one."""
    try:
        yield
    except TransportError as error:
        if planes == 1:
            raise
        raise type(error)(f"plane {plane}: {error}") from error
