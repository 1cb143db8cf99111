"""A measured network model is that of the slowest worker, on all of them."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from peelsum.allreduce import (
    Allreduce,
    CodecModel,
    InvalidRequestError,
    LocalSummation,
    NetworkModel,
    PlanMismatchError,
    measured,
    measuring,
)
from peelsum.codec import CodecError


class Link:
    """A worker's summation over a link, with a clock of its own."""

    def __init__(self, summation, trip_s, gbps):
        self._summation, self._trip_s, self._word_s = summation, trip_s, 32e-9 / gbps
        self.lanes, self.workers, self.worker_id = summation.lanes, summation.workers, summation.worker_id
        self.now, self.words = 0.0, 0

    def sum_words(self, parts):
        count = sum(len(part.words) for part in parts)
        self.now += self._trip_s + self._word_s * count
        self.words += count
        return self._summation.sum_words(parts)


@pytest.mark.parametrize(
    ("links", "expected", "longest"),
    [
        # The round trip is one worker's, the rate mostly another's.
        ([(1e-2, 0.1), (2e-2, 0.2)], (2e-2, 0.11), 2**19),
        ([(5e-5, 10.0)] * 3, (5e-5, 10.0), 2**16),
        # Even the longest sum takes less time than a round trip.
        pytest.param([(0.5, 100.0)] * 2, (0.5, 100.0), 2**22, marks=pytest.mark.slow),
        pytest.param([(1.0, 1e9)] * 2, (1.0, 1000.0), 2**22, marks=pytest.mark.slow),
    ],
)
def test_the_slowest_worker_counts(links, expected, longest, monkeypatch):
    codecs = iter([CodecModel(call=1234.5, cell=1.0), CodecModel(call=1.0, cell=23.45), CodecModel(call=0.0)])
    monkeypatch.setattr(measuring, "codec_model", lambda implementation: next(codecs))
    group = [
        Link(one, *link) for one, link in zip(LocalSummation.group(len(links), lanes=64), links, strict=True)
    ]
    with ThreadPoolExecutor(len(group)) as pool:
        models = list(pool.map(lambda one: measured(one, clock=lambda: one.now), group))
    trip_s, gbps = expected
    codec = CodecModel(call=1200.0, cell=23.0 if len(group) < 3 else 24.0)
    assert models == [NetworkModel(gbps, trip_s, codec)] * len(group)
    assert longest <= max(one.words for one in group) / 5 < 1.2 * longest
    np.testing.assert_array_equal([one.words for one in group], group[0].words)


def test_workers_of_which_one_measures_get_an_error():
    first, second = LocalSummation.group(2)
    gradient = {"g": np.ones(3, np.float32)}
    with ThreadPoolExecutor(2) as pool:
        told = [pool.submit(measured, first), pool.submit(lambda: Allreduce(second).sum(gradient))]
        for one in told:
            assert isinstance(one.exception(), PlanMismatchError)


def test_forms_are_chosen_for_the_codec():
    """Where peeling takes no time, a sketch saves the exchange; where it takes long, values are compact."""
    values = np.where(np.random.default_rng(1).random(2**16) < 0.02, 1.0, 0.0).astype(np.float32)
    forms = []
    for cell in (0.0, 1e5):
        (alone,) = LocalSummation.group(1)
        network = NetworkModel(1.0, 2e-3, CodecModel(cell=cell))
        reduce = Allreduce(alone, network=network)
        for _ in range(3):
            step = reduce.sum({"g": values})
        forms.append((step["g"].form, step.exchanges))
    assert forms == [("sketch", 1), ("compact", 2)]


@pytest.mark.parametrize("number", [-1.0, math.inf, math.nan])
def test_impossible_codecs_are_refused(number):
    with pytest.raises(InvalidRequestError, match=r"^cell: .* is not a time; use 0 or more nanoseconds"):
        CodecModel(cell=number)


def test_all_workers_hear_of_one_that_cannot_measure(monkeypatch):
    def model(implementation):
        if implementation == "gpu":
            raise CodecError("no GPU is here")
        return CodecModel()

    monkeypatch.setattr(measuring, "codec_model", model)
    group = LocalSummation.group(3)
    with ThreadPoolExecutor(3) as pool:
        told = [
            pool.submit(measured, one, kind) for one, kind in zip(group, ("cpu", "gpu", "cpu"), strict=True)
        ]
        errors = [one.exception() for one in told]
    assert isinstance(errors[1], CodecError)
    for error in (errors[0], errors[2]):
        assert isinstance(error, InvalidRequestError)
        assert "worker 1 could not measure its codec" in str(error)
