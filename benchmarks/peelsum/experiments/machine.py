"""The conditions of a measured row: machine, versions, commit, and how busy others keep the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Files on which figures depend, besides an experiment's own file; each row has the digest of that.
_SOURCES = ("*.py", "*.p4", "switch/artifacts", "constraints.txt", ":!docs", ":!tests", ":!*/catalogue")
_PACKAGES = ("peelsum", "numpy", "numba", "torch")
_STAT = Path("/proc/stat")
#: Columns of /proc/stat's first line that are not work of programs: idle, iowait, and guests counted twice.
_NOT_WORK = (3, 4, 8, 9)


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


@dataclass(frozen=True)
class Load:
    """The load of a machine during a span of time."""

    wall_s: float
    """Seconds by the clock."""
    cpu_s: float
    """Processor seconds of this process, and of its children that have ended."""
    load: float
    """The system's load average over a minute, at the end."""
    others: float | None
    """Share of all processors that others used, or that the hypervisor withheld; None where not known."""


class Watched:
    """A span of time: `Watched()` begins it, `load` ends it."""

    def __init__(self) -> None:
        self._wall, self._cpu, self._busy = time.monotonic(), _own_s(), _busy_s()

    def load(self) -> Load:
        """Return what happened since the beginning."""
        wall_s, cpu_s = time.monotonic() - self._wall, _own_s() - self._cpu
        busy, others = _busy_s(), None
        if busy is not None and self._busy is not None and wall_s > 0:
            share = (busy - self._busy - cpu_s) / (wall_s * (os.cpu_count() or 1))
            others = min(max(share, 0.0), 1.0)
        return Load(wall_s, cpu_s, os.getloadavg()[0], others)


def _own_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def _busy_s() -> float | None:
    """Return the seconds that all processors have worked or were withheld; None without /proc/stat."""
    try:
        ticks = [int(word) for word in _STAT.read_text().splitlines()[0].split()[1:]]
    except (OSError, ValueError, IndexError):
        return None
    work = sum(count for column, count in enumerate(ticks) if column not in _NOT_WORK)
    return work / os.sysconf("SC_CLK_TCK")
