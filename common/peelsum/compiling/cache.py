"""Cache machine code on disk, in one file for each function and signature.

A file's name contains a digest of everything that its code depends on: the functions that it calls, and the
constants of their modules (`fingerprint`). Its content begins with a digest of the rest. So processes may
write at the same time, and a file that was truncated by a power cut or a full disk is detected, removed and
compiled again. Loading a file can run any code, so the folder must belong to this user or to root, and nobody
else may have write permission.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import platform
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature
from numba.core.types import ExternalFunction, Type

from peelsum.compiling.progress import report_waiting

#: Numba's own variable.
CACHE_DIR = "NUMBA_CACHE_DIR"
REMEDY = f"set {CACHE_DIR} to a folder that only this user can write to"
_SUFFIX, _DIGEST_BYTES = ".nbc", 32
#: Files that no process has loaded for so many seconds are removed.
_MAX_UNUSED_S = 90 * 86400
_log = logging.getLogger("peelsum")
_VERSIONS = (platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__)
#: Packages that do not change without a new version, so their content is not hashed.
_VERSIONED = {"numba", "llvmlite", "numpy"} | sys.stdlib_module_names
_Constants = int | float | complex | str | bytes | bool | None | np.generic


@cache
def folder() -> Path | None:
    """Return the first usable folder for machine code, which is created if needed; None if none is usable.

    Logs one line if no folder is usable, or not the one that the user has chosen.
    """
    examined = list(examine_candidates())
    problems = [f"{place}: {problem}" for place, problem in examined if problem]
    if len(problems) == len(examined):
        message = "no folder for compiled code, so every process compiles for a minute or two: %s; %s"
        _log.warning(message, ", ".join(problems), REMEDY)
        return None
    if problems and os.environ.get(CACHE_DIR):
        _log.warning("%s; compiled code goes elsewhere: %s", problems[0], REMEDY)
    return examined[-1][0]


def examine_candidates() -> Iterator[tuple[Path, str]]:
    """Yield candidate folders, each with the reason why it is unusable, and last the first usable folder.

    The reason of the usable folder is empty.
    """
    # The folder that the user has chosen, the user's cache, and folders that last until a restart.
    candidates = []
    if chosen := os.environ.get(CACHE_DIR):
        candidates.append(Path(chosen) / "peelsum")
    base = os.environ.get("XDG_CACHE_HOME" if os.name != "nt" else "LOCALAPPDATA", "")
    with suppress(RuntimeError):  # the user has no home folder
        user_cache = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
        candidates.append(user_cache / "peelsum" / "compiled")
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        candidates.append(Path(runtime) / "peelsum" / "compiled")
    user = os.getuid() if hasattr(os, "getuid") else ""
    candidates.append(Path(tempfile.gettempdir()) / f"peelsum-compiled-{user}")
    for place in candidates:
        problem = _reason_unusable(place)
        yield place, problem
        if not problem:
            return


def _reason_unusable(place: Path) -> str:
    """Return why a folder is unusable for machine code; an empty string if it is usable."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status, parent_status = place.lstat(), place.parent.stat()
    except OSError as error:
        return error.strerror or str(error)
    if hasattr(os, "getuid"):
        trusted = {0, os.getuid()}  # the owner of the parent folder could replace this folder by another
        if not stat.S_ISDIR(status.st_mode) or not {status.st_uid, parent_status.st_uid} <= trusted:
            return "belongs to another user"
        shared = parent_status.st_mode & stat.S_IWOTH and not parent_status.st_mode & stat.S_ISVTX
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or shared:
            return "others can write to it"
    has_code = any(place.glob(f"*{_SUFFIX}"))  # a read-only folder, e.g. of an image, is useful with files
    return "" if has_code or os.access(place, os.W_OK) else "cannot be written to"


