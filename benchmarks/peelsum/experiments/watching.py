"""How busy a machine is with other programs while a row is measured."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
#: Columns of /proc/stat's first line that are not work of programs: idle, iowait, and guests counted twice.
_NOT_WORK = (3, 4, 8, 9)


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
