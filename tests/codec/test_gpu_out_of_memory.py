"""A device out of memory in the middle of a step: the host completes the step, and all sums are right."""

import logging
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from allreduce_workers import Workers
from gpu_device import DEVICE
from gpu_indexes import chosen
from gpu_shortage import Shortage, kernels_apart
from sums_of_floats import OnHost, check

from peelsum.allreduce import Allreduce, DeviceMemoryError, InvalidRequestError, LocalSummation, NetworkModel
from peelsum.allreduce.indexes import BlockIndex, BloomIndex
from peelsum.codec import HOST
from peelsum.codec.gpu import launch as launching
from peelsum.codec.gpu.memory import DeviceMemory

WORKERS, N = 2, 300
#: Tensors of a step, settings, the index of sparse tensors, and the mode.
STEPS = [
    (["a"], {"forms": "dense"}, None, "in place"),
    (["a", "b", "c"], {"forms": "dense"}, None, "new"),
    (["a"], {"forms": "dense"}, None, "no room"),
    (["a", "b", "c"], {"forms": {"c": "dense"}}, None, "in place"),
    (["a", "b"], {"forms": "sparse", "values": "compact"}, BlockIndex(64, refined=True), "in place"),
    (["a"], {"forms": "sparse", "average": True}, BloomIndex(3, 7, refined=False), "new"),
    (["a", "b"], {"forms": {"b": "dense"}, "values": "sketch"}, None, "in place"),
    (["a"], {"forms": "sparse", "values": "sketch", "cells_per_candidate": 0.6}, None, "no room"),
]
#: Steps with many allocations, or of whose kind there is another.
SLOW = 0, 3, 5, 7


@pytest.fixture(autouse=True)
def outside_of_kernels():
    with kernels_apart():
        yield


class Pair:
    """Two workers, the first with its tensors on the device; every bit of each sum is checked."""

    def __init__(self, names, settings, in_place):
        self.workers = Workers(WORKERS, 32, implementations=["gpu", "cpu"], **settings)
        self.names, self.in_place, self.step, self.scale = names, in_place, 0, 1.0
        self.divisor = WORKERS if settings.get("average") else 1

    def sum(self, shortage=None):
        """Sum new tensors, with a shortage at the first worker; return the workers' results."""
        self.step += 1
        arrays = [self.arrays(worker) for worker in range(WORKERS)]
        ours = {name: torch.from_numpy(array.copy()).to(DEVICE) for name, array in arrays[0].items()}
        given = ours, {name: array.copy() for name, array in arrays[1].items()}

        def run(worker, reduce):
            with shortage if shortage is not None and worker == 0 else nullcontext():
                try:
                    return reduce.sum(given[worker], in_place=self.in_place)
                except DeviceMemoryError as error:
                    if error.result is None or self.in_place:
                        raise
                    return error.result

        results = self.workers.each(run)
        for name in self.names:
            tensors = [array[name] for array in arrays]
            check([OnHost(result) for result in results], tensors, name, divisor=self.divisor)
            if self.in_place:
                assert results[0][name].values.data_ptr() == ours[name].data_ptr()
        return results

    def arrays(self, worker):
        rng = np.random.default_rng([self.step, worker])
        sizes = {"a": N, "b": 33, "c": 64}
        drawn = {name: (rng.random(n) < 0.05) * rng.normal(size=n) for name, n in sizes.items()}
        return {name: (self.scale * drawn[name]).astype(np.float32) for name in self.names}


@pytest.mark.parametrize(
    ("names", "settings", "index", "mode"),
    [
        pytest.param(*step, marks=[pytest.mark.slow] if number in SLOW else [])
        for number, step in enumerate(STEPS)
    ],
    ids=lambda value: str(value).replace("'", ""),
)
def test_every_allocation_of_a_step_may_fail(names, settings, index, mode, caplog, monkeypatch):
    """Step after step, a later allocation fails, until a step makes fewer; all workers' sums are right."""
    chosen(monkeypatch, index)
    pair, first = Pair(names, settings, mode == "in place"), 0
    pair.sum()
    while True:
        caplog.clear()
        shortage = Shortage(first, lasting=mode != "new")
        with caplog.at_level(logging.ERROR, "peelsum"):
            pair.sum(shortage)
        assert bool(caplog.records) == shortage.struck
        if not shortage.struck:
            break
        message = caplog.messages[0]
        assert "memory: worker 0 has no room for 2.50 MiB on the device, in step" in message
        assert any(repr(name) in message for name in names), message
        first += 1
    assert first >= 5, "a step allocates more than this"
    pair.sum()


