"""Allreduce of tensors on a device, beyond `test_random_jobs`, which compares all bits."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from allreduce_workers import Workers
from gpu_device import DEVICE, needs_device
from sums_of_floats import OnHost, check

from peelsum import codec
from peelsum.allreduce import Allreduce, InvalidRequestError, LocalSummation
from peelsum.codec import CodecError, device, warm_up


def mixed(**settings):
    """Return two workers: the first one's tensors are on the device, the other's on the host."""
    return Workers(2, 32, implementations=["gpu", "cpu"], **settings)


def drawn(n):
    """Draw a sparse tensor of each worker."""
    rng = np.random.default_rng(n)
    return [np.where(rng.random(n) < 0.05, rng.normal(size=n), 0).astype(np.float32) for _ in range(2)]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_view_with_the_other_sign_in_memory(in_place):
    """Such as the imaginary part of a conjugate, which lies behind the real part."""
    parts = torch.tensor([3 + 5j], dtype=torch.complex64, device=DEVICE)
    ours = {"real": parts.real, "imaginary": parts.conj().imag}
    theirs = {name: np.array([1.0], np.float32) for name in ours}
    results = mixed().each(lambda w, reduce: reduce.sum((ours, theirs)[w], in_place=in_place))
    for name, total in (("real", 4.0), ("imaginary", -4.0)):
        assert results[0][name].values.tolist() == results[1][name].values.tolist() == [total]


def test_a_tensor_behind_a_smaller_storage_of_the_same_address():
    memory = torch.arange(20, dtype=torch.float32, device=DEVICE)
    ours = {"a": torch.from_dlpack(memory[:10]), "b": memory[10:]}
    theirs = {name: np.zeros(10, np.float32) for name in ours}
    results = mixed(forms="dense").sum([ours, theirs])
    assert [results[0][name].values.tolist() for name in "ab"] == [[*range(10)], [*range(10, 20)]]


def test_tensors_made_in_inference_mode_are_overwritten_outside():
    with torch.inference_mode():
        ours = {"a": torch.ones(40, device=DEVICE), "b": torch.ones(3, device=DEVICE)}
    theirs = {"a": np.ones(40, np.float32), "b": np.ones(3, np.float32)}
    mixed(forms="dense").each(lambda w, reduce: reduce.sum((ours, theirs)[w], in_place=True))
    assert {name: set(tensor.tolist()) for name, tensor in ours.items()} == {"a": {2.0}, "b": {2.0}}


def test_torchs_default_device_is_not_where_arrays_of_the_host_lie():
    group, (ours, theirs) = mixed(forms="sparse", values="sketch"), drawn(1061)
    tensor = torch.from_numpy(ours).to(DEVICE)

    def summed(w, reduce):
        if w:
            return reduce.sum({"a": theirs})
        with torch.device(DEVICE if DEVICE.type == "cuda" else "meta"):
            return reduce.sum({"a": tensor})

    check([OnHost(result) for result in group.each(summed)], [ours, theirs], "a")


def test_a_tensor_that_lies_elsewhere_is_refused():
    reduce = Allreduce(LocalSummation.group(1)[0], implementation="gpu")
    elsewhere = f"tensors: '0': ndarray is not on the kernels' device; pass torch tensors on {DEVICE}"
    with pytest.raises(InvalidRequestError, match=elsewhere):
        reduce.sum([np.zeros(3, np.float32)])
    with pytest.raises(
        InvalidRequestError, match=r"'0': its layout is torch.sparse_coo; pass tensor.to_dense\(\)"
    ):
        reduce.sum([torch.zeros(3, device=DEVICE).to_sparse()])
    wide = torch.zeros(3, dtype=torch.float64, device=DEVICE)
    with pytest.raises(InvalidRequestError, match="out: '0' cannot take the sum"):
        reduce.sum([torch.zeros(3, device=DEVICE)], out=[wide])


def test_without_a_gpu_the_kernels_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(CodecError, match="'gpu' needs a GPU that torch can use; set TRITON_INTERPRET=1"):
        device("gpu")


def test_without_triton_the_kernels_are_refused(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("peelsum.codec.gpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(codec, "gpu")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(
        CodecError, match=r"'gpu': triton: is not installed; run: pip install 'peelsum\[gpu\]'"
    ):
        device("gpu")


def test_kernels_warm_up():
    warm_up("gpu")


@needs_device
def test_sums_of_what_the_callers_stream_has_still_to_write():
    """The sum waits for the gradient's kernels without any synchronization by the caller."""
    side, (ours, theirs) = torch.cuda.Stream(), drawn(2**20)
    group, fresh = mixed(forms="sparse", values="sketch"), torch.from_numpy(ours).to(DEVICE)
    tensor = torch.zeros_like(fresh)
    torch.cuda.synchronize()

    def on_side():
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            tensor.copy_(fresh)
            return group.reduces[0].sum({"g": tensor})

    with ThreadPoolExecutor(2) as pool:
        sums = [pool.submit(on_side), pool.submit(group.reduces[1].sum, {"g": theirs})]
        check([OnHost(one.result()) for one in sums], [ours, theirs])


@needs_device
def test_tensors_that_share_memory_are_refused():
    memory = torch.arange(24, dtype=torch.float32, device=DEVICE)
    allreduce = Allreduce(LocalSummation.group(1, 8)[0], implementation="gpu")
    for out in (memory[11:17], memory[1:21:4]):
        with pytest.raises(
            InvalidRequestError, match=r"out: 'g' (shares memory with 'h'|cannot take the sum)"
        ):
            allreduce.sum({"g": memory[18:24], "h": memory[:24:4]}, out={"g": out})
