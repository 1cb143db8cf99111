"""A measured network model is that of the slowest worker, on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from peelsum.allreduce import Allreduce, LocalSummation, NetworkModel, Part, PlanMismatchError, measured
from peelsum.summation import Summation, Words


class Link:
    """A worker's summation over a link, with a clock of its own."""

    def __init__(self, summation: Summation, trip_s: float, gbps: float) -> None:
        self._summation, self._trip_s, self._word_s = summation, trip_s, 32e-9 / gbps
        self.lanes, self.workers, self.worker_id = summation.lanes, summation.workers, summation.worker_id
        self.now, self.words = 0.0, 0

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        count = sum(len(part.words) for part in parts)
        self.now += self._trip_s + self._word_s * count
        self.words += count
        return self._summation.sum_words(parts)


@pytest.mark.parametrize(
    ("links", "expected", "longest"),
    [
        # The round trip is one worker's, the rate mostly another's.
        ([(1e-3, 4.0), (2e-3, 8.0)], (2e-3, 4.1), 2**22),
        ([(20e-3, 0.1), (20e-3, 0.1)], (20e-3, 0.1), 2**19),
        ([(5e-5, 10.0)] * 3, (5e-5, 10.0), 2**16),
        # Even the longest sum takes less time than a round trip.
        ([(0.5, 100.0)] * 2, (0.5, 100.0), 2**22),
        ([(1.0, 1e9)] * 2, (1.0, 1000.0), 2**22),
    ],
)
def test_the_slowest_worker_counts(
    links: list[tuple[float, float]], expected: tuple[float, float], longest: int
) -> None:
    group = [
        Link(one, *link) for one, link in zip(LocalSummation.group(len(links), lanes=64), links, strict=True)
    ]
    with ThreadPoolExecutor(len(group)) as pool:
        models = list(pool.map(lambda one: measured(one, lambda: one.now), group))
    trip_s, gbps = expected
    assert models == [NetworkModel(gbps, trip_s)] * len(group)
    assert longest <= max(one.words for one in group) / 5 < 1.2 * longest
    np.testing.assert_array_equal([one.words for one in group], group[0].words)


def test_workers_of_which_one_measures_get_an_error() -> None:
    first, second = LocalSummation.group(2)
    gradient = {"g": np.ones(3, np.float32)}
    with ThreadPoolExecutor(2) as pool:
        told = [pool.submit(measured, first), pool.submit(lambda: Allreduce(second).sum(gradient))]
        for one in told:
            assert isinstance(one.exception(), PlanMismatchError)
