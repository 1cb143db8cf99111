"""Machine code on disk: a file for each function and signature, in a folder that nobody else can write to.

A file's name contains a digest of all that its code depends on, and its content begins with a digest of the
rest. So processes may write at the same time, and a file that a power cut or a full disk has truncated is
noticed, removed and compiled again. Loading a file can run any code, so the folder must belong to this user,
or to root, and nobody else may write to it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from peelsum.compiling.fingerprint import fingerprint
from peelsum.compiling.progress import waiting_for

#: Numba's own variable.
CACHE_DIR = "NUMBA_CACHE_DIR"
REMEDY = f"set {CACHE_DIR} to a folder that only this user can write to"
_SUFFIX, _DIGEST_BYTES = ".nbc", 32
#: Seconds after which a file that no process has loaded is removed.
_UNUSED_S = 90 * 86400
_log = logging.getLogger("peelsum")


@cache
def folder() -> Path | None:
    """Return the first usable folder for machine code, created if needed; None if there is none.

    Logs one line if the folder that the user has chosen cannot be used, or none can.
    """
    examined = list(examine())
    problems = [f"{place}: {problem}" for place, problem in examined if problem]
    if len(problems) == len(examined):
        message = "no folder for compiled code, so every process compiles for a minute or two: %s; %s"
        _log.warning(message, ", ".join(problems), REMEDY)
        return None
    if problems and os.environ.get(CACHE_DIR):
        _log.warning("%s; compiled code goes elsewhere: %s", problems[0], REMEDY)
    return examined[-1][0]


def examine() -> Iterator[tuple[Path, str]]:
    """Yield candidates for `folder`, each with the reason why it cannot be used, up to the first usable one.

    The usable one's reason is empty.
    """
    for place in _candidates():
        problem = _problem(place)
        yield place, problem
        if not problem:
            return


def _candidates() -> Iterator[Path]:
    """Yield the folder that the user has chosen, the user's cache, and folders that last until a restart."""
    if chosen := os.environ.get(CACHE_DIR):
        yield Path(chosen) / "peelsum"
    base = os.environ.get("XDG_CACHE_HOME" if os.name != "nt" else "LOCALAPPDATA", "")
    with suppress(RuntimeError):  # the user has no home folder
        yield (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "peelsum" / "compiled"
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "peelsum" / "compiled"
    user = os.getuid() if hasattr(os, "getuid") else ""
    yield Path(tempfile.gettempdir()) / f"peelsum-compiled-{user}"


def _problem(place: Path) -> str:
    """Return why a folder cannot be used; empty if it can."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status, above = place.lstat(), place.parent.stat()
    except OSError as error:
        return error.strerror or str(error)
    if hasattr(os, "getuid"):
        trusted = {0, os.getuid()}  # whoever owns the folder above can put another in its place
        if not stat.S_ISDIR(status.st_mode) or not {status.st_uid, above.st_uid} <= trusted:
            return "belongs to another user"
        shared = above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or shared:
            return "others can write to it"
    filled = any(place.glob(f"*{_SUFFIX}"))  # a read-only image's folder is useful if it has files
    return "" if filled or os.access(place, os.W_OK) else "cannot be written to"


class CodeCache(NullCache):
    """A dispatcher's cache, in place of Numba's own."""

    def __init__(self, loop: Any) -> None:
        """Make the cache of a dispatcher, which reads and writes nothing before the first compilation."""
        self._loop = loop
        self._prefix = ""

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the compiled function for a signature, or None if it must be compiled."""
        target.refresh()
        path = self._path(signature)
        if path is None:
            return None
        try:
            content = path.read_bytes()
            digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if digest != hashlib.sha256(data).digest():
                raise ValueError(f"{path}: is damaged")
            saved, parts = pickle.loads(data)
            with suppress(OSError):
                os.utime(path)
            rebuild: Any = CompileResult._rebuild
            return rebuild(target, *parts) if saved == signature else None
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever is wrong with a file, it can be compiled again
            _log.debug("%s: %s", path, error)
            _warn_once(f"{path.parent}: holds damaged files of compiled code, which are compiled again")
            with suppress(OSError):
                path.unlink()
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep a compiled function, unless there is no room for it."""
        path = self._path(signature)
        if path is None or result.lifted or result.library.has_dynamic_globals:
            return
        data: bytes = dumps((signature, result._reduce()))  # type: ignore[no-untyped-call]
        try:
            _replace(path, hashlib.sha256(data).digest() + data)
            _remove_unused(path.parent)
        except OSError as error:
            _warn_once(
                f"{path.parent}: {error.strerror}: compiled code is not kept, so every process compiles for "
                f"a minute or two; free space, or {REMEDY}"
            )

    @contextmanager
    def locked(self, signature: Any) -> Iterator[None]:
        """Run the body while no other process compiles the function; at once if its code is in the cache."""
        path = self._path(signature)
        if path is None or path.exists():
            yield
        else:
            with _locks.held(path, self._loop):
                yield

    def _path(self, signature: Any) -> Path | None:
        place = folder()
        if place is None:
            return None
        if not self._prefix:
            self._name()
        processor = self._loop.targetctx.codegen().magic_tuple()
        arguments = normalize_signature(signature)[0]  # type: ignore[no-untyped-call]
        fields = [_fields(kind) for kind in arguments]
        digest = hashlib.sha256(repr((str(signature), fields, processor)).encode()).hexdigest()[:16]
        return place / f"{self._prefix}-{digest}{_SUFFIX}"

    def _name(self) -> None:
        """Add the fingerprint to the function's name, which becomes part of file names and of symbols."""
        function = self._loop.py_func
        function.__qualname__ += f"_{fingerprint(self._loop)}"
        self._prefix = f"{function.__module__}.{function.__qualname__}".replace("<locals>.", "")


def _fields(kind: Any) -> list[Any]:
    """Return the names of a named tuple's fields, which give the places of its values, and of inner ones'."""
    return [getattr(kind, "fields", ()), *map(_fields, getattr(kind, "types", ()))]


def _replace(path: Path, content: bytes) -> None:
    """Replace a file's content; a reader sees the old or the new content, and no part of one."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(file.name).unlink()
            raise


@cache
def _remove_unused(place: Path) -> None:
    """Remove files that no process has loaded for _UNUSED_S; once in each process."""
    for path in place.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _UNUSED_S:
                path.unlink()


@cache
def _warn_once(message: str) -> None:
    _log.warning(message)


class _Locks:
    """A lock for each file of machine code, shared with the processes that use the folder.

    The locks are bytes of the file `.lock`, at offsets that are digests of the names. Forked children do not
    inherit POSIX locks, and closing any descriptor of `.lock` releases all of a process's locks there: so it
    is opened once, by the outermost lock, and closed with it.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    @contextmanager
    def held(self, path: Path, loop: Any) -> Iterator[None]:
        """Hold the lock of `path`; without locks, e.g. on some network file systems, run the body at once."""
        outermost, offset = self._file is None, int(path.stem[-15:], 16)
        try:
            self._acquire(path.parent / ".lock", offset, loop)
            yield
        finally:
            if outermost:
                self._file, file = None, self._file
                if file is not None:
                    file.close()
            else:
                self._release(offset)

    def _acquire(self, file: Path, offset: int, loop: Any) -> None:
        with suppress(ImportError, OSError):  # Windows has no fcntl
            import fcntl

            self._file = self._file or file.open("ab")
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except (BlockingIOError, PermissionError):
                with waiting_for(loop):
                    fcntl.lockf(self._file, fcntl.LOCK_EX, 1, offset)

    def _release(self, offset: int) -> None:
        with suppress(ImportError, OSError):
            import fcntl

            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, offset)


_locks = _Locks()
