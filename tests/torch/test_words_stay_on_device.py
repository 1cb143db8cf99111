"""Words that stay on a device for NCCL, over a stand-in for it that refuses what NCCL refuses."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gpu_device import DEVICE, bits

pytest.importorskip("triton", reason="triton is not installed")
from gpu_counts import counted
from gpu_shortage import Shortage, kernels_apart
from patience import PATIENCE_S
from torch.utils._python_dispatch import _disable_current_modes

from peelsum.allreduce import Allreduce, DeviceMemoryError, LocalSummation, SummationStalledError
from peelsum.torch import process_group_summation
from peelsum.torch.process_group_summation import ProcessGroupSummation

N, WORKERS = 1601, 2
#: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html, as far as torch has them.
_DTYPES = {torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.bfloat16}
_OPERATIONS = {dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX}


class Crew:
    """Threads that reduce with each other, as processes do over NCCL."""

    def __init__(self):
        self.barrier = threading.Barrier(WORKERS, timeout=PATIENCE_S)
        self.held = [torch.empty(0)] * WORKERS
        self.store = dist.HashStore()  # not exported, but documented


class Nccl:
    """A worker's group. NCCL has no BOR, no uint32, and no memory of the host."""

    def __init__(self, crew, rank):
        self._crew, self._rank = crew, rank

    def all_reduce(self, tensor, op):
        assert op in _OPERATIONS, f"Cannot use {op} with NCCL"
        with _disable_current_modes():
            everybody = torch.stack(self._exchanged(tensor))
            summed = everybody.sum(0, dtype=tensor.dtype)
            tensor.copy_(summed if op == dist.ReduceOp.SUM else everybody.amax(0))

    def all_gather(self, out, tensor):
        raise AssertionError("all_gather allocates as much memory as its list has")

    def gather_into_one(self, out, tensor):
        assert out.shape == (WORKERS * tensor.numel(),), "Output tensor must have size of all inputs"
        with _disable_current_modes():
            out.copy_(torch.cat(self._exchanged(tensor)))

    def _exchanged(self, tensor):
        assert tensor.dtype in _DTYPES, f"Unsupported data type for NCCL process group: {tensor.dtype}"
        assert tensor.is_contiguous(), "Tensors must be contiguous"
        # Arrays of NumPy, also under a tensor, stand for memory of the host.
        assert tensor.is_cuda or tensor.untyped_storage().resizable(), "No backend type for device type cpu"
        crew = self._crew
        crew.held[self._rank] = tensor.clone()
        crew.barrier.wait()
        everybody = list(crew.held)
        crew.barrier.wait()
        return everybody


class OverNccl(ProcessGroupSummation):
    """A `ProcessGroupSummation` as it is over NCCL, with a stand-in for its group."""

    def __init__(self, crew, rank, or_by):
        self.lanes, self.workers, self.worker_id = 32, WORKERS, rank
        self.device, self._direct_sum, self._or_method = DEVICE, None, or_by
        self._group = Nccl(crew, rank)
        self._backend, self._store, self._store_worker = "nccl", crew.store, None
        self._sums, self._watcher = 0, process_group_summation._FailureWatcher(crew.store, rank)
        self._crew = crew
        #: Whether each part's words were on the device.
        self.on_device = []

    def sum_words(self, parts, **settings):
        self.on_device += [isinstance(part.words, torch.Tensor) for part in parts if part.check is None]
        return super().sum_words(parts, **settings)

    def close(self):
        """End the sums of all, as a rank does that aborts NCCL's communicator."""
        self._group = None
        self._crew.barrier.abort()


_METHODS = {process_group_summation.ALL_GATHER: "gather_into_one"}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    for name in ("all_reduce", "all_gather", process_group_summation.ALL_GATHER):

        def call(first, second, group, name=name):
            getattr(group, _METHODS.get(name, name))(first, second)

        monkeypatch.setattr(process_group_summation.dist, name, call)


def gradients(step):
    rng = np.random.default_rng(step)
    kept = (rng.random((WORKERS, N)) < 0.03) * rng.normal(size=(WORKERS, N))
    return list(kept.astype(np.float32))


@pytest.mark.parametrize(
    ("or_by", "settings"),
    [
        ("gather", {"forms": "dense"}),
        ("max", {"forms": "sparse", "values": "compact"}),
        ("max", {"forms": "sparse", "values": "sketch"}),
        ("gather", {"forms": "sparse", "values": "sketch", "cells_per_candidate": 0.6}),
    ],
    ids=str,
)
def test_sums_of_words_that_never_leave_the_device(or_by, settings):
    """Worker 0 has its tensors on the device, worker 1 on the host; the bits are those of another backend."""
    crew, local = Crew(), LocalSummation.group(WORKERS)
    over = [OverNccl(crew, rank, or_by) for rank in range(WORKERS)]
    kinds = ("gpu", "cpu")
    reduces = [Allreduce(one, implementation=kind, **settings) for one, kind in zip(over, kinds, strict=True)]
    reduces += [Allreduce(one, **settings) for one in local]
    for step in range(2):
        arrays = gradients(step)
        ours = [torch.from_numpy(arrays[0]).to(DEVICE, copy=True), arrays[1], *arrays]
        with ThreadPoolExecutor(2 * WORKERS) as pool:
            results = list(pool.map(lambda reduce, one: reduce.sum([one])[0], reduces, ours))
        assert isinstance(results[0].values, torch.Tensor)
        for other in results[1:]:
            np.testing.assert_array_equal(bits(results[0].values), other.values.view(np.uint32))
            np.testing.assert_array_equal(results[0].total, other.total)
            assert results[0].density == other.density
    assert all(over[0].on_device)
    assert not any(over[1].on_device)


