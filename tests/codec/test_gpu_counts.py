"""How often the host waits for a device in a step, and how much it launches there: both must not grow.

The counts are of one worker, in the third step: the device has the rows of the table then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from allreduce_workers import Echo
from gpu_counts import Counts, counted
from gpu_device import DEVICE
from gpu_indexes import INDEXES, chosen

from peelsum.allreduce import Allreduce

N = 1500
#: Copies of a new table, whose three arrays are staged, and of dense places, if a dense tensor is zero.
_COPIED_TABLE = 8
_SPARSE, _BLOCKS, _REFINED, _BLOOM, _REFINED_BLOOM = INDEXES


def third_step(n: int, tensors: int, density: float = 0.02, **settings: Any) -> Counts:
    """Return the counts of the third step with tensors of random numbers."""
    reduce = Allreduce(Echo(), implementation="gpu", **settings)
    for step in range(3):
        rng = np.random.default_rng(step)
        arrays = [(rng.random(n) < density) * rng.normal(size=n) for _ in range(tensors)]
        ours = [torch.from_numpy(array.astype(np.float32)).to(DEVICE) for array in arrays]
        with counted() as counts:
            result = reduce.sum(ours)
        for array, one in zip(arrays, result.tensors, strict=True):
            np.testing.assert_allclose(one.values.cpu(), array, atol=1e-6)
    return counts


@pytest.mark.parametrize("tensors", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("waits", "launches", "settings", "index"),
    [
        (3, 16, {"forms": "dense", "values": "compact"}, None),
        (12, 80, {"forms": "dense"}, None),
        (6, 22, {"forms": "sparse", "values": "compact"}, _SPARSE),
        (8, 39, {"forms": "sparse", "values": "compact"}, _BLOCKS),
        (8, 39, {"forms": "sparse", "values": "compact"}, _REFINED),
        (8, 42, {"forms": "sparse", "values": "compact"}, _BLOOM),
        (8, 42, {"forms": "sparse", "values": "compact"}, _REFINED_BLOOM),
        (18, 113, {"forms": "sparse", "values": "sketch"}, _SPARSE),
        (18, 113, {"forms": "sparse", "values": "sketch", "cells_per_candidate": 0.6}, _SPARSE),
    ],
    ids=str,
)
@pytest.mark.covering(1)
def test_a_step_takes_the_same_for_any_number_of_tensors(
    waits: int,
    launches: int,
    settings: dict[str, Any],
    index: Any,
    tensors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tensors share each launch and each wait."""
    chosen(monkeypatch, index)
    counts = third_step(3000 // tensors, tensors, **settings)
    assert counts.waits.total() <= waits, str(counts)
    assert counts.launches <= launches + _COPIED_TABLE, str(counts)
    assert counts.kernels["rounds_kernel"] == (settings.get("values") == "sketch"), "a peel is one launch"


@pytest.mark.parametrize("tensors", [2, 20])
def test_waits_do_not_grow_with_indexes_or_dense_tensors_of_few_numbers(
    tensors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several indexes are decoded before the host waits; dense sums are looked at together."""
    chosen(monkeypatch, *INDEXES)
    sparse = third_step(101 + tensors, tensors, forms="sparse", values="compact")
    assert sparse.waits.total() <= 10, str(sparse)
    dense = third_step(N // tensors, tensors, 0.2)
    assert dense.waits.total() <= 8, str(dense)
