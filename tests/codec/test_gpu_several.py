"""Tensors on several GPUs. Torch's fake tensors stand in for them: they have devices, but no content."""

from contextlib import nullcontext

import pytest
import torch
from gpu_device import REAL  # before Triton is imported
from torch._subclasses import FakeTensorMode

from peelsum.codec import CodecError
from peelsum.codec.gpu import launch
from peelsum.codec.gpu import segments as gpu_segments
from peelsum.codec.gpu.memory import DeviceMemory
from peelsum.codec.gpu.segments import GpuSegments
from peelsum.codec.segments import Segment, SegmentTable

pytestmark = pytest.mark.skipif(
    REAL and torch.cuda.device_count() < 2, reason="torch makes fake tensors only of GPUs that are there"
)


def test_a_step_lies_on_the_first_tensors_device(monkeypatch):
    """Words and kernels are there, whatever device is the current one."""
    entered = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or nullcontext())
    with FakeTensorMode():
        tensor = torch.empty(3, device="cuda:1")
        with DeviceMemory(torch.device("cuda")).device_context(tensor):
            assert entered == [tensor.device]


def test_results_lie_on_their_tensors_devices(monkeypatch):
    table = SegmentTable([Segment(99, sparse=False)] * 3)
    monkeypatch.setattr(launch, "run", lambda *arguments, **options: None)
    monkeypatch.setattr(gpu_segments, "_tiles", lambda table, device: gpu_segments.Tiles(None, 0, 0))
    with FakeTensorMode(allow_non_fake_inputs=True):
        values = [torch.empty(99, device=f"cuda:{m % 2}") for m in range(3)]
        codec = GpuSegments(table, values, [None] * 3, 1)
        codec._on_device = values[0], values[0]
        results = codec.decode(values[0], values[0], 1)
    assert [one.device for one in results] == [one.device for one in values]


def test_words_are_sent_from_one_device(monkeypatch):
    """Over NCCL a kernel cannot write a tensor's words to another device."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with FakeTensorMode():
        here, elsewhere = (torch.empty(3, device=f"cuda:{one}") for one in range(2))
        memory = DeviceMemory(torch.device("cuda"), direct=True)
        assert memory.validated(here).device == here.device
        with pytest.raises(CodecError, match="tensor: cuda:1 is not cuda:0, from which words are sent"):
            memory.validated(elsewhere)
        assert DeviceMemory(torch.device("cuda")).validated(elsewhere).device == elsewhere.device