class CodeCache(NullCache):
    """The cache of one Numba dispatcher, which replaces Numba's file cache."""

    def __init__(self, loop: Any) -> None:
        """Create the cache of the dispatcher `loop`. Files are read and written at its first compilation."""
        self._loop = loop
        self._prefix = ""

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Load the compiled function for a signature; return None if it is not in the cache."""
        target.refresh()
        path = self._path(signature)
        if path is None:
            return None
        try:
            content = path.read_bytes()
            digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if digest != hashlib.sha256(data).digest():
                raise ValueError(f"{path}: is damaged")
            saved_signature, parts = pickle.loads(data)
            with suppress(OSError):
                os.utime(path)
            rebuild: Any = CompileResult._rebuild
            return rebuild(target, *parts) if saved_signature == signature else None
        except FileNotFoundError:
            return None
        except Exception as error:  # a file can be damaged in any way, and is compiled again
            _log.debug("%s: %s", path, error)
            _warn_once(f"{path.parent}: holds damaged files of compiled code, which are compiled again")
            with suppress(OSError):
                path.unlink()
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Write a compiled function to the cache. If that fails, log a warning."""
        path = self._path(signature)
        if path is None or result.lifted or result.library.has_dynamic_globals:
            return
        data: bytes = dumps((signature, result._reduce()))  # type: ignore[no-untyped-call]
        try:
            # Written to another file first: a reader sees either the old or the new content.
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
                try:
                    file.write(hashlib.sha256(data).digest() + data)
                    file.flush()
                    Path(file.name).replace(path)
                except BaseException:
                    with suppress(OSError):
                        Path(file.name).unlink()
                    raise
            _remove_unused(path.parent)
        except OSError as error:
            _warn_once(
                f"{path.parent}: {error.strerror}: compiled code is not kept, so every process compiles for "
                f"a minute or two; free space, or {REMEDY}"
            )

    @contextmanager
    def locked(self, signature: Any) -> Iterator[None]:
        """Hold a lock among processes while the function is compiled. Skip the lock if its code is cached."""
        path = self._path(signature)
        if path is None or path.exists():
            yield
        else:
            with _lock(path, self._loop):
                yield

    def _path(self, signature: Any) -> Path | None:
        """Return the path of the file for a signature; None if no folder is usable."""
        place = folder()
        if place is None:
            return None
        if not self._prefix:
            # Append the fingerprint to the function's name, which is used in file names and in symbols.
            function = self._loop.py_func
            function.__qualname__ += f"_{fingerprint(self._loop)}"
            self._prefix = f"{function.__module__}.{function.__qualname__}".replace("<locals>.", "")
        processor = self._loop.targetctx.codegen().magic_tuple()
        arguments = normalize_signature(signature)[0]  # type: ignore[no-untyped-call]
        fields = [_field_names(kind) for kind in arguments]
        digest = hashlib.sha256(repr((str(signature), fields, processor)).encode()).hexdigest()[:16]
        return place / f"{self._prefix}-{digest}{_SUFFIX}"


def _field_names(kind: Any) -> list[Any]:
    """Return the field names of a named tuple's type, and of nested types: their order changes the code."""
    return [getattr(kind, "fields", ()), *map(_field_names, getattr(kind, "types", ()))]


@cache
def _remove_unused(place: Path) -> None:
    """Remove files that no process has loaded for _MAX_UNUSED_S. A process does this once for each folder."""
    for path in place.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _MAX_UNUSED_S:
                path.unlink()


@cache
def _warn_once(message: str) -> None:
    _log.warning(message)


