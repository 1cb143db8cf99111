"""The lock around a switch's state: fair, so many control requests in a row cannot starve packets."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, get_ident


class FairLock:
    """A reentrant lock that goes to a waiting thread before its last holder gets it again.

    With Python's own locks, a thread that releases and acquires in a loop can keep others waiting for
    seconds. Here a waiting thread holds `_door`, so the releasing thread queues behind it.

    `wanted` is called before a thread waits: a holder that sleeps can then release the lock.
    """

    def __init__(self) -> None:
        self.wanted: Callable[[], None] = lambda: None
        self._door = Lock()
        self._inner = Lock()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = get_ident()
        if self._holder != me:
            with self._door:
                if not self._inner.acquire(blocking=False):
                    self.wanted()
                    self._inner.acquire()
            self._holder = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._inner.release()
