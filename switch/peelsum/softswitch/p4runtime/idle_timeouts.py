"""Idle time-outs of table entries: when each entry was last hit, and which ones have expired."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Generic, TypeVar

_Entry = TypeVar("_Entry", bound=Hashable)


@dataclass(slots=True)
class _Timer:
    """The time-out of an entry (0: none), when it was last hit, and when its time-out began to run."""

    timeout_ns: int
    last_hit: int
    started: int


class IdleTimeouts(Generic[_Entry]):
    """The timers of entries, which start with the entry, and again when it is hit or has expired.

    clock: returns nanoseconds. Any thread may call the methods.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock, self._lock = clock, Lock()
        self._timers: dict[_Entry, _Timer] = {}
        #: When `expired` looks at all timers again: no time-out ends earlier.
        self._next_look: float = 0

    def start(self, entry: _Entry, timeout_ns: int) -> None:
        """Start the timer of an entry that was inserted or modified; a modified one keeps its last hit."""
        with self._lock:
            now = self._clock()
            previous = self._timers.get(entry)
            self._timers[entry] = _Timer(timeout_ns, previous.last_hit if previous else now, now)
            self._next_look = min(self._next_look, now + (timeout_ns or inf))

    def remove(self, entry: _Entry) -> None:
        """Remove the timer of an entry that was deleted."""
        with self._lock:
            self._timers.pop(entry, None)

    def record_hits(self, entries: Iterable[_Entry]) -> None:
        """Record that packets have hit entries now."""
        with self._lock:
            now = self._clock()
            for timer in (self._timers[entry] for entry in entries if entry in self._timers):
                timer.last_hit = timer.started = now

    def since_last_hit(self, entry: _Entry) -> int:
        """Return the nanoseconds since an entry was last hit, or inserted if it never was."""
        with self._lock:
            return self._clock() - self._timers[entry].last_hit if entry in self._timers else 0

    def expired(self) -> list[_Entry]:
        """Return the entries that have expired, and restart their timers."""
        with self._lock:
            now, entries, earliest = self._clock(), [], inf
            if now < self._next_look:
                return []
            for entry, timer in self._timers.items():
                if timer.timeout_ns:
                    if now - timer.started >= timer.timeout_ns:
                        timer.started = now
                        entries.append(entry)
                    earliest = min(earliest, timer.started + timer.timeout_ns)
            # With very many timers, looks take a tenth of the time at most.
            self._next_look = max(earliest, now + 10 * (self._clock() - now))
            return entries
