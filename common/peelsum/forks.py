"""Keeps open files and sockets from forked children, such as data loaders.

A lease, a lock or a port lasts until every copy of its descriptor is closed. A child's copy would outlive a
killed parent. Python's own descriptors are closed by exec, not by fork.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class _Opened(Protocol):
    def fileno(self) -> int:
        """Return the descriptor. After closing, sockets return -1, and files raise ValueError."""


_kept: WeakSet[_Opened] = WeakSet()


def keep_from_children(opened: _Opened) -> None:
    """Give children that are forked while `opened` is open the null device in its place.

    `opened` can be closed in a child as if it were a copy. Children that C code forks keep a copy.
    """
    _kept.add(opened)


def _replace() -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for opened in _kept:
        with suppress(ValueError):  # it is closed; e.g. the traceback of a kept error refers to it
            if (descriptor := opened.fileno()) >= 0:
                os.dup2(null, descriptor, inheritable=False)
    _kept.clear()
    os.close(null)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_replace)
