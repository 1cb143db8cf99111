"""Numba's cache on disk, for test processes that run side by side and compile the same functions."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

_compile = Dispatcher.compile
#: Functions that this process is compiling: one that calls itself must not wait for itself.
_under_way: set[Path] = set()


def compile_alone(dispatcher: Any, signature: Any) -> Any:
    """Compile a cached function while no other process compiles it, or load what another has compiled.

    Numba numbers a function's files. Two processes that save at the same moment could give one number to two
    signatures. One of the two would then load the other's machine code.
    """
    folder = getattr(dispatcher._cache, "cache_path", None)
    if folder is None:
        return _compile(dispatcher, signature)
    function = dispatcher.py_func
    name = f".{function.__module__}.{function.__qualname__}.lock".replace(os.sep, "_")
    # All threads take both locks in this order, and functions theirs in the order of calls.
    with global_compiler_lock, _locked(Path(folder) / name):
        return _compile(dispatcher, signature)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if path in _under_way:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _under_way.add(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        _under_way.remove(path)
        os.close(file)


def one_compiler_at_a_time() -> None:
    """Have this process compile cached functions by `compile_alone` from now on."""
    Dispatcher.compile = compile_alone
