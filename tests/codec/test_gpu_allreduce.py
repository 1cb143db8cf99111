"""Allreduce of tensors on a device: the same bits as on the host, also if some workers have no device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gpu_device import DEVICE, bits, needs_device
from gpu_order import shuffled
from numpy.typing import NDArray

from peelsum import codec
from peelsum.allreduce import Allreduce, InvalidRequestError, LocalSummation, StepResult
from peelsum.codec import BFloat16, CodecError, kernels, warm_up

N = 1061


class Mixed:
    """A group whose worker 0 has tensors on the device; the others have arrays on the host."""

    def __init__(self, workers: int = 3, lanes: int = 32, **settings: Any) -> None:
        group = LocalSummation.group(workers, lanes)
        self.reduces = [Allreduce(one, implementation="cpu", **settings) for one in group[1:]]
        self.reduces.insert(0, Allreduce(group[0], implementation="gpu", **settings))

    def sum(self, inputs: Sequence[Any]) -> list[StepResult]:
        with ThreadPoolExecutor(len(inputs)) as pool:
            return list(pool.map(lambda reduce, tensors: reduce.sum(tensors), self.reduces, inputs))


def summed(one: tuple[Allreduce, Any], *, in_place: bool) -> StepResult:
    return one[0].sum(one[1], in_place=in_place)


def gradients(n: int, workers: int, step: int, density: float = 0.03) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng([n, step])
    kept = (rng.random((workers, n)) < density) * rng.normal(size=(workers, n))
    return list((kept * 10.0 ** rng.integers(-3, 2, n)).astype(np.float32))


def tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array).to(DEVICE)


def agree(results: Sequence[StepResult], name: str = "g") -> Any:
    """Require that all workers have the same, correct sums; return the last worker's result."""
    ours, *others = (result[name] for result in results)
    assert isinstance(ours.values, torch.Tensor)
    assert ours.values.device.type == DEVICE.type
    for other in others:
        np.testing.assert_array_equal(bits(ours.values), other.values.view(np.uint32))
        np.testing.assert_array_equal(ours.total, other.total)
        np.testing.assert_array_equal(ours.scales, other.scales)
        np.testing.assert_array_equal(ours.error_bounds, other.error_bounds)
        assert (ours.density, ours.fixed, ours.form, ours.index) == (
            other.density,
            other.fixed,
            other.form,
            other.index,
        )
    np.testing.assert_array_equal(
        sum(result[name].quantized.astype(np.int64) for result in results), ours.total
    )
    return others[-1]


@pytest.mark.parametrize(
    "settings",
    [
        {"forms": "dense"},
        {"forms": "dense", "predict": True},
        {"forms": "compact", "index": "bitmap"},
        {"forms": "compact", "index": "two_level"},
        {"forms": "compact", "index": "bloom", "average": True},
        {"forms": "sketch", "index": "bitmap", "predict": True},
        {"forms": "sketch", "index": "two_level", "cells_per_candidate": 0.6},
        {"forms": "sketch", "index": "bloom", "predict": True},
        {"sparse": ["g"]},
    ],
    ids=str,
)
def test_the_same_bits_as_without_a_device(settings: dict[str, Any]) -> None:
    group = Mixed(**settings)
    for step in range(3):
        arrays = gradients(N, 3, step)
        results = group.sum([{"g": tensor(arrays[0])}, *({"g": array} for array in arrays[1:])])
        last = agree(results)
        assert last.fixed is not None
        truth = np.sum([array.astype(np.float64) for array in arrays], axis=0) / last.divisor
        assert (np.abs(last.values - truth) <= last.error_bounds + 2.0**-50 * np.abs(truth)).all()


@pytest.mark.parametrize("in_place", [False, True])
def test_groups_of_small_tensors(in_place: bool) -> None:
    group, names = Mixed(sparse=["g0", "g1", "g2"]), ["g0", "g1", "g2"]
    for step in range(3):
        drawn = [gradients(n, 3, step) for n in (N, 40, 333)]
        inputs = [{name: array[w] for name, array in zip(names, drawn, strict=True)} for w in range(3)]
        ours = {name: tensor(array) for name, array in inputs[0].items()}
        with ThreadPoolExecutor(3) as pool:
            made = zip(group.reduces, [ours, *inputs[1:]], strict=True)
            results = list(pool.map(lambda one: one[0].sum(one[1], in_place=in_place), made))
        for name in names:
            agree(results, name)
            assert results[0][name].form == "compact"
            assert (results[0][name].values.data_ptr() == ours[name].data_ptr()) == in_place


