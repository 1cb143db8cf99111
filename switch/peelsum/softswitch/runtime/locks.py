"""The lock around a switch's state, which a long run of changes cannot keep from the packets."""

from __future__ import annotations

from threading import Lock, get_ident


class FairLock:
    """A lock that its holder may take again, and that goes to the thread that waits before it comes back.

    Python's own locks may be taken by the thread that has just let go of them, for seconds on end. Here
    one waiting thread at a time stands at the door, and everybody else has to wait behind it.
    """

    def __init__(self) -> None:
        self._door = Lock()
        self._inner = Lock()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = get_ident()
        if self._holder != me:
            with self._door:
                self._inner.acquire()
            self._holder = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._inner.release()
