"""Measure what words and exchanges take over a summation, to compare forms by."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from peelsum.allreduce.costs import NetworkModel
from peelsum.allreduce.errors import PlanMismatchError
from peelsum.allreduce.plan import agreed, agreement_words
from peelsum.codec.index import WORD_BITS
from peelsum.summation import Part, Summation, Words

#: Words of the long sums, of which the first that takes this many times as long as a short one counts.
_LONG, _LONGER = (2**16, 2**19, 2**22), 4
#: Sums of each length, of which the shortest time counts.
_SUMS = 5
#: What workers that measure agree on, in place of a plan's digest.
_MEASURING = 0x6D656173
#: A rate of so many gigabits per second is taken for one that the longest sums do not show.
_FASTEST = 1000.0


def measured(summation: Summation, clock: Callable[[], float] = time.perf_counter) -> NetworkModel:
    """Return the model of a summation's network, the same on all workers, which must call this together.

    Sums of one word show the round trip, longer ones the rate, with the processor time that sending takes.
    The slowest worker's times count, rounded to two digits. It takes about a second at 0.1 Gbit/s and 20 ms,
    and a tenth of that at 1 Gbit/s and 3 ms.
    Raises PlanMismatchError if others do not measure, and the summation's errors.
    """

    def check(words: Words) -> None:
        if not agreed(words):
            raise PlanMismatchError(
                f"network: worker {summation.worker_id} measures it, and others do not; "
                "give all of them the same"
            )

    # Zeros would pass for another worker's share of a sum.
    summation.sum_words([Part(agreement_words(_MEASURING), "or", check)])

    def slowest_s(words: int) -> float:
        """Return the shortest time of some sums on the worker where it is longest."""
        own, zeros = [], np.zeros(words, np.uint32)
        for _ in range(_SUMS):
            started = clock()
            summation.sum_words([Part(zeros, "add")])
            own.append(clock() - started)
        told = np.zeros(summation.workers, np.float32)
        told[summation.worker_id] = min(own)
        (all_told,) = summation.sum_words([Part(told.view(np.uint32), "or")])
        return float(all_told.view(np.float32).max())

    model = NetworkModel(_FASTEST, _rounded(slowest_s(1)))
    for words in _LONG:
        more_s = slowest_s(words) - model.round_trip_s
        if more_s > 0:
            model = replace(model, gbps=min(_rounded(WORD_BITS * words / more_s / 1e9), _FASTEST))
        if more_s >= _LONGER * model.round_trip_s:
            break
    return model


def _rounded(number: float) -> float:
    return float(f"{number:.2g}")
