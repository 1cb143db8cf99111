"""Keep forked children, such as data loaders, from inheriting open files and sockets.

A lease, a lock or a port lasts until every copy of its descriptor is closed, and a child's copy would outlive
a killed parent. Python marks descriptors to be closed by exec, but fork copies them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class _HasFileno(Protocol):
    def fileno(self) -> int:
        """Return the descriptor. After closing, sockets return -1, and files raise ValueError."""


_tracked: WeakSet[_HasFileno] = WeakSet()


def close_in_forked_children(opened: _HasFileno) -> None:
    """Replace `opened` by the null device in every child that is forked while it is open.

    A child can close `opened` as usual. Children that C code forks still inherit the descriptor.
    """
    _tracked.add(opened)


def _replace_with_null_device() -> None:
    """Replace all tracked descriptors by the null device, in a forked child."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for opened in _tracked:
        with suppress(ValueError):  # it is closed, but something, e.g. a traceback, still refers to it
            if (descriptor := opened.fileno()) >= 0:
                os.dup2(null, descriptor, inheritable=False)
    _tracked.clear()
    os.close(null)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_replace_with_null_device)
