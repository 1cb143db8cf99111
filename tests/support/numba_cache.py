"""Numba's cache on disk, for test processes that run side by side and compile the same functions."""

from __future__ import annotations

import fcntl
import os
from typing import Any

from numba.core.caching import IndexDataCacheFile

_save = IndexDataCacheFile.save


def save_alone(file: IndexDataCacheFile, key: Any, data: Any) -> None:
    """Add an entry with the folder locked meanwhile.

    Numba numbers a function's files, so two processes could give one number to two signatures, and one of
    them would get the other's machine code from then on.
    """
    folder = os.open(file._cache_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _save(file, key, data)
    finally:
        os.close(folder)


def one_writer_at_a_time() -> None:
    """Have all that this process compiles from now on saved like that."""
    IndexDataCacheFile.save = save_alone
