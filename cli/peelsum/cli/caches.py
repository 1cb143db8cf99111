"""A cache folder for Numba's machine code if Numba finds none itself, as in a read-only install."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from peelsum.topology import TopologyError, records

#: Numba's own variable.
CACHE_DIR = "NUMBA_CACHE_DIR"
#: Packages with compiled loops.
_COMPILED = ("peelsum.transport", "peelsum.codec")


def keep_compiled() -> None:
    """Set a cache folder for Numba, for this process and its children, if Numba would find none."""
    if CACHE_DIR in os.environ or _has_place(_packages()):
        return
    with suppress(TopologyError):  # then Numba reports what is missing
        os.environ[CACHE_DIR] = str(records.folder() / "numba")


def _has_place(packages: Iterable[Path]) -> bool:
    """Return whether Numba can write beside the modules of all packages, or in the user's cache folder."""
    if all(_writable(package / "__pycache__") for package in packages):
        return True
    with suppress(RuntimeError):  # the user has no home folder
        return _writable(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"))
    return False


def _packages() -> list[Path]:
    specs = [find_spec(name) for name in _COMPILED]
    return [Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ()]


def _writable(folder: Path) -> bool:
    while not os.access(folder, os.F_OK) and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
