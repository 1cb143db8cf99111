"""Events of a cluster, for all who watch."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Literal, get_args

#: Most watchers, and most events that one may leave unread.
MOST_WATCHERS, MOST_UNREAD = 16, 1000


Kind = Literal["primary", "backup", "admitted", "evicted", "lost", "regained", "restored", "removed", "error"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    kind: Kind
    """Kind of event."""
    text: str
    """The event, in one line."""
    job_id: int | None = None
    """The job that it happened to; None if to none."""
    generation: int | None = None
    """The job's generation from then on; None if it did not change."""

    def values(self) -> dict[str, Any]:
        """Return the fields that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return self.text


class Watcher:
    """One reader of events. It is cut off once it has left `MOST_UNREAD` unread."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event] = queue.Queue(MOST_UNREAD)
        self._cut = False

    def put(self, event: Event) -> None:
        """Add an event; does not wait."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._cut = True

    def get(self, timeout_s: float) -> Event | None:
        """Wait for the next event; None if there is none in time."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    @property
    def cut(self) -> bool:
        """Whether events were lost."""
        return self._cut


class Events:
    """Passes events on to every watcher, and to `tell`."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell, self._watchers, self._lock = tell, set[Watcher](), Lock()

    def tell(self, event: Event) -> None:
        """Pass an event on."""
        self._tell(event)
        with self._lock:
            watchers = tuple(self._watchers)
        for watcher in watchers:
            watcher.put(event)

    @contextmanager
    def watched(self) -> Iterator[Watcher | None]:
        """Yield a new watcher; None if there are `MOST_WATCHERS`."""
        watcher = Watcher()
        with self._lock:
            room = len(self._watchers) < MOST_WATCHERS
            if room:
                self._watchers.add(watcher)
        try:
            yield watcher if room else None
        finally:
            with self._lock:
                self._watchers.discard(watcher)
