"""Probes of carriers: exchanges of zeros whose time tells latency and rate.

A probe of the carrier that a step uses comes before the step's sums. One of another carrier runs beside them,
on a thread of its own, so that training does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

import numpy as np

from peelsum.flexible import Carrier
from peelsum.summation import Part, Summation


class Probes:
    """The probes that are under way or whose time not all ranks have yet, one for each carrier at most."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._times: dict[Carrier, Future[float]] = {}

    def begin(self, carrier: Carrier, backend: Summation, words: int, *, beside: bool) -> None:
        """Exchange `words` zeros over `backend`, unless the carrier has a probe already.

        beside: whether to return at once. Otherwise, wait for the probe, and raise the backend's errors.
        """
        if carrier in self._times:
            return
        self._times[carrier] = future = Future[float]()

        def probe() -> None:
            started = self._clock()
            try:
                backend.sum_words([Part(np.zeros(words, np.uint32), "add")])
            except BaseException as error:  # of any kind: a later step raises it
                future.set_exception(error)
            else:
                future.set_result(self._clock() - started)

        if beside:
            # A daemon: a process that fails during a sum must not wait for a probe that never completes.
            Thread(target=probe, name=f"peelsum probe of {carrier}", daemon=True).start()
        else:
            probe()
            future.result()

    def seconds(self, carrier: Carrier) -> float:
        """Return a probe's time; 0 without one, or while it is under way. Raises its backend's errors."""
        future = self._times.get(carrier)
        return future.result() if future is not None and future.done() else 0.0

    def forget(self, carrier: Carrier) -> None:
        """Forget a probe whose time all ranks have."""
        self._times.pop(carrier, None)

    def wait(self, carrier: Carrier) -> None:
        """Wait until no probe of the carrier is under way. Raises its backend's errors."""
        if carrier in self._times:
            self._times[carrier].result()

    def end(self) -> None:
        """Wait for all probes, and forget them and their errors."""
        for future in list(self._times.values()):
            future.exception()
        self._times.clear()
