"""Allreduce of tensors on a device: the same bits as on the host, also if some workers have no device."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from allreduce_workers import Workers
from gpu_device import DEVICE, bits, needs_device
from gpu_indexes import INDEXES, chosen
from gpu_order import shuffled
from numpy.typing import NDArray

from peelsum import codec
from peelsum.allreduce import Allreduce, InvalidRequestError, LocalSummation, StepResult
from peelsum.codec import BFloat16, CodecError, device, warm_up

N = 1061
SIZES = {"a": N, "b": 33, "c": 500, "d": 333, "one": 1, "empty": 0, "zero": 64, "bad": 97}
#: Settings that send tensors in every form.
FORMS: list[dict[str, Any]] = [
    {"forms": "dense"},
    {"forms": "sparse", "values": "compact", "average": True},
    {"forms": "sparse", "values": "sketch"},
    {"forms": "sparse", "values": "sketch", "cells_per_candidate": 0.6},
    {"forms": {"b": "dense", "d": "dense", "bad": "sparse"}},
]
Arrays = Mapping[str, NDArray[np.float32]]


def mixed(workers: int = 2, **settings: Any) -> Workers:
    """A group whose worker 0 has tensors on the device; the others have arrays on the host."""
    return Workers(workers, 32, implementations=["gpu", *["cpu"] * (workers - 1)], **settings)


def gradients(step: int, workers: int = 2, sizes: Mapping[str, int] = SIZES) -> list[Arrays]:
    """Tensors of different sizes and densities: one of zeros, and one that is not finite on a worker."""
    inputs: list[dict[str, NDArray[np.float32]]] = [{} for _ in range(workers)]
    for m, (name, n) in enumerate(sizes.items()):
        rng = np.random.default_rng([n, m, step])
        for own in inputs:
            kept = (
                (rng.random(n) < min(0.01 * 3**m, 1.0)) * rng.normal(size=n) * 10.0 ** rng.integers(-9, 3, n)
            )
            own[name] = kept.astype(np.float32) * np.float32(name != "zero")
    if "bad" in sizes:
        inputs[step % workers]["bad"][5] = [np.inf, np.nan, -np.inf][step % 3]
    return inputs


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).to(DEVICE, copy=True) for name, array in arrays.items()}


def agree(results: Sequence[StepResult], name: str) -> None:
    """Require that all workers have the same sums, which are those of their numbers."""
    ours, *others = (result[name] for result in results)
    assert ours.values.device.type == DEVICE.type
    for other in others:
        np.testing.assert_array_equal(bits(ours.values), other.values.view(np.uint32))
        for field in ("total", "scales", "error_bounds", "density", "fixed", "form", "index"):
            np.testing.assert_array_equal(getattr(ours, field), getattr(other, field), field)
    added = sum(result[name].quantized.astype(np.int64) for result in results)
    np.testing.assert_array_equal(added, ours.total)
    for result in results:
        positions, numbers, _ = result.contributions()[name]
        contributed = np.zeros(ours.elements, np.int64)
        contributed[positions] = numbers
        np.testing.assert_array_equal(contributed, result[name].quantized.ravel())


@pytest.mark.covering(1)
@pytest.mark.parametrize("index", INDEXES, ids=str)
@pytest.mark.parametrize("settings", FORMS, ids=str)
def test_the_same_bits_as_without_a_device(
    settings: dict[str, Any], index: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has its programs in another order, and its results in another place."""
    if settings["forms"] == "dense" and index is not None:
        pytest.skip("dense tensors have no index")
    chosen(monkeypatch, index)
    group = mixed(**settings)
    for step in range(3):
        inputs = gradients(step)
        ours, out = tensors(inputs[0]), tensors(inputs[0]) if step == 2 else None
        theirs = {name: array.copy() for name, array in inputs[1].items()}
        options = [{"in_place": step == 1, "out": out}, {"in_place": step == 1}]
        with shuffled(step):
            made = (ours, theirs), options
            results = group.each(lambda w, reduce: reduce.sum(made[0][w], **made[1][w]))  # noqa: B023
        into = [None, ours, out][step]
        for name, n in SIZES.items():
            if name == "bad":
                assert bool(results[0][name].values.isnan().all())
                assert np.isnan(results[1][name].values).all()
                continue
            agree(results, name)
            truth = sum(array[name].astype(np.float64) for array in inputs) / results[1][name].divisor
            error = np.abs(results[1][name].values - truth)
            assert (error <= results[1][name].error_bounds + 2.0**-50 * np.abs(truth)).all()
            if n and into is not None:
                assert results[0][name].values.data_ptr() == into[name].data_ptr()


