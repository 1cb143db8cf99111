"""Gradients on a device, summed there by the codec's GPU kernels: the bits that ranks without one get.

Without a GPU Triton's interpreter runs the kernels, one launch at a time: so there is one bucket here.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch_training as training
from gpu_device import DEVICE
from gpu_shortage import Shortage, kernels_apart
from patience import PATIENCE_S
from torch_alone import Sums, group_of_one, in_time

from peelsum.allreduce import Allreduce, InvalidRequestError, LocalSummation, SummationStalledError
from peelsum.allreduce.allreduce import Reducer
from peelsum.torch import HookError, SwitchAllreduceState, fsdp_hook
from peelsum.torch.buckets import Bucket, _Streams, average

pytest.importorskip("triton", reason="triton is not installed")
SIZES = [700, 33, 0, 1]


def in_place(allreduce):
    """The sum of a bucket by an all-reduce."""
    reducer = Reducer()
    reducer.connect(None, None)
    return reducer.bucket(lambda turns: allreduce)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_device_and_a_host_sum_with_each_other(dtype):
    """Worker 0's gradients stay on the device, the other's are on the host; two steps, with a NaN in one."""
    group = zip(LocalSummation.group(2), ("gpu", "cpu"), strict=True)
    reduces = [Allreduce(one, average=True, implementation=kind) for one, kind in group]
    names = tuple(str(size) for size in SIZES)
    sums = [partial(average, in_place(one), on_host=n == 1) for n, one in enumerate(reduces)]
    generator = torch.Generator().manual_seed(3)
    for step in range(2):
        own = [torch.randn(sum(SIZES), generator=generator).to(dtype) for _ in range(2)]
        for one in own:
            one[::3] = 0
        own[1][710] = float("nan") if step else 1.0
        buffers = [own[0].to(DEVICE, copy=True), own[1].clone()]
        with ThreadPoolExecutor(2) as pool:
            shapes = [torch.Size([size]) for size in SIZES]
            buckets = [{names: Bucket(buffer, shapes)} for buffer in buffers]
            tasks = [pool.submit(one, each, step) for one, each in zip(sums, buckets, strict=True)]
            results = [task.result(PATIENCE_S) for task in tasks]
        assert isinstance(results[0].tensors[0].values, torch.Tensor)
        averages = [buffer.float().cpu() for buffer in buffers]
        torch.testing.assert_close(averages[0], averages[1], rtol=0, atol=0, equal_nan=True)
        assert averages[0][700:733].isnan().all() == bool(step)
        tolerance = 1e-6 if dtype == torch.float32 else 1e-2
        expected = (own[0].float() + own[1].float()) / 2
        torch.testing.assert_close(averages[0][:700], expected[:700], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_goes_on_while_the_device_has_no_room(dtype):
    """Gradients get the averages of the host's sums; the error is logged, not raised."""
    (allreduce,) = (Allreduce(one, implementation="gpu") for one in LocalSummation.group(1))
    total = in_place(allreduce)
    for step in range(2):
        buffer = torch.linspace(-1, 1, 40, device=DEVICE, dtype=dtype)
        bucket, before = Bucket(buffer, [torch.Size([40])]), buffer.clone()
        with kernels_apart(), Shortage(0, lasting=True) as shortage:
            average(total, {("a",): bucket}, step, on_host=False)
        assert shortage.struck
        torch.testing.assert_close(buffer, before, rtol=1e-6, atol=1e-8)


def test_each_summing_thread_keeps_a_stream(monkeypatch):
    """So the copies of one thread's bucket run beside the kernels of the other's."""
    made = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or object())
    devices, streams = [torch.device("cuda", one) for one in (0, 1)], _Streams()
    mine = [[streams.on(device) for device in devices] for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(streams.on, devices[0]).result()
    assert all(one is mine[0][at] for row in mine for at, one in enumerate(row))
    assert made == [*devices, devices[0]]
    assert other is not mine[0][0]


def test_gradients_may_be_freed_at_once():
    """The bucket is used after the caller has dropped it, and its memory is not given to others before."""
    state = SwitchAllreduceState(over=Sums(), implementation="gpu")
    sizes = [torch.nn.Parameter(torch.zeros(40))]
    with group_of_one():
        for step in range(3):
            gradients = torch.linspace(-1, step, 40, device=DEVICE)
            future = state.submit(gradients, sizes)
            del gradients
            others = [torch.full((40,), torch.nan, device=DEVICE) for _ in range(20)]
            average = in_time(future.wait)
            expected = torch.linspace(-1, step, 40, device=DEVICE)
            torch.testing.assert_close(average, expected, rtol=1e-6, atol=1e-8)
            assert all(bool(one.isnan().all()) for one in others)


def trained(implementation, device, **settings):
    """Return the parameters after four steps by DDP and the hook, and the all-reduce's input."""
    torch.manual_seed(7)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(9, 5).to(device))
    state = SwitchAllreduceState(over=Sums(), implementation=implementation, **settings)
    losses = (ddp(torch.full((2, 9), step + 0.3, device=device)).square().sum() for step in range(4))
    parameters = in_time(lambda: training.descend(ddp, state, losses))
    on_host = {one.keywords["on_host"] for one in state._sums._sums.values()}
    return parameters, on_host, [one.density_worker for one in state.stats().tensors.values()]