def test_sums_beyond_32_bits_that_find_no_room_leave_tensors_as_they_were():
    """The step goes ahead, and its numbers are larger than expected; its last allocations fail."""
    settings = {"forms": "dense", "network": NetworkModel(1.0, 10.0)}
    pair, last = Pair(["a"], settings, in_place=True), 0
    for back in range(4):
        pair.scale = 1.0
        for _ in range(6):
            pair.sum()
        pair.scale = 1e4
        shortage = Shortage(last - back - 1 if last else 1000, lasting=True)
        results = pair.sum(shortage)
        assert results[0].one_round
        assert results[0]["a"].total_at.dtype in (np.int64, torch.int64)
        assert shortage.struck == bool(last)
        last = last or shortage.count
    assert last > 10


def test_a_kernel_that_fails_leaves_tensors_as_they_were(monkeypatch):
    """Each launch of a step fails once, as Triton's modules do; then the host computes the step."""
    pair, launched, first = Pair(["a", "b", "c"], {"forms": {"c": "dense"}}, in_place=True), [0], 0
    launch = launching.run

    def failing(*arguments, **options):
        launched[0] += 1
        if launched[0] == first + 1:
            raise RuntimeError("Triton Error [CUDA]: out of memory")
        launch(*arguments, **options)

    monkeypatch.setattr(launching, "run", failing)
    while launched[0] >= first:
        launched[0] = 0
        pair.sum()
        first += 1
    assert first > 3


def test_the_hosts_results_do_not_take_torchs_default_dtype():
    pair, before = Pair(["a"], {"forms": "dense"}, in_place=False), torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        pair.sum(Shortage(0))
    finally:
        torch.set_default_dtype(before)


class SwitchedOff:
    """A backend that lacks memory of its own in the middle of a sum."""

    lanes, workers, worker_id = 32, 1, 0

    def sum_words(self, parts):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")


def test_a_backend_that_lacks_memory_cannot_go_on():
    reduce = Allreduce(SwitchedOff(), implementation="gpu", forms="dense")
    reduce._agreed[reduce._plan({"a": torch.ones(3, device=DEVICE)}).request] = None
    with pytest.raises(DeviceMemoryError, match=r"1\.00 GiB on the device, in step 1 .* new summation"):
        reduce.sum({"a": torch.ones(3, device=DEVICE)})
    with pytest.raises(InvalidRequestError, match=r"an earlier call failed \(.* in step 1"):
        reduce.sum({"a": torch.ones(3, device=DEVICE)})


def test_results_for_which_there_is_no_room_are_on_the_host():
    reduce = Allreduce(LocalSummation.group(1)[0], implementation="gpu", forms="dense")
    gradient = torch.full((3,), 2.5, device=DEVICE)
    for _ in range(2):
        with (
            Shortage(0, lasting=True),
            pytest.raises(
                DeviceMemoryError, match=r"for 'a'; free .*`result` has the sums, on the host"
            ) as raised,
        ):
            reduce.sum({"a": gradient})
        assert raised.value.result is not None
        assert raised.value.result["a"].values.tolist() == [2.5] * 3
        assert raised.value.result["a"].values.device.type == "cpu"
    assert reduce.sum({"a": gradient})["a"].values.tolist() == [2.5] * 3


def test_other_errors_are_raised_as_they_are(monkeypatch):
    def broken(self, count):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(DeviceMemory, "words", broken)
    reduce = Allreduce(LocalSummation.group(1)[0], implementation="gpu", forms="dense")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        reduce.sum({"a": torch.ones(3, device=DEVICE)})


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "Triton Error [CUDA]: out of memory"])
def test_errors_of_pinned_memory_and_of_modules_count(text):
    assert DeviceMemory().out_of_memory(RuntimeError(text)) == "what a copy or a kernel needs"


def test_strided_tensors_of_every_type_reach_the_host():
    wide = torch.arange(48, dtype=torch.float32, device=DEVICE).view(6, 8)
    memory = DeviceMemory()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for part in (wide, wide.t(), wide[1::2, ::3], wide[2:2], wide[3, 3]):
            narrow = wide.to(dtype).as_strided(part.shape, part.stride(), part.storage_offset())
            (near,), _ = HOST.flatten([memory.host_copy(narrow)], [None])
            np.testing.assert_array_equal(near, part.float().reshape(-1).cpu().numpy())
