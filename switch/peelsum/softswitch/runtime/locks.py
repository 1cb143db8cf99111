"""The lock of a switch's state. It is fair, so that a series of control requests cannot starve packets."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, get_ident


class FairLock:
    """A reentrant lock that a waiting thread gets before the thread that has just released it.

    With Python's own locks, a thread that releases and acquires in a loop can keep others waiting for
    seconds. Here a waiting thread holds `_queue_lock`, so that the releasing thread queues behind it.

    `on_wait` is called before a thread waits, so that a holder that waits for packets can release the lock.
    """

    def __init__(self) -> None:
        self.on_wait: Callable[[], None] = lambda: None
        self._queue_lock = Lock()
        self._state_lock = Lock()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        thread = get_ident()
        if self._holder != thread:
            with self._queue_lock:
                if not self._state_lock.acquire(blocking=False):
                    self.on_wait()
                    self._state_lock.acquire()
            self._holder = thread
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._state_lock.release()
