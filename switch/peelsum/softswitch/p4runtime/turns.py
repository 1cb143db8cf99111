"""Serialises requests on a pipeline's state: none sees another's batch half done.

The P4Runtime specification requires this: the outcome is as if Writes and Reads ran one after the other.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Condition
from time import monotonic

import grpc

from peelsum.softswitch.p4runtime.status import Code, RequestError

#: Seconds by which each update delays a batch's rank in the queue: short batches pass long ones.
_UPDATE_S = 0.5e-3


class Turns:
    """Grants turns in the order of arrival, except that a short batch passes a waiting long one.

    Each waiting call holds a thread of the server, so only so many may wait. Beyond them, the call with
    the last place is refused: the newest, or a longer batch that it passes.
    """

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._changed = Condition()
        self._waiting: list[tuple[float, int]] = []
        self._serial = count()
        self._taken = False

    @contextmanager
    def turn(self, call: grpc.ServicerContext, updates: int = 0) -> Iterator[None]:
        """Hold a turn during the body.

        Raises RequestError: CANCELLED if the call ends before its turn, RESOURCE_EXHAUSTED if too many wait.
        """
        call.add_callback(self._wake)
        with self._changed:
            self._wait(call, updates)
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()

    def _wait(self, call: grpc.ServicerContext, updates: int) -> None:
        place = (monotonic() + updates * _UPDATE_S, next(self._serial))
        insort(self._waiting, place)
        if len(self._waiting) > self._most_waiting:
            self._waiting.pop()
            self._changed.notify_all()
        self._changed.wait_for(
            lambda: not call.is_active() or place not in self._waiting or self._is_next(place)
        )
        if place not in self._waiting:
            raise RequestError(
                Code.RESOURCE_EXHAUSTED,
                f"{self._most_waiting} requests wait for their turn already, and nothing was done; "
                "await answers before you send more",
            )
        self._waiting.remove(place)
        if not call.is_active():
            self._changed.notify_all()
            raise RequestError(Code.CANCELLED, "the call ended before its turn; nothing was done")

    def _is_next(self, place: tuple[float, int]) -> bool:
        return not self._taken and self._waiting[0] == place

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
