"""Executes requests on a pipeline's state one after the other, as the P4Runtime specification requires.

So no Read sees half of a Write's batch.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Condition
from time import monotonic

import grpc

from peelsum.softswitch.p4runtime.status import Code, RequestError, exhausted

#: Seconds that each update adds to a batch's time of arrival, so that short batches pass long ones.
_UPDATE_DELAY_S = 0.5e-3


class RequestQueue:
    """A queue of calls in the order of arrival, except that a short batch passes a long one that waits.

    Each waiting call holds a thread of the server, so their number is limited. If it is exceeded, the last
    call in the queue is refused: the newest, or a longer batch that it passes.
    """

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._changed = Condition()
        self._waiting: list[tuple[float, int]] = []
        self._serial = count()
        self._busy = False

    @contextmanager
    def turn(self, call: grpc.ServicerContext, updates: int = 0) -> Iterator[None]:
        """Wait in the queue, then run the body alone.

        Raises RequestError: CANCELLED if the call ends while it waits, RESOURCE_EXHAUSTED if too many wait.
        """
        call.add_callback(self._notify_waiting)
        with self._changed:
            self._wait_for_turn(call, updates)
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _wait_for_turn(self, call: grpc.ServicerContext, updates: int) -> None:
        """Enter the queue and wait until it is this call's turn; raise RequestError if it is refused."""
        rank = (monotonic() + updates * _UPDATE_DELAY_S, next(self._serial))
        insort(self._waiting, rank)
        if len(self._waiting) > self._most_waiting:
            self._waiting.pop()
            self._changed.notify_all()
        self._changed.wait_for(
            lambda: (
                not call.is_active()
                or rank not in self._waiting
                or (not self._busy and self._waiting[0] == rank)
            )
        )
        if rank not in self._waiting:
            raise exhausted(
                f"{self._most_waiting} requests wait for their turn already, and nothing was done; "
                "await answers before you send more"
            )
        self._waiting.remove(rank)
        if not call.is_active():
            self._changed.notify_all()
            raise RequestError(Code.CANCELLED, "the call ended before its turn; nothing was done")

    def _notify_waiting(self) -> None:
        with self._changed:
            self._changed.notify_all()