@pytest.mark.parametrize("sparse", [[], ["g"]])
def test_densities_that_change(monkeypatch: pytest.MonkeyPatch, sparse: list[str]) -> None:
    """The same samples are drawn, and the same indexes follow, as without a device."""
    monkeypatch.setattr("peelsum.allreduce.forms._LARGE", N)
    group = Mixed(sparse=sparse)
    for step, density in enumerate([0.003, 0.9, 0.9, 0.9, 0.01]):
        arrays = gradients(N, 3, step, density)
        agree(group.sum([{"g": tensor(arrays[0])}, *({"g": array} for array in arrays[1:])]))


@pytest.mark.parametrize("form", ["dense", "sketch"])
def test_narrow_floats_and_shapes(form: str) -> None:
    rng = np.random.default_rng(4)
    wide = (rng.normal(size=(7, 11)) * (rng.random((7, 11)) < 0.3)).astype(np.float32)
    brain = torch.from_numpy(wide).to(torch.bfloat16)
    ours = {
        "half": tensor(wide.astype(np.float16)),
        "brain": brain.to(DEVICE),
        "empty": tensor(np.zeros((0, 3), np.float32)),
        "scalar": tensor(np.array(2.5, np.float32)),
        "strided": tensor(wide).t(),
        "zero": tensor(np.zeros(40, np.float32)),
    }
    theirs = {
        "half": wide.astype(np.float16),
        "brain": BFloat16(brain.view(torch.int16).numpy().view(np.uint16)),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(2.5, np.float32),
        "strided": wide.T,
        "zero": np.zeros(40, np.float32),
    }
    results = Mixed(2, forms=form).sum([ours, theirs])
    for name, own in ours.items():
        agree(results, name)
        assert results[0][name].values.shape == own.shape
        torch.testing.assert_close(results[0][name].values, 2 * own.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("average", [False, True])
def test_many_small_dense_tensors_together(average: bool) -> None:
    """Blocks of 1 to 32 elements, a tensor of zeros, one that is not finite, and results in place and not."""
    sizes = [1, 31, 32, 33, 64, 100, 7, 70, 2]
    group, rng = Mixed(2, forms="dense", average=average), np.random.default_rng(9)
    for step in range(2):
        arrays = [
            [(rng.normal(size=n) * 10.0 ** rng.integers(-30, 9, n)).astype(np.float32) for n in sizes]
            for _ in range(2)
        ]
        for own in arrays:
            own[3][:] = 0
            own[6][:] *= step  # zeros of both signs, in the first step
        arrays[step][5][99] = np.nan
        ours = [tensor(array) for array in arrays[0]]
        out = torch.full((sizes[4],), torch.nan, device=DEVICE)
        into = [{"4": out}, {"4": np.empty(sizes[4], np.float32)}]
        named = [dict(zip(map(str, range(len(sizes))), one, strict=True)) for one in (ours, arrays[1])]
        with ThreadPoolExecutor(2) as pool:
            results = list(
                pool.map(lambda reduce, own, to: reduce.sum(own, out=to), group.reduces, named, into)
            )
        for name in set(named[0]) - {"5"}:
            agree(results, name)
        assert results[0]["4"].values.data_ptr() == out.data_ptr()
        assert not results[0]["5"].finite
        assert bool(results[0]["5"].values.isnan().all())
        truth = (arrays[0][1].astype(np.float64) + arrays[1][1]) / (1 + average)
        assert (np.abs(results[1]["1"].values - truth) <= results[0]["1"].error_bounds).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"forms": "compact", "index": "bitmap", "average": True},
        {"forms": "compact", "index": "bitmap"},
        {"forms": "compact", "index": "two_level"},
        {"forms": {"b": "dense", "d": "sketch"}, "sparse": ["a", "c"], "predict": True},
        {"forms": "sketch", "index": "bloom", "cells_per_candidate": 0.6},
    ],
    ids=str,
)
def test_several_tensors_at_once(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of different sizes and densities share launches, in three orders of programs."""
    monkeypatch.setattr("peelsum.allreduce.group.LARGEST", 0)  # else the host sums small ones as a group
    sizes = {"a": 1061, "b": 33, "c": 500, "d": 333, "one": 1, "empty": 0, "zero": 64, "bad": 97}
    group = Mixed(2, **settings)
    for step in range(3):
        inputs: list[dict[str, NDArray[np.float32]]] = [{}, {}]
        for m, (name, n) in enumerate(sizes.items()):
            for own, drawn in zip(inputs, gradients(n, 2, step, 0.01 * 3**m), strict=True):
                own[name] = drawn * np.float32(name != "zero")
        inputs[step % 2]["bad"][5] = np.inf
        ours = {name: tensor(array.copy()) for name, array in inputs[0].items()}
        with ThreadPoolExecutor(2) as pool, shuffled(step):
            made = zip(group.reduces, [ours, inputs[1]], strict=True)
            in_place = step == 1
            results = list(pool.map(partial(summed, in_place=in_place), made))
        for name in set(sizes) - {"bad"}:
            agree(results, name)
            taken = results[0][name].values.data_ptr() == ours[name].data_ptr()
            assert taken == in_place or not sizes[name]
        assert bool(results[0]["bad"].values.isnan().all())
        assert np.isnan(results[1]["bad"].values).all()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("form", ["dense", "compact"])
def test_what_is_not_finite_reaches_all(bad: float, form: str) -> None:
    for worker in range(2):
        arrays = gradients(100, 2, 0)
        arrays[worker][77] = bad
        results = Mixed(2, forms=form).sum([[tensor(arrays[0])], [arrays[1]]])
        assert bool(results[0][0].values.isnan().all())
        assert np.isnan(results[1][0].values).all()


def test_a_tensor_that_lies_elsewhere_is_refused() -> None:
    reduce = Allreduce(LocalSummation.group(1)[0], implementation="gpu")
    with pytest.raises(
        CodecError, match=f"ndarray is not on the kernels' device; pass torch tensors on {DEVICE}"
    ):
        reduce.sum([np.zeros(3, np.float32)])


def test_without_a_gpu_the_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(CodecError, match="'gpu' needs a GPU that torch can use; set TRITON_INTERPRET=1"):
        kernels("gpu")


def test_without_triton_the_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("peelsum.codec.gpu")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(codec, name.rsplit(".", 1)[1])
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(CodecError, match=r"'gpu' needs triton; pip install 'peelsum\[gpu\]'"):
        kernels("gpu")


def test_kernels_warm_up() -> None:
    warm_up("gpu")


@needs_device
def test_sums_of_what_the_callers_stream_has_still_to_write() -> None:
    """The sum waits for the gradient's kernels without any synchronization by the caller."""
    side, arrays = torch.cuda.Stream(), gradients(2**20, 2, 0)
    group, ours = Mixed(2, forms="sketch"), tensor(np.zeros(2**20, np.float32))
    fresh = tensor(arrays[0])
    torch.cuda.synchronize()

    def on_side(_: None = None) -> StepResult:
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            ours.copy_(fresh)
            return group.reduces[0].sum({"g": ours})

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(on_side), pool.submit(group.reduces[1].sum, {"g": arrays[1]})
        agree([first.result(), second.result()])


@pytest.mark.parametrize("form", ["dense", "compact"])
def test_results_are_written_to_tensors_of_the_caller(form: str) -> None:
    reduce = Allreduce(LocalSummation.group(1, 32)[0], forms=form, implementation="gpu")
    on_host = Allreduce(LocalSummation.group(1, 32)[0], forms=form)
    for step in range(2):
        (gradient,) = gradients(N, 1, step)
        out = torch.full((N,), torch.nan, device=DEVICE)
        assert reduce.sum([tensor(gradient)], out=[out])[0].values.data_ptr() == out.data_ptr()
        want = on_host.sum([gradient])[0].values
        np.testing.assert_array_equal(bits(out), want.view(np.uint32))
    with pytest.raises(InvalidRequestError, match="out: '0' cannot take the sum"):
        reduce.sum([tensor(gradient)], out=[torch.zeros(N, dtype=torch.float64, device=DEVICE)])


@needs_device
def test_tensors_that_share_memory_are_refused() -> None:
    memory = torch.arange(24, dtype=torch.float32, device=DEVICE)
    allreduce = Allreduce(LocalSummation.group(1, 8)[0], implementation="gpu")
    for out in (memory[11:17], memory[1:21:4]):
        with pytest.raises(
            InvalidRequestError, match=r"out: 'g' (shares memory with 'h'|cannot take the sum)"
        ):
            allreduce.sum({"g": memory[18:24], "h": memory[:24:4]}, out={"g": out})
    own = torch.empty(6, device=DEVICE)
    assert allreduce.sum({"g": memory[18:24]}, out={"g": own})["g"].values.data_ptr() == own.data_ptr()
    assert own.tolist() == list(range(18, 24))
