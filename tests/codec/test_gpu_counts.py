"""How often the host waits for a device in a step, what it launches there, and calls: none must grow.

The counts are of one worker, in a step of which nothing is new: the device has the table of tiles then.
"""

import numpy as np
import pytest
import torch
from allreduce_workers import Echo
from gpu_counts import calls_outside_launches, compiled_variants, counted
from gpu_device import DEVICE
from gpu_indexes import INDEXES, chosen

from peelsum.allreduce import Allreduce, History
from peelsum.codec import warm_up

N = 1500
_SPARSE, _BLOCKS, _REFINED, _BLOOM, _REFINED_BLOOM = INDEXES


def late_step(n, tensors, density=0.02, steps=3, steady=False, **settings):
    """Return the counts of a step with tensors of random numbers, and what counts the calls of the next one.

    steady: whether all steps have the same numbers. If not, some blocks exceed their predicted exponents.
    """
    history = History()
    # The interpreter is slow: only the last two steps are a device's, as the first of them copies the table.
    on_host = Allreduce(Echo(), implementation="cpu", history=history, **settings)
    reduce = Allreduce(Echo(), implementation="gpu", history=history, **settings)
    for step in range(steps):
        rng = np.random.default_rng(0 if steady else step)
        arrays = [(rng.random(n) < density) * rng.normal(size=n) for _ in range(tensors)]
        for array in arrays:
            array[0] = 1.0  # further launches leave dense tensors out that are zero
        ours = [torch.from_numpy(array.astype(np.float32)).to(DEVICE) for array in arrays]
        with counted() as counts:
            result = (reduce if step >= steps - 2 else on_host).sum(ours)
        for array, one in zip(arrays, result.tensors, strict=True):
            np.testing.assert_allclose(torch.as_tensor(one.values).cpu(), array, atol=1e-6)
    return counts, lambda: calls_outside_launches(lambda: reduce.sum(ours)).total()


@pytest.mark.parametrize("tensors", [1, 5, 100])
@pytest.mark.parametrize(
    ("launches", "waits", "calls", "settings"),
    [
        (10, 2, 119, {"forms": "dense"}),
        (12, 2, 133, {"forms": "sparse", "values": "sketch"}),
        (12, 3, 128, {"forms": "sparse", "values": "compact"}),
    ],
    ids=["dense", "sketch", "compact"],
)
def test_a_steady_step_takes_few(launches, waits, calls, settings, tensors):
    """One launch puts tensors that lie apart end to end. `compact` waits in each of two rounds."""
    counts, count_calls = late_step(3000 // tensors, tensors, steps=5, steady=True, **settings)
    assert counts.launches <= launches, str(counts)
    assert counts.waits.total() <= waits, str(counts)
    assert count_calls() <= calls


@pytest.mark.parametrize("tensors", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("waits", "launches", "settings", "index"),
    [
        (3, 11, {"forms": "dense", "values": "compact"}, None),
        (9, 44, {"forms": "dense"}, None),
        (3, 12, {"forms": "sparse", "values": "compact"}, _SPARSE),
        (6, 36, {"forms": "sparse", "values": "compact"}, _BLOCKS),
        (6, 36, {"forms": "sparse", "values": "compact"}, _REFINED),
        (5, 29, {"forms": "sparse", "values": "compact"}, _BLOOM),
        (6, 37, {"forms": "sparse", "values": "compact"}, _REFINED_BLOOM),
        (2, 12, {"forms": "sparse", "values": "sketch"}, _SPARSE),
        (6, 32, {"forms": "sparse", "values": "sketch", "cells_per_candidate": 0.6}, _SPARSE),
    ],
    ids=str,
)
@pytest.mark.covering(1)
def test_a_step_takes_the_same_for_any_number_of_tensors(
    waits, launches, settings, index, tensors, monkeypatch
):
    """All tensors share each launch and each wait."""
    chosen(monkeypatch, index)
    counts, _ = late_step(3000 // tensors, tensors, **settings)
    assert counts.waits.total() <= waits, str(counts)
    assert counts.launches <= launches, str(counts)
    # What does not peel at first is peeled again with a second sketch.
    peels = 0 if settings.get("values") != "sketch" else 2 if "cells_per_candidate" in settings else 1
    assert counts.kernels["rounds_kernel"] == peels, "a peel is one launch"


@pytest.mark.parametrize("tensors", [2, 20])
def test_waits_do_not_grow_with_indexes_or_dense_tensors_of_few_numbers(tensors, monkeypatch):
    """Several indexes are decoded before the host waits; dense sums are looked at together."""
    chosen(monkeypatch, *INDEXES)
    sparse, _ = late_step(101 + tensors, tensors, forms="sparse", values="compact")
    assert sparse.waits.total() <= 6, str(sparse)
    dense, _ = late_step(N // tensors, tensors, 0.2)
    assert dense.waits.total() <= 3, str(dense)


def test_after_warm_up_a_step_compiles_nothing():
    """Other workers would wait for it."""
    with compiled_variants() as warm:
        warm_up("gpu")
    with compiled_variants() as later:
        for settings in (
            {"forms": "dense"},
            {"forms": "sparse", "values": "sketch"},
            {"forms": "sparse", "values": "compact"},
        ):
            for steady, steps in ((True, 3), (False, 3), (True, 1)):
                late_step(600, 5, steady=steady, steps=steps, **settings)
    assert later <= warm, sorted(later - warm, key=str)
