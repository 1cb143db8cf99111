"""Tensors in ever new sizes: what is remembered of them is bounded, and the same on all workers."""

from __future__ import annotations

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from patience import PATIENCE_S

from peelsum.allreduce import Allreduce, LocalSummation, allreduce, history
from peelsum.compress import CompressedSum, TopK, compressed_sum

#: More than any cache of sizes holds.
SIZES = 1100
WORKERS = 2


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_sizes() -> None:
    (seat,) = LocalSummation.group(1)
    summed = Allreduce(seat)

    def sum_sizes(begin: int) -> int:
        for n in range(begin, begin + SIZES):
            summed.sum({"": np.ones(n, np.float32)})
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        sum_sizes(1)  # fills the caches of a fixed size
        before = sum_sizes(1 + SIZES)
        after = sum_sizes(1 + 2 * SIZES)
    finally:
        tracemalloc.stop()
    assert (after - before) / SIZES < 100, "bytes are kept for each size"


def tensors(worker: int, step: int) -> dict[str, np.ndarray]:
    """Two tensors of sparse integers, of which few are alike in size from step to step."""
    drawn = np.random.default_rng(step)
    sizes = drawn.choice([33, 100, 5000, 9000, 12000], 2, replace=False)
    rows = np.random.default_rng((worker, step))
    return {
        name: (rows.integers(-9, 9, n) * (rows.random(n) < 0.05)).astype(np.float32)
        for name, n in zip(("a", "b"), sizes, strict=True)
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_workers_that_forget_still_agree(monkeypatch, compressed: bool) -> None:
    monkeypatch.setattr(history, "_SIZES", 2)
    monkeypatch.setattr(allreduce, "_REMEMBERED", 2)
    monkeypatch.setattr(allreduce, "_AGREED", 2)
    monkeypatch.setattr(compressed_sum, "_AGREED", 2)

    def work(seat: LocalSummation) -> list[dict[str, np.ndarray]]:
        summed = Allreduce(seat)
        if compressed:
            summed = CompressedSum(seat, TopK(1.0), error_feedback=False, average=False)
        results = [summed.sum(tensors(seat.worker_id, step)) for step in range(60)]
        return [{one.name: one.values for one in result.tensors} for result in results]

    with ThreadPoolExecutor(WORKERS) as pool:
        outcomes = [pool.submit(work, seat) for seat in LocalSummation.group(WORKERS)]
        for results in (one.result(PATIENCE_S) for one in outcomes):
            for step, result in enumerate(results):
                given = [tensors(worker, step) for worker in range(WORKERS)]
                for name, values in result.items():
                    np.testing.assert_array_equal(values, given[0][name] + given[1][name])