@contextmanager
def _lock(path: Path, loop: Any) -> Iterator[None]:
    """Hold a lock among processes, for the file of machine code `path`, during the body.

    The lock is a POSIX lock, which forked children do not inherit, on a file beside it. If locks do not work
    there, as on some network file systems, continue without one. loop: the function, for progress messages.
    """
    with ExitStack() as stack:
        with suppress(ImportError, OSError):  # Windows has no fcntl
            import fcntl

            file = stack.enter_context(path.with_suffix(".lock").open("ab"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                with report_waiting(loop):
                    fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def fingerprint(loop: Any) -> str:
    """Return 32 hexadecimal digits that identify the code of a Numba dispatcher and every value it uses.

    Raises TypeError if the function uses a value whose `repr` shows an address in place of its content.
    """
    uses = _UsedValues()
    uses.add(loop, ())
    return uses.digest()


class _UsedValues:
    """Hashes a function and, recursively, all values that it refers to, each of them once."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(repr(_VERSIONS).encode())
        self._seen: dict[int, tuple[int, Any]] = {}  # it refers to the value, so that its id is not reused

    def digest(self) -> str:
        """Return the digest of the values added so far."""
        return self._hash.hexdigest()[:32]

    def add(self, value: Any, names: Iterable[str]) -> None:
        """Hash a value; of a module or a class, only the attributes that are among `names`."""
        if value is None or isinstance(value, _Constants):
            self._hash_texts("constant", type(value).__qualname__, repr(value))
        elif isinstance(value, type | ModuleType):
            qualname = getattr(value, "__qualname__", value.__name__)
            self._hash_texts("namespace", getattr(value, "__module__", ""), qualname)
            if not _is_versioned(getattr(value, "__module__", value.__name__)):
                self._hash_texts(*map(str, getattr(value, "_fields", ())))
                for name in names:
                    if hasattr(value, name) and not hasattr(tuple, name):
                        self._hash_texts(name)
                        self.add(getattr(value, name), names)
        elif id(value) in self._seen:
            self._hash_texts("again", str(self._seen[id(value)][0]))
        else:
            self._seen[id(value)] = len(self._seen), value
            self._add_new(value)

    def _hash_texts(self, *parts: str) -> None:
        for part in parts:
            content = part.encode()
            self._hash.update(b"%d:%b" % (len(content), content))

    def _add_new(self, value: Any) -> None:
        """Hash a new value, by its type. Raises TypeError if its `repr` is an address."""
        self._hash_texts(type(value).__qualname__)
        match value:
            case Dispatcher():
                self._hash_texts(repr(sorted(value.targetoptions.items())))
                self._add_function(value.py_func)
            case FunctionType():
                self._add_function(value)
            case partial():
                self._add_all((value.func, value.args, value.keywords))
            case CodeType():
                self._hash_texts(value.co_code.hex(), *value.co_names, *value.co_varnames)
                self._add_all(value.co_consts)
            case np.ndarray():
                self._hash_texts(value.dtype.str, repr(value.shape), value.tobytes().hex())
            case tuple() | list():
                self._add_all(value)
            case dict():
                self._add_all(value.items())
            case ExternalFunction():
                self._hash_texts(value.symbol, str(value.sig))
            case Type() | Enum() | BuiltinFunctionType() | np.ufunc():
                self._hash_texts(repr(value))
            case frozenset():
                self._hash_texts(*sorted(map(repr, value)))
            case _ if hasattr(value, "_defn"):  # an intrinsic of Numba
                self._add_function(value._defn)
            case _ if " at 0x" in repr(value):
                raise TypeError(
                    f"{value!r}: is used by a compiled function, and its content is unknown; pass it as an "
                    "argument"
                )
            case _:
                self._hash_texts(repr(value))

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value, ())

    def _add_function(self, function: Any) -> None:
        """Hash a function: its code, default arguments, closure, and the globals that it uses."""
        if _is_versioned(function.__module__):
            self._hash_texts(function.__module__, function.__qualname__)
            return
        names = sorted(_names(function.__code__))
        self.add(function.__code__, ())
        self.add(function.__defaults__, ())
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents, names)
        for name in names:
            if name in function.__globals__:
                self._hash_texts(name)
                self.add(function.__globals__[name], names)


def _is_versioned(module: str) -> bool:
    return module.partition(".")[0] in _VERSIONED


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that code and its inner functions use."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)
