"""How often the host waits for a device in a step, and how much it launches there: both must not grow.

The counts are of one worker, in the third step: what later steps keep has been made then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gpu_counts import Counts, counted
from gpu_device import DEVICE

from peelsum.allreduce import Allreduce
from peelsum.codec import gpu_together
from peelsum.summation import Part, Words

N = 1500


class Counting:
    """A backend for one worker, which counts exchanges."""

    lanes, workers, worker_id = 32, 1, 0

    def __init__(self) -> None:
        self.exchanges = 0

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        self.exchanges += 1
        return [part.words.copy() for part in parts]


def third_step(
    n: int = N, tensors: int = 1, density: float = 0.02, most_waits: int = 2, **settings: Any
) -> Counts:
    """Return the counts of the third step with tensors of random numbers.

    most_waits: how often the host may wait in an exchange.
    """
    gpu_together._NUMBERS.clear()  # numbers that earlier tests left on the device
    backend = Counting()
    reduce = Allreduce(backend, implementation="gpu", **settings)
    for step in range(3):
        rng = np.random.default_rng(step)
        arrays = [(rng.random(n) < density) * rng.normal(size=n) for _ in range(tensors)]
        ours = [torch.from_numpy(array.astype(np.float32)).to(DEVICE) for array in arrays]
        backend.exchanges = 0
        with counted() as counts:
            result = reduce.sum(ours)
        assert counts.waits.total() <= most_waits * backend.exchanges, str(counts)
        for array, one in zip(arrays, result.tensors, strict=True):
            np.testing.assert_allclose(one.values.cpu(), array, atol=1e-6)
    return counts


@pytest.mark.parametrize(
    ("waits", "launches", "settings"),
    [
        (1, 9, {"forms": "dense", "predict": True}),
        (2, 17, {"forms": "compact", "index": "bitmap"}),
        (2, 20, {"sparse": ["0"]}),
        (4, 29, {"forms": "compact", "index": "bloom"}),
        (5, 38, {"forms": "compact", "index": "two_level"}),
        (2, 23, {"forms": "sketch", "index": "bitmap", "predict": True}),
        (8, 65, {"forms": "sketch", "index": "two_level"}),
    ],
    ids=str,
)
def test_waits_and_launches_of_a_tensor(waits: int, launches: int, settings: dict[str, Any]) -> None:
    """An exchange takes a wait for its words; a second at most for a number that only the device knows."""
    counts = third_step(**settings)
    assert counts.waits.total() <= waits, str(counts)
    assert counts.launches <= launches, str(counts)
    assert counts.kernels["rounds_kernel"] == (settings.get("forms") == "sketch"), "a peel is one launch"


@pytest.mark.parametrize(("form", "density"), [("dense", 0.02), ("auto", 1.0)])
@pytest.mark.parametrize(("tensors", "elements"), [(2, 200), (100, 200), (3, 30_000)])
@pytest.mark.covering(1)
def test_a_bucket_of_dense_tensors_takes_no_more_than_one_tensor(
    tensors: int, elements: int, form: str, density: float
) -> None:
    """All tensors share each launch and each wait."""
    counts = third_step(elements, tensors, density, forms=form)
    assert counts.waits.total() == 2, str(counts)
    assert counts.launches <= 11, str(counts)


@pytest.mark.parametrize(
    ("launches", "settings"),
    [
        (21, {"forms": "compact", "index": "bitmap"}),
        (28, {"forms": "sketch", "index": "bitmap", "predict": True}),
    ],
    ids=str,
)
def test_sparse_tensors_share_launches(
    launches: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tensors take as many as five: a table holds any number of tensors."""
    monkeypatch.setattr("peelsum.allreduce.group.LARGEST", 0)  # else the host sums small ones as a group
    assert third_step(N, 2, **settings).launches <= launches


@pytest.mark.parametrize("predict", [False, True])
@pytest.mark.parametrize("index", ["bitmap", "two_level", "bloom"])
@pytest.mark.parametrize("form", ["dense", "compact", "sketch"])
@pytest.mark.covering(1)
def test_several_tensors_wait_no_more_than_one(form: str, index: str, predict: bool) -> None:
    """The host waits for all tensors' numbers at once, in every form and refinement.

    A sketch that is sent ahead with a Bloom filter takes a wait more: for the number of candidates.
    """
    third_step(
        N // 2,
        3,
        most_waits=3 if (form, index, predict) == ("sketch", "bloom", True) else 2,
        forms=form,
        index=index,
        predict=predict,
    )


def test_left_over_of_several_tensors() -> None:
    third_step(N, 3, forms="sketch", index="bitmap", cells_per_candidate=0.6)


def test_tensors_of_a_bucket_share_waits() -> None:
    """Small sparse tensors are copied to the host together, and summed there as a group."""
    counts = third_step(300, 10, sparse=[str(one) for one in range(10)])
    assert counts.waits.total() <= 3, str(counts)