def test_densities_that_change() -> None:
    """The same forms and indexes follow as without a device."""
    group, forms = mixed(3), set()
    for step, density in enumerate([0.003, 0.9, 0.9, 0.9, 0.01, 0.01]):
        rng = np.random.default_rng(step)
        drawn = ((rng.random((3, N)) < density) * rng.normal(size=(3, N))).astype(np.float32)
        results = group.sum([tensors({"g": drawn[0]}), *({"g": one} for one in drawn[1:])])
        agree(results, "g")
        forms.add(results[0]["g"].form)
    assert len(forms) > 1


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_narrow_floats_and_shapes(form: Any) -> None:
    rng = np.random.default_rng(4)
    wide = (rng.normal(size=(7, 11)) * (rng.random((7, 11)) < 0.3)).astype(np.float32)
    brain = torch.from_numpy(wide).to(torch.bfloat16)
    theirs = {
        "half": wide.astype(np.float16),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(2.5, np.float32),
        "strided": wide.T,
        "zero": np.zeros(40, np.float32),
    }
    ours = {name: torch.from_numpy(one).to(DEVICE) for name, one in theirs.items()} | {
        "brain": brain.to(DEVICE)
    }
    narrow = BFloat16(brain.view(torch.int16).numpy().view(np.uint16))
    results = mixed(forms=form).sum([ours, theirs | {"brain": narrow}])
    for name, own in ours.items():
        agree(results, name)
        assert results[0][name].values.shape == own.shape
        torch.testing.assert_close(results[0][name].values, 2 * own.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_view_with_the_other_sign_in_memory(in_place: bool) -> None:
    """Such as the imaginary part of a conjugate, which lies behind the real part."""
    parts = torch.tensor([3 + 5j], dtype=torch.complex64, device=DEVICE)
    ours = {"real": parts.real, "imaginary": parts.conj().imag}
    theirs = {name: np.array([1.0], np.float32) for name in ours}
    results = mixed().each(lambda w, reduce: reduce.sum((ours, theirs)[w], in_place=in_place))
    for name, total in (("real", 4.0), ("imaginary", -4.0)):
        assert results[0][name].values.tolist() == results[1][name].values.tolist() == [total]


def test_a_tensor_behind_a_smaller_storage_of_the_same_address() -> None:
    memory = torch.arange(20, dtype=torch.float32, device=DEVICE)
    ours = {"a": torch.from_dlpack(memory[:10]), "b": memory[10:]}
    theirs = {name: np.zeros(10, np.float32) for name in ours}
    results = mixed(forms="dense").sum([ours, theirs])
    assert [results[0][name].values.tolist() for name in "ab"] == [[*range(10)], [*range(10, 20)]]


def test_tensors_made_in_inference_mode_are_overwritten_outside() -> None:
    with torch.inference_mode():
        ours = {"a": torch.ones(40, device=DEVICE), "b": torch.ones(3, device=DEVICE)}
    theirs = {"a": np.ones(40, np.float32), "b": np.ones(3, np.float32)}
    mixed(forms="dense").each(lambda w, reduce: reduce.sum((ours, theirs)[w], in_place=True))
    assert {name: set(one.tolist()) for name, one in ours.items()} == {"a": {2.0}, "b": {2.0}}


def test_torchs_default_device_is_not_where_arrays_of_the_host_lie() -> None:
    inputs = gradients(0, sizes={"a": N})
    group, ours = mixed(forms="sparse", values="sketch"), tensors(inputs[0])

    def summed(w: int, reduce: Allreduce) -> StepResult:
        if w:
            return reduce.sum(inputs[1])
        with torch.device(DEVICE if DEVICE.type == "cuda" else "meta"):
            return reduce.sum(ours)

    agree(group.each(summed), "a")


def test_a_tensor_that_lies_elsewhere_is_refused() -> None:
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


def test_without_a_gpu_the_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(CodecError, match="'gpu' needs a GPU that torch can use; set TRITON_INTERPRET=1"):
        device("gpu")


def test_without_triton_the_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("peelsum.codec.gpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(codec, "gpu")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(
        CodecError, match=r"'gpu': triton: is not installed; run: pip install 'peelsum\[gpu\]'"
    ):
        device("gpu")


def test_kernels_warm_up() -> None:
    warm_up("gpu")


@needs_device
def test_sums_of_what_the_callers_stream_has_still_to_write() -> None:
    """The sum waits for the gradient's kernels without any synchronization by the caller."""
    sizes = {"g": 2**20}
    side, inputs = torch.cuda.Stream(), gradients(0, sizes=sizes)
    group, ours, fresh = mixed(forms="sparse", values="sketch"), tensors(inputs[1]), tensors(inputs[0])
    torch.cuda.synchronize()

    def on_side() -> StepResult:
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            ours["g"].copy_(fresh["g"])
            return group.reduces[0].sum(ours)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(on_side), pool.submit(group.reduces[1].sum, inputs[1])
        agree([first.result(), second.result()], "g")


@needs_device
def test_tensors_that_share_memory_are_refused() -> None:
    memory = torch.arange(24, dtype=torch.float32, device=DEVICE)
    allreduce = Allreduce(LocalSummation.group(1, 8)[0], implementation="gpu")
    for out in (memory[11:17], memory[1:21:4]):
        with pytest.raises(
            InvalidRequestError, match=r"out: 'g' (shares memory with 'h'|cannot take the sum)"
        ):
            allreduce.sum({"g": memory[18:24], "h": memory[:24:4]}, out={"g": out})
