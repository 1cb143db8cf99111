"""Random jobs of any number of tensors: each sum is the exact one, whatever else shares its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sums_of_floats import FAR, SLOW, check, workers_of

from peelsum.allreduce import Allreduce, BitmapIndex, BlockIndex, BloomIndex, Index, NetworkModel, costs
from peelsum.allreduce import LocalSummation as Local
from peelsum.allreduce.plan import AGREEMENT_WORDS

SIZES = [0, 1, 2, 31, 32, 33, 64, 95, 129, 1000, 1024, 4097]
#: Indexes that are too small and too large, refined or not.
INDEXES: list[Index] = [
    BitmapIndex(),
    *(BlockIndex(block, refined) for block in (2, 32, 128, 4096) for refined in (False, True)),
    *(BloomIndex(*size, refined) for size in ((1, 1), (3, 2), (8, 40)) for refined in (False, True)),
]


def drawn(draw: Callable[..., Any], n: int, workers: int, seed: int) -> list[NDArray[np.float32]]:
    """Return a tensor of each worker: of some density and magnitude, in rows or not."""
    density = draw(st.sampled_from([0.0, 0.002, 0.03, 0.3, 1.0]))
    arrays = workers_of(n, workers, density, seed, spread=draw(st.integers(1, 6)))
    scale = np.float32(10.0 ** draw(st.sampled_from([-44, -30, -6, 0, 12, 30])))
    kept = np.arange(n) // 64 % 3 == 1 if draw(st.booleans()) else np.ones(n, np.bool_)
    return [np.where(kept, array * scale, np.float32(-0.0)).astype(np.float32) for array in arrays]


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> list[Index]:
    """Let the choice of an index fall on what the list holds, if anything."""
    allowed, real = list[Index](), costs.indexes
    monkeypatch.setattr(costs, "indexes", lambda *given: iter(allowed) if allowed else real(*given))
    return allowed


@settings(
    deadline=None,
    derandomize=True,
    max_examples=350,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the fixtures hold no state
)
@given(data=st.data())
def test_every_sum_of_a_job_is_exact(make_workers: Any, forced: list[Index], data: st.DataObject) -> None:
    draw = data.draw
    forced[:] = draw(st.lists(st.sampled_from(INDEXES), max_size=3))
    workers, tensors = draw(st.integers(1, 5)), draw(st.sampled_from([0, 1, 2, 5, 12]))
    sizes = {f"t{m}": draw(st.sampled_from(SIZES)) for m in range(tensors)}
    choices: dict[str, Any] = {
        "forms": {name: draw(st.sampled_from(["dense", "sparse", "auto"])) for name in sizes},
        "values": draw(st.sampled_from(["compact", "sketch"])),
        "network": draw(st.sampled_from([SLOW, FAR, NetworkModel()])),
        "cells_per_candidate": draw(st.sampled_from([None, 0.4])),
        "average": draw(st.booleans()),
    }
    group = make_workers(workers, draw(st.integers(1, 64)), **choices)
    for worker in range(1, workers, 2):
        there = group.summations[worker]
        group.reduces[worker] = Allreduce(there, implementation="reference", **choices)
    for step in range(draw(st.integers(1, 3))):
        arrays = {name: drawn(draw, n, workers, step * 100 + m) for m, (name, n) in enumerate(sizes.items())}
        bad = draw(st.sampled_from([None, *sizes])) if draw(st.booleans()) else None
        if bad is not None and sizes[bad]:
            arrays[bad][draw(st.integers(0, workers - 1))][-1] = draw(st.sampled_from([np.nan, -np.inf]))
        given_now = [{name: arrays[name][w].copy() for name in sizes} for w in range(workers)]
        in_place = draw(st.booleans())
        results = group.each(lambda w, one: one.sum(given_now[w], in_place=in_place))  # noqa: B023
        for name, n in sizes.items():
            if name == bad and n:
                assert all(np.isnan(one[name].values).all() for one in results)
                assert not any(one[name].total.any() or one[name].quantized.any() for one in results)
                continue
            first = check(results, arrays[name], name, divisor=workers if choices["average"] else 1)
            own = sum(one[name].quantized.astype(np.int64) for one in results)
            np.testing.assert_array_equal(own, first.total)
        if in_place:
            for mine, result in zip(given_now, results, strict=True):
                for name, array in mine.items():
                    np.testing.assert_array_equal(array, result[name].values)


class Recorded(Local):
    """A sum in memory that counts words and exchanges."""

    words = exchanges = 0

    def sum_words(self, parts: Any) -> Any:
        self.words += sum(part.words.size for part in parts)
        self.exchanges += 1
        return super().sum_words(parts)


@pytest.mark.parametrize("values", ["compact", "sketch"])
def test_words_of_tensors_are_the_words_that_were_sent(values: Any) -> None:
    rng = np.random.default_rng(3)
    (backend,) = Recorded.group(1, 32)
    reduce = Allreduce(backend, values=values, forms={"a": "dense", "zero": "sparse"})
    for _ in range(4):
        before = backend.words, backend.exchanges
        result = reduce.sum(
            {
                "a": rng.normal(size=70).astype(np.float32),
                "b": workers_of(5000, 1, 0.02, 4)[0],
                "c": workers_of(1000, 1, 0.1, 5)[0],
                "zero": np.zeros(100, np.float32),
                "none": np.zeros(0, np.float32),
            }
        )
        sent = sum(one.words_sent for one in result.tensors)
        assert backend.words - before[0] == sent + AGREEMENT_WORDS
        assert backend.exchanges - before[1] <= 3
        assert sum(result.tally.words_sent().values()) == sent


def test_mixtures_stay_near_the_bound() -> None:
    """An embedding of 1 % beside a layer of 15 % and dense layers, where only words count."""
    (backend,) = Recorded.group(1, 256)
    reduce, bound = Allreduce(backend, network=SLOW), 0.0
    tensors = {"rows": (2**18, 0.01), "layer": (2**17, 0.15), "thin": (2**17, 0.002), "full": (2**15, 1.0)}
    for step in range(3):
        drawn_now = {
            name: workers_of(n, 1, density, 10 * step + n % 97)[0] for name, (n, density) in tensors.items()
        }
        bound = sum(costs.lower_bound_bits(n.size, np.count_nonzero(n)) / 32 for n in drawn_now.values())
        before = backend.words
        reduce.sum(drawn_now)
    assert backend.words - before < 1.25 * bound
