"""Where a tensor's density changes from step to step, the words of all steps stay near their lower bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sums_of_floats import SLACK, check

from peelsum.allreduce import Allreduce, NetworkModel, Part
from peelsum.allreduce.costs import lower_bound_bits

N, STEPS = 1 << 16, 30
#: A sketch of fewer candidates than this tensor has is a few cells larger, and is peeled less often.
N_SKETCH = 1 << 20
WORDS_ONLY, DEFAULT = NetworkModel(gbps=1e-6, round_trip_s=0.0), NetworkModel()


class Recorder:
    """A backend of one worker that records the words of each step's first header."""

    lanes, workers, worker_id = 256, 1, 0

    def __init__(self) -> None:
        self.header = 0

    def sum_words(self, parts: Sequence[Part]) -> list[Any]:
        for part in parts:
            if part.op == "or" and part.check is None and not self.header:
                self.header = part.words.size
        return [part.words.copy() for part in parts]


def uniform(n: int, densities: Sequence[float], seed: int = 1) -> Iterator[NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    for density in densities:
        yield rng.random(n, np.float32) < density


def bursts(n: int, width: int) -> Iterator[NDArray[np.bool_]]:
    """Yield whole rows, 0.3 % of all on average and at least one."""
    rng = np.random.default_rng(width)
    for _ in range(STEPS):
        rows = rng.random(n // width) < 0.003
        rows[rng.integers(rows.size)] = True
        yield np.repeat(rows, width)


def largest(n: int) -> Iterator[NDArray[np.bool_]]:
    """Yield the largest k of random values, as a sparsifier does that lowers k and then raises it."""
    rng = np.random.default_rng(3)
    for step in range(STEPS):
        k = int(n * 0.25 ** min(step % 10 / 2 + 1, 4))
        chosen = np.zeros(n, np.bool_)
        chosen[np.argpartition(rng.random(n, np.float32), k)[:k]] = True
        yield chosen


UNIFORM: dict[str, list[float]] = {
    **{f"x{high}": [0.001] * 10 + [0.001 * high] * 10 + [0.001] * 10 for high in (2, 3, 5, 10)},
    "alternating": [0.002, 0.01] * 15,
    "log-uniform": np.exp(np.random.default_rng(4).uniform(np.log(0.001), np.log(0.05), STEPS)).tolist(),
    "up and down": [0.02, 0.02, 0.001, 0.001] * 7,
    "empty": [0.01] * 10 + [0.0] * 10 + [0.01] * 10,
    "dense": [0.01] * 10 + [1.0] * 10 + [0.01] * 10,
}


def supports(shape: str, n: int) -> Iterator[NDArray[np.bool_]]:
    if shape == "largest k":
        return largest(n)
    return bursts(n, int(shape.removeprefix("rows of "))) if "rows" in shape else uniform(n, UNIFORM[shape])


def words_and_bounds(reduce: Allreduce, backend: Recorder, shape: str, n: int) -> Iterator[Any]:
    """Sum every step; yield the result, words of the header, number of non-zeros, and bound in words."""
    for chosen in supports(shape, n):
        backend.header = 0
        tensor = reduce.sum({"g": chosen.astype(np.float32)})["g"]
        np.testing.assert_array_equal(tensor.values, chosen)
        count = int(np.count_nonzero(chosen))
        yield tensor, backend.header, count, lower_bound_bits(n, count) / 32


@pytest.mark.parametrize("shape", [*UNIFORM, "rows of 1024", "rows of 64", "largest k"])
@pytest.mark.parametrize("network", [WORDS_ONLY, DEFAULT], ids=["words", "default"])
@pytest.mark.parametrize("predict", [False, True], ids=["auto", "predict"])
def test_words_stay_near_the_bound(predict: bool, network: NetworkModel, shape: str) -> None:
    backend = Recorder()
    reduce = Allreduce(backend, sparse=["g"], predict=predict, network=network)
    words, bounds = 0, 0.0
    for tensor, header, count, bound in words_and_bounds(reduce, backend, shape, N):
        words, bounds = words + tensor.words_sent, bounds + bound
        if not predict:  # words sent ahead may be wasted
            assert tensor.words_sent <= 2 * bound + header
            assert tensor.form != "dense" or count >= 0.2 * N
    assert words <= 1.5 * bounds


@pytest.mark.parametrize("shape", ["x2", "x10", "alternating", "log-uniform", "empty", "rows of 1024"])
def test_words_of_sketches_stay_near_the_bound(shape: str) -> None:
    backend = Recorder()
    found = [*words_and_bounds(Allreduce(backend, forms="sketch"), backend, shape, N_SKETCH)]
    assert {tensor.form for tensor, *_ in found} == {"sketch"}
    assert sum(tensor.words_sent for tensor, *_ in found) <= 1.5 * sum(bound for *_, bound in found)


@pytest.mark.parametrize("way", ["compact", "sketch"])
def test_false_positives_are_not_learnt(echo: Any, way: Any) -> None:
    """After a jump that overfills the filter, the next step is as small as if nothing had happened."""
    reduce = Allreduce(echo, forms=way, network=DEFAULT)
    for density in (0.001, 0.001, 0.01, 0.01, 0.01):
        chosen = np.random.default_rng(2).random(4 * N) < density
        tensor = reduce.sum({"g": chosen.astype(np.float32)})["g"]
        assert tensor.density < 1.25 * np.count_nonzero(chosen) / chosen.size


def test_a_tensor_thought_dense_is_sampled_first(echo: Any) -> None:
    """The first step of a tensor of which nothing is known, and the step after dense ones."""
    reduce, rng = Allreduce(echo), np.random.default_rng(5)
    for density, form in (
        (0.05, "compact"),
        (1.0, "compact"),
        (1.0, "compact"),
        (1.0, "dense"),
        (0.05, "compact"),
    ):
        chosen = rng.random(N) < density
        tensor = reduce.sum({"g": chosen.astype(np.float32)})["g"]
        np.testing.assert_array_equal(tensor.values, chosen)
        assert (tensor.form, tensor.index is None) == (form, form == "dense")
        assert tensor.words_sent < 1.5 * lower_bound_bits(N, int(np.count_nonzero(chosen))) / 32 + 2048


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_workers_with_parts_of_a_moving_union(make_workers: Any, implementation: str) -> None:
    """Every worker holds a third of the union; all refine alike, also where values round to 0."""
    group = make_workers(3, 32, sparse=["g"], implementation=implementation)
    for step, density in enumerate((0.003, 0.003, 0.1, 0.0, 0.0, 0.9, 0.9, 0.9, 0.01)):
        rng = np.random.default_rng(step)
        chosen, owner = rng.random(40_001) < density, rng.integers(0, 3, 40_001)
        values = (rng.normal(size=40_001) * 10.0 ** rng.integers(-12, 1, 40_001)).astype(np.float32)
        arrays = [np.where(chosen & (owner == worker), values, np.float32(0)) for worker in range(3)]
        check(group.sum([{"g": array} for array in arrays]), arrays, slack=SLACK)
