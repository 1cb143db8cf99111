"""Small dense tensors that are summed in a bundle have the bits, words and scales of tensors summed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sums_of_floats import check

from peelsum.allreduce import Allreduce
from peelsum.allreduce.bundle import LARGEST_DENSE
from peelsum.codec import BFloat16

WORKERS, STEPS = 3, 3
LENGTHS = [1, 31, 32, 33, 64, 100, LARGEST_DENSE - 1, LARGEST_DENSE, LARGEST_DENSE + 1, 0, 7]


def drawn(worker: int, step: int) -> dict[str, Any]:
    """Return tensors of many lengths and magnitudes, a sparse one, and values that are zero or not finite."""
    rng = np.random.default_rng((worker, step))
    tensors: dict[str, Any] = {}
    for number, length in enumerate(LENGTHS):
        spread = rng.integers(-20, 20, length)
        tensors[f"t{number}"] = np.ldexp(rng.normal(size=length), spread + 8 * number).astype(np.float32)
    tensors["sparse"] = np.where(rng.random(70_000) < 0.001, np.float32(1.5), np.float32(0))
    tensors["half"] = rng.normal(size=50).astype(np.float16)
    tensors["brain"] = BFloat16(rng.integers(0, 0x7F80, (5, 9), np.uint16))
    tensors["zeros"] = np.full(40, -0.0, np.float32)
    tensors["scalar"] = np.array(-2.5, np.float32)
    tensors["subnormal"] = np.full(40, 1e-45, np.float32)
    tensors["infinite"] = np.full(33, np.inf if (worker, step) == (1, 1) else 1.0, np.float32)
    tensors["nan"] = np.full((2, 17), np.nan if (worker, step) == (2, 2) else 1.0, np.float32)
    return tensors


def outcome(result: Any) -> dict[str, Any]:
    """Return all that a result says of a tensor, as values that can be compared."""
    fixed, octaves = result.fixed, None
    if fixed is not None and fixed.octaves is not None:
        octaves = (fixed.octaves.tolist(), fixed.block)
    return {
        "values": result.values.view(np.uint32).tolist(),
        "integers": (result.quantized_at.tolist(), result.total_at.tolist()),
        "scales": (fixed, octaves),
        "rest": (result.form, result.finite, result.words_sent, result.error_bound, result.shape),
    }


@pytest.mark.parametrize("average", [False, True])
def test_workers_with_and_without_bundles_sum_with_each_other(make_workers: Any, average: bool) -> None:
    apart = make_workers(WORKERS, average=average, implementation="reference")
    mixed = make_workers(WORKERS, average=average)
    mixed.reduces[1] = Allreduce(mixed.summations[1], average=average, implementation="reference")
    for step in range(STEPS):
        inputs = [drawn(worker, step) for worker in range(WORKERS)]
        expected, results = apart.sum(inputs), mixed.sum(inputs)
        for result, want in zip(results, expected, strict=True):
            assert (result.wire_bytes, result.digest) == (want.wire_bytes, want.digest)
            for name in inputs[0]:
                assert outcome(result[name]) == outcome(want[name]), (step, name)
        assert not np.isfinite(results[0]["infinite"].values).any() or step != 1
        assert np.isfinite(results[0]["scalar"].values)


def test_sums_are_those_of_an_independent_computation(make_workers: Any) -> None:
    workers = make_workers(WORKERS)
    inputs = [drawn(worker, 0) for worker in range(WORKERS)]
    results = workers.sum(inputs)
    for name in ("t1", "t3", "t5", "t7"):
        check([{"g": result[name]} for result in results], [tensors[name] for tensors in inputs])


def test_results_are_written_over_tensors(make_workers: Any) -> None:
    apart, over = make_workers(WORKERS), make_workers(WORKERS)
    inputs = [drawn(worker, 0) for worker in range(WORKERS)]
    expected = apart.sum(inputs)
    before: list[dict[str, NDArray[np.float32]]] = [
        {name: tensor.copy() for name, tensor in tensors.items() if isinstance(tensor, np.ndarray)}
        for tensors in inputs
    ]
    results = over.each(lambda worker, reduce: reduce.sum(inputs[worker], in_place=True))
    for tensors, result, want, old in zip(inputs, results, expected, before, strict=True):
        for name, tensor in tensors.items():
            assert outcome(result[name])["values"] == outcome(want[name])["values"]
            if isinstance(tensor, np.ndarray) and tensor.size:
                written = tensor.dtype == np.float32
                assert np.shares_memory(result[name].values, tensor) == written
                assert written or tensor.tobytes() == old[name].tobytes()


def test_steps_do_not_share_results(make_workers: Any) -> None:
    """The results of a step keep their values through the next step."""
    workers = make_workers(1)
    first = workers.sum([drawn(0, 0)])[0]
    small = first["t1"].values
    assert (small.base if small.base is not None else small).nbytes == small.nbytes
    kept = {name: outcome(first[name]) for name in first}
    workers.sum([drawn(0, 1)])
    assert {name: outcome(first[name]) for name in first} == kept
