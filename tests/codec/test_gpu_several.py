"""Tensors on several GPUs. Torch's fake tensors stand in for them: they have devices, but no content."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu_device import DEVICE  # noqa: F401  # before Triton is imported
from torch._subclasses import FakeTensorMode

from peelsum.allreduce import Allreduce, LocalSummation
from peelsum.allreduce.rounds import Step
from peelsum.codec import CodecError
from peelsum.codec.gpu_memory import DeviceMemory


def test_tensors_of_several_devices_are_exchanged_one_by_one() -> None:
    """Torch joins only tensors of one device; each tensor's exchange has memory beside it."""
    reduce = Allreduce(LocalSummation.group(1)[0], forms="dense", implementation="gpu")
    step = Step(LocalSummation.group(1)[0], reduce._codec.memory, float, reduce._span, reduce._note)
    with FakeTensorMode():
        named: dict[str, Any] = {str(m): torch.empty(99, device=f"cuda:{m % 2}") for m in range(3)}
        joined, alone = reduce._exchanges(reduce._codec, reduce._plan(named), named, {}, step)
        assert not joined
        places = {name: exchange.total.device for name, exchange in alone.items()}  # type: ignore[attr-defined]
    assert places == {name: tensor.device for name, tensor in named.items()}


def test_words_are_sent_from_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NCCL a kernel cannot write a tensor's words to another device."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with FakeTensorMode():
        here, elsewhere = (torch.empty(3, device=f"cuda:{one}") for one in range(2))
        memory = DeviceMemory(torch.device("cuda"), direct=True)
        assert memory.accepted(here).device == here.device
        with pytest.raises(CodecError, match="tensor: cuda:1 is not cuda:0, from which words are sent"):
            memory.accepted(elsewhere)
        assert DeviceMemory(torch.device("cuda")).accepted(elsewhere).device == elsewhere.device
