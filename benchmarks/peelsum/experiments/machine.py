"""The conditions of a measured row: machine, versions, commit."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Files on which figures depend, besides an experiment's own file; each row has the digest of that.
_SOURCES = ("*.py", "*.p4", "switch/artifacts", "constraints.txt", ":!docs", ":!tests", ":!*/catalogue")
_PACKAGES = ("peelsum", "numpy", "numba", "torch")


@cache
def machine() -> str:
    """Return processor, number of cores, and system, as text."""
    return f"{os.cpu_count()} cores of {_processor()}, {platform.system()} {platform.release()}"


@cache
def versions() -> str:
    """Return the versions of Python and of the packages that figures depend on, as text."""
    return ", ".join([f"Python {platform.python_version()}", *filter(None, map(_version, _PACKAGES))])


@cache
def commit() -> str:
    """Return the last commit of the packages' sources; with `+` and a digest of changes, if there are any.

    An installed package has no checkout; then it is the package's version.
    """
    folder, root = Path(__file__).parents[2:4]
    if folder.name != "benchmarks":
        return version("peelsum")
    try:
        head = _git(root, "log", "-1", "--abbrev=10", "--format=%h", "--", *_SOURCES).strip()
        changes = _git(root, "diff", "HEAD", "--", *_SOURCES)
    except (OSError, subprocess.CalledProcessError):
        return version("peelsum")
    return f"{head}+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else head


def _git(root: Path, *arguments: str) -> str:
    # In a group of its own, which Ctrl-C does not reach.
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, process_group=0).stdout


def _version(package: str) -> str | None:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