@pytest.mark.parametrize(
    ("or_by", "settings"),
    [
        ("gather", {"forms": "sparse", "values": "compact"}),
        pytest.param("max", {"forms": "sparse", "values": "sketch"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_device_without_room_goes_on_with_words_of_the_host(or_by, settings, caplog):
    """Every allocation may fail once, the backend's too; the step's other words come from the host."""
    crew, local, first = Crew(), LocalSummation.group(WORKERS), 0
    over = [OverNccl(crew, rank, or_by) for rank in range(WORKERS)]
    reduces = [Allreduce(over[0], implementation="gpu", **settings), Allreduce(over[1], **settings)]
    reduces += [Allreduce(one, **settings) for one in local]
    shortage = Shortage(1000)

    def run(reduce, array):
        if reduce is not reduces[0]:
            return reduce.sum([array])[0]
        with kernels_apart(), shortage:
            return reduce.sum([torch.from_numpy(array).to(DEVICE, copy=True)])[0]

    for step in range(100):
        arrays = gradients(step)
        with ThreadPoolExecutor(2 * WORKERS) as pool:
            results = list(pool.map(run, reduces, [*arrays, *arrays]))
        for other in results[1:]:
            np.testing.assert_array_equal(bits(results[0].values), other.values.view(np.uint32))
        if step and not shortage.struck:
            break
        shortage, first = Shortage(first + 1), first + 1
    assert first > 9
    assert sum(one.name != "peelsum.torch.state" for one in caplog.records) == first - 1


def test_without_room_for_words_each_worker_has_one_error(monkeypatch):
    """The worker without room names tensor and bytes; those that waited for its words name the worker."""
    monkeypatch.setattr(process_group_summation, "_REPORT_S", 0.1)
    crew, prepared = Crew(), OverNccl._prepare_reduction
    over = [OverNccl(crew, rank, "gather") for rank in range(WORKERS)]
    kinds = ("gpu", "cpu")
    pairs = zip(over, kinds, strict=True)
    reduces = [Allreduce(one, implementation=kind, forms="dense") for one, kind in pairs]
    full = []

    def without_room(self, part, *, tree):
        if full and isinstance(part.words, torch.Tensor):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return prepared(self, part, tree=tree)

    def run(rank):
        array = gradients(0)[rank]
        try:
            return reduces[rank].sum([torch.from_numpy(array).to(DEVICE, copy=True) if not rank else array])
        except Exception as error:
            over[rank].close()  # as the hook does
            return error

    monkeypatch.setattr(OverNccl, "_prepare_reduction", without_room)
    for _ in range(2):
        with ThreadPoolExecutor(WORKERS) as pool:
            ends = list(pool.map(run, range(WORKERS)))
        full.append(True)
    assert isinstance(ends[0], DeviceMemoryError), ends[0]
    said = "memory: worker 0 has no room for 1.00 GiB on the device, in step 2 for '0'; free memory there"
    assert str(ends[0]).startswith(said)
    assert str(ends[0]).endswith("Start again with a new summation.")
    assert isinstance(ends[1], SummationStalledError), ends[1]
    assert "worker 0 did not answer; see whether it is running" in str(ends[1])


@pytest.mark.parametrize(
    ("waits", "settings"),
    [
        (8, {"forms": "dense"}),
        (6, {"forms": "sparse", "values": "compact"}),
        pytest.param(13, {"forms": "sparse", "values": "sketch"}, marks=pytest.mark.slow),
        (8, {"forms": {"0": "auto", "1": "dense"}}),
    ],
    ids=str,
)
def test_several_tensors_wait_together(monkeypatch, waits, settings):
    """For the plan, the scales, the candidates, and the counts that the next step is chosen from."""
    monkeypatch.setitem(globals(), "WORKERS", 1)
    reduce = Allreduce(OverNccl(Crew(), 0, "gather"), implementation="gpu", **settings)
    for step in range(2):
        pieces = np.split(gradients(step)[0], [500, 1200])
        if settings["forms"] != "sparse":
            pieces = [one + 1 for one in pieces]
        with counted() as counts:
            reduce.sum([torch.from_numpy(one).to(DEVICE, copy=True) for one in pieces])
    assert counts.waits.total() <= waits, str(counts)
