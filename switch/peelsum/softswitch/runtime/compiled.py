"""Makes a callable of generated source text: plain Python, or machine code by Numba, cached on disk.

The cache is per user: one module per program, named by a hash of everything that its machine code depends on.
Without a usable cache, every process compiles the program again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import pickle
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from peelsum.softswitch.compiler.codegen import RUNTIME, Generated
from peelsum.softswitch.errors import UnsupportedConstruct

_HERE = Path(__file__).parent
_BUILT_ON = ("native.py", "lookups.py", "queues.py", "hashes.py")
_log = logging.getLogger("peelsum.switch")

#: Most seconds that Numba may take for a program, by `seconds_to_compile`. It then needs less than 1 GB.
MOST_SECONDS = 10.0


def seconds_to_compile(source: str) -> float:
    """Estimate the processor time that Numba takes to compile generated code, the same on every machine.

    Numba follows variables from block to block: its time grows with the product of both. The factors
    were fitted to programs that take 1 to 45 s.
    """
    words = sum(1 for _ in re.finditer(r"\w+", source))
    blocks = source.count(":\n")
    return 0.5 + 1.4e-3 * words + 2.8e-6 * words * blocks


def machine_code(
    generated: Generated, name: str, cache: Path | None = None
) -> Callable[..., tuple[int, int]] | None:
    """Return the generated function of program `name` as `through_numba` does.

    Return None, and log why, if compiling it would take too long or Numba cannot.
    """
    seconds = seconds_to_compile(generated.source)
    if seconds > MOST_SECONDS:
        _log.warning(
            "switch: interprets program %s, slowly: compiling it would take about %.1f s, more than %g s; "
            "make lanes fields of one header with a register each, which become loops",
            *(name, seconds, MOST_SECONDS),
        )
        return None
    try:
        return through_numba(generated, cache)
    except RecursionError:
        _log.warning(
            "switch: interprets program %s, slowly: has too many branches in a row to compile; "
            "make tables of them",
            name,
        )
        return None


def as_it_is(generated: Generated) -> Callable[..., tuple[int, int]]:
    """Return the generated function in plain Python. Raises UnsupportedConstruct if Python cannot load it."""
    from peelsum.softswitch.runtime import plain

    names: dict[str, Any] = {name: getattr(plain, name) for name in RUNTIME}
    try:
        exec(compile(generated.source, "<generated>", "exec"), names)
    except (RecursionError, MemoryError):  # the latter if Python's parser ran out of levels
        raise UnsupportedConstruct(
            "program: has too many branches in a row; use shorter header stacks, or fewer parser states and "
            "actions of a table"
        ) from None
    return plain.main(names["run"])  # type: ignore[no-any-return]


def through_numba(generated: Generated, cache: Path | None = None) -> Callable[..., tuple[int, int]]:
    """Return the generated function as machine code; `cache` is a folder, by default in the user's cache."""
    text = _module_text(generated)
    folder = _usable(cache if cache is not None else _user_cache())
    if folder is not None:
        try:
            return _imported(_written(folder, text)).run  # type: ignore[no-any-return]
        except RecursionError:
            raise  # is not the cache's fault
        except (OSError, EOFError, ImportError, RuntimeError, pickle.UnpicklingError):
            pass  # a cache that is broken, full or cannot be locked must cost only time
    names: dict[str, Any] = {"__name__": "peelsum_uncached"}  # as which messages on compilation know it
    exec(compile(text.replace("CACHED = True", "CACHED = False"), "<generated>", "exec"), names)
    return names["run"]  # type: ignore[no-any-return]


def _module_text(generated: Generated) -> str:
    wanted = ", ".join(RUNTIME)
    options = "CACHED, again=True" if generated.again else "CACHED"
    foot = f"CACHED = True\nrun = compiler({options})(run)\n"
    return f"from peelsum.softswitch.runtime.native import {wanted}, compiler\n\n{generated.source}\n\n{foot}"


def _user_cache() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME")
    if not base or not Path(base).is_absolute():
        base = os.environ.get("LOCALAPPDATA") if os.name == "nt" else None
    try:
        return (Path(base) if base else Path.home() / ".cache") / "peelsum" / "compiled"
    except RuntimeError:  # the user has no home folder
        return None


def _usable(folder: Path | None) -> Path | None:
    """Return the folder, created if needed; None if others may write to it, as it holds code that we run."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except OSError:
        return None
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        return None
    return folder if os.access(folder, os.W_OK) else None


def _written(folder: Path, text: str) -> Path:
    """Write the module's file and return it. Concurrent processes write the same content and time."""
    import llvmlite
    import numba
    import numpy as np

    parts = [text, sys.version, platform.machine(), numba.__version__, llvmlite.__version__, np.__version__]
    parts += [hashlib.sha256((_HERE / name).read_bytes()).hexdigest() for name in _BUILT_ON]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    path = folder / f"peelsum_{key}.py"
    if path.is_file() and path.read_text() == text:
        return path
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
        file.write(text)
    os.utime(file.name, (0, 0))
    try:
        Path(file.name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(file.name).unlink()
        raise
    return path


def _imported(path: Path) -> ModuleType:
    if path.stem in sys.modules:
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
