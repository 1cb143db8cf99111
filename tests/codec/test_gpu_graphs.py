"""Captured launches of small dense tensors: the same bits, fewer launches, and nothing that goes stale.

Without a GPU, a recorder stands in for CUDA graphs.
"""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from gpu_counts import counted
from gpu_device import DEVICE, REAL, bits
from gpu_recorder import Recorder, RefusedError, recording
from numpy.typing import NDArray

from peelsum.allreduce import Allreduce, InvalidRequestError, LocalSummation, StepResult
from peelsum.codec.gpu_graphs import Phase

SIZES = [1, 31, 32, 33, 64, 100, 7]
Arrays = dict[str, NDArray[np.float32]]


@pytest.fixture(autouse=True)
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    return recording(monkeypatch)


def arrays_of(step: int, worker: int) -> Arrays:
    """Return tensors whose exponents change with every step; some are zero, some not finite."""
    rng, arrays = np.random.default_rng([step, worker]), {}
    for m, n in enumerate(SIZES):
        drawn = rng.normal(size=n) * 10.0 ** rng.integers(-30, 9)
        arrays[str(m)] = (drawn * (step != 5 and m != step)).astype(np.float32)
    if step in (3, 4):
        arrays["5"][3] = np.nan
    return arrays


def there(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()).to(DEVICE) for name, array in arrays.items()}


class Alone:
    """A backend of one worker."""

    lanes, workers, worker_id = 32, 1, 0

    def sum_words(self, parts: Any) -> Any:
        return [part.words.copy() for part in parts]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_replayed_steps_have_the_bits_of_the_host(
    recorders: list[Recorder], in_place: bool, average: bool
) -> None:
    """Tensors lie elsewhere in every step. Results of earlier steps stay as they were."""
    group: list[Any] = LocalSummation.group(2)
    ours = Allreduce(group[0], forms="dense", implementation="gpu", graphs=True, average=average)
    theirs = Allreduce(group[1], forms="dense", average=average)
    steps: list[tuple[StepResult, StepResult]] = []
    for step in range(8):
        tensors = there(arrays_of(step, 0))
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(theirs.sum, arrays_of(step, 1))
            steps.append((ours.sum(tensors, in_place=in_place), other.result()))
    for step, (one, other) in enumerate(steps):
        arrays = arrays_of(step, 0)
        for name in one:
            np.testing.assert_array_equal(bits(one[name].values), other[name].values.view(np.uint32))
            np.testing.assert_array_equal(one[name].total, other[name].total)
            assert one[name].finite == other[name].finite
            np.testing.assert_equal(one[name].density, other[name].density)
            if one[name].fixed is not None:
                scaled = np.rint(arrays[name].astype(np.float64) * 2.0 ** one[name].scales)
                np.testing.assert_array_equal(one[name].quantized, scaled.astype(np.int64))
    assert REAL or sorted(one.replays for one in recorders) == [6, 6, 7]


def test_a_bucket_takes_fewer_launches(recorders: list[Recorder]) -> None:
    """A replay counts as one launch, for the kernels and copies in it."""
    launches, waits = {}, {}
    for graphs in (False, True):
        reduce = Allreduce(Alone(), forms="dense", implementation="gpu", graphs=graphs)
        for step in range(3):
            before = sum(one.replays for one in recorders)
            with counted() as counts:
                reduce.sum(there(arrays_of(0, step)))
        replays = 3 if REAL and graphs else sum(one.replays for one in recorders) - before
        launches[graphs], waits[graphs] = counts.launches + replays, counts.waits.total()
    assert waits == {False: 2, True: 2}
    assert launches[True] <= launches[False] - 4


def test_without_gpu_kernels_there_is_nothing_to_capture() -> None:
    with pytest.raises(InvalidRequestError, match="graphs: True does not work with the cpu kernels; use"):
        Allreduce(Alone(), graphs=True)


def test_other_lengths_have_other_buffers(recorders: list[Recorder]) -> None:
    reduce = Allreduce(LocalSummation.group(1)[0], forms="dense", implementation="gpu", graphs=True)
    for step in range(6):
        size = [40, 50][step % 2]
        values = torch.full((size,), step + 1.5, device=DEVICE)
        assert reduce.sum({"a": values})["a"].values.tolist() == [step + 1.5] * size
    assert REAL or len(recorders) == 6


@pytest.mark.skipif(REAL, reason="a graph does not refuse it")
class TestRecorder:
    """The stand-in refuses what would go wrong in a graph."""

    def test_freed_memory(self) -> None:
        held = [torch.ones(3)]
        phase = Phase(lambda: one_zeroed(held[0]), DEVICE)
        for _ in range(3):
            phase.run()
        held[0] = torch.ones(3)
        gc.collect()
        with pytest.raises(RefusedError, match="memory of the graph has been freed"):
            phase.run()

    @pytest.mark.parametrize("launches", [lambda one: one + 1, lambda one: one.item()], ids=["new", "read"])
    def test_what_cannot_be_captured(self, launches: Any) -> None:
        one = torch.ones(1)
        phase = Phase(lambda: launches(one), DEVICE)
        phase.run()
        with pytest.raises(RefusedError, match="allocates, or reads a number"):
            phase.run()

    def test_numbers_stay_as_they_were(self) -> None:
        """A launch whose argument is not in memory of the phase repeats the captured one."""
        into, number = torch.zeros(1), [0.0]

        def launches() -> None:
            into.fill_(number[0])

        phase = Phase(launches, DEVICE)
        for number[0] in (1.0, 2.0, 3.0):
            phase.run()
        assert into.item() == 2.0


def one_zeroed(tensor: torch.Tensor) -> None:
    tensor.zero_()