def test_the_hook_trains_on_a_device_as_on_the_host():
    with group_of_one():
        ours, ours_on_host, ours_densities = trained("gpu", DEVICE)
        theirs, theirs_on_host, their_densities = trained("cpu", DEVICE)
        chosen, chosen_on_host, _ = trained(None, DEVICE)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(ours, chosen)
    assert (ours_on_host, theirs_on_host) == ({False}, {True})
    assert chosen_on_host == {DEVICE.type == "cpu"}
    assert ours_densities == their_densities == [1.0, 1.0]


def test_fsdp_sums_shards_on_a_device():
    """The hook of FSDP2 averages a flat tensor at once; its words are the device's."""
    state = SwitchAllreduceState(over=Sums(), implementation="gpu")
    values = torch.linspace(-1, 1, 40, device=DEVICE)
    with group_of_one():
        shard = values.clone()
        fsdp_hook(state)(shard)
        assert {one.keywords["on_host"] for one in state._sums._sums.values()} == {False}
    torch.testing.assert_close(shard, values, rtol=0, atol=1e-8)


def test_gradients_that_are_elsewhere_are_refused():
    state = SwitchAllreduceState(over=Sums(), implementation="gpu")
    elsewhere = torch.ones(3, device="meta" if DEVICE.type == "cpu" else "cpu")
    refused = "'parameter 0': .* is not on the kernels' device"
    with group_of_one(), pytest.raises(InvalidRequestError, match=refused):
        in_time(state.submit(elsewhere, [torch.nn.Parameter(torch.zeros(3))]).wait)


@pytest.mark.parametrize("installed", [True, False])
def test_gradients_on_a_gpu_stay_there_where_triton_is(installed, monkeypatch):
    monkeypatch.setattr("peelsum.torch.settings.find_spec", lambda name: installed or None)
    settings = SwitchAllreduceState()._settings
    on_device = settings.for_device_of(SimpleNamespace(is_cuda=True))
    assert on_device.implementation == ("gpu" if installed else "cpu")
    assert settings.for_device_of(SimpleNamespace(is_cuda=False)).implementation == "cpu"


@pytest.mark.parametrize(("given", "compiled"), [(None, "gpu"), ("cpu", "cpu")])
def test_kernels_are_compiled_for_the_device_of_the_first_gradients(given, compiled, monkeypatch):
    """Before ranks wait for each other, on that device, which may not be the current one."""
    asked = []
    monkeypatch.setattr("peelsum.torch.buckets.warm_up", asked.append)
    monkeypatch.setattr(torch.cuda, "device", lambda device: asked.append(device) or nullcontext())
    monkeypatch.setattr("peelsum.torch.settings.find_spec", lambda name: True)

    def made(over, group, timeout_s, prepare):
        return prepare() or Sums()

    monkeypatch.setattr("peelsum.torch.buckets.connect", made)
    SwitchAllreduceState(implementation=given)._sums.connect(SimpleNamespace(is_cuda=True, device="cuda:1"))
    assert asked == ["cuda:1", compiled]


def test_a_backend_is_left_if_measuring_fails(monkeypatch):
    class Left(Sums):
        left = 0

        def close(self):
            Left.left += 1

    def fails(summation, implementation):
        raise SummationStalledError("nobody answers")

    monkeypatch.setattr("peelsum.torch.buckets.measured", fails)
    monkeypatch.setattr("peelsum.torch.buckets.connect", lambda *arguments: Left())
    state = SwitchAllreduceState(network="measured")
    with pytest.raises(SummationStalledError):
        state.connect()
    assert Left.left == 1
    with pytest.raises(HookError, match="was closed"):
        state.connect()
