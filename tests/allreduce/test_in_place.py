"""Results written over the tensors are those of new arrays, bit for bit, signs of zeros included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from peelsum.allreduce import InvalidRequestError

Floats = NDArray[np.float32]
WORKERS = 3


def drawn(worker: int, density: float, shape: tuple[int, ...] = (9000,)) -> Floats:
    """Return normal values at random places, and zeros of either sign elsewhere."""
    rng = np.random.default_rng((worker, int(100 * density)))
    zeros = np.where(rng.random(shape) < 0.5, np.float32(-0.0), np.float32(0.0))
    return np.where(rng.random(shape) < density, rng.normal(size=shape), zeros).astype(np.float32)


def bits(values: Any) -> Any:
    return np.asarray(values, np.float32).view(np.uint32)


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
@pytest.mark.parametrize(("form", "shape"), [("dense", (9000,)), ("sparse", (9000,)), ("auto", (40_000,))])
@pytest.mark.parametrize("values", ["compact", "sketch"])
@pytest.mark.parametrize("density", [0.0, 0.03, 1.0])
def test_results_in_place_have_the_same_bits(
    make_workers: Any, implementation: str, form: str, shape: tuple[int, ...], values: str, density: float
) -> None:
    settings = {"forms": form, "implementation": implementation, "values": values, "average": True}
    apart, over = make_workers(WORKERS, **settings), make_workers(WORKERS, **settings)
    for step in range(3):
        inputs = [{"g": drawn(10 * step + w, density, shape)} for w in range(WORKERS)]
        if step == 2:
            inputs[1]["g"][77] = np.nan
        expected = apart.sum(inputs)
        kept = [{"g": tensors["g"].copy()} for tensors in inputs]
        results = over.each(lambda w, reduce, kept=kept: reduce.sum(kept[w], in_place=True))
        for one, result, want in zip(kept, results, expected, strict=True):
            assert np.shares_memory(result["g"].values, one["g"])
            assert bits(one["g"]).tolist() == bits(want["g"].values).tolist()
            assert bits(one["g"]).tolist() == bits(kept[0]["g"]).tolist()


def test_what_cannot_be_written_over_is_left_alone(make_workers: Any) -> None:
    whole = drawn(0, 0.1)
    frozen = whole.copy()
    frozen.flags.writeable = False
    tensors = {"strided": whole[::2], "frozen": frozen, "half": whole.astype(np.float16)}
    before = {name: tensor.copy() for name, tensor in tensors.items()}
    (result,) = make_workers(1).each(lambda w, reduce: reduce.sum(tensors, in_place=True))
    for name, tensor in tensors.items():
        assert not np.shares_memory(result[name].values, tensor)
        assert tensor.tobytes() == before[name].tobytes()
        assert np.abs(result[name].values - tensor).max() <= result[name].error_bound


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("shape", [(20, 30), (90, 100)])
def test_results_are_written_to_arrays_of_the_caller(
    make_workers: Any, implementation: str, form: str, shape: tuple[int, ...]
) -> None:
    settings = {"forms": form, "implementation": implementation}
    apart, into = make_workers(WORKERS, **settings), make_workers(WORKERS, **settings)
    kept = [{"b": np.full(shape, np.nan, np.float32)} for _ in range(WORKERS)]
    for step in range(5):
        density = (0.3, 0.03, 0.03, 0.0, 0.03)[step]
        inputs = [{"a": drawn(w, 0.1), "b": drawn(7 * step + w, density, shape)} for w in range(WORKERS)]
        if step == 4:
            inputs[1]["b"][3, 3] = np.inf
        before = [{name: tensor.tobytes() for name, tensor in one.items()} for one in inputs]
        expected = apart.sum(inputs)
        results = into.each(lambda w, reduce, inputs=inputs: reduce.sum(inputs[w], out=kept[w]))
        assert [{name: tensor.tobytes() for name, tensor in one.items()} for one in inputs] == before
        for one, result, want in zip(kept, results, expected, strict=True):
            assert np.shares_memory(result["b"].values, one["b"])
            assert not np.shares_memory(result["a"].values, one["b"])
            for name in ("a", "b"):
                assert bits(result[name].values).tolist() == bits(want[name].values).tolist()


def test_results_go_to_the_first_tensors_or_over_all(make_workers: Any) -> None:
    tensors = [drawn(w, 0.2) for w in range(3)]
    wanted, own = [tensor + 0.0 for tensor in tensors], np.empty(9000, np.float32)
    (result,) = make_workers(1).each(lambda w, reduce: reduce.sum(tensors, in_place=True, out=[own]))
    assert [np.shares_memory(result[i].values, tensors[i]) for i in range(3)] == [False, True, True]
    assert np.shares_memory(result[0].values, own)
    for i in range(3):
        assert np.abs(result[i].values - wanted[i]).max() <= result[i].error_bound


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"h": np.zeros(6, np.float32)}, "out: 'h' is not a tensor; leave it out"),
        ({"g": np.zeros(7, np.float32)}, r"out: 'g' cannot take the sum; .* of shape \(6,\)"),
        ({"g": np.zeros((6, 1), np.float32)}, r"out: 'g' cannot take the sum; .* of shape \(6,\)"),
        ({"g": np.zeros(6)}, "out: 'g' cannot take the sum; pass a writable float32 array in C order"),
        ({"g": np.zeros(12, np.float32)[::2]}, "out: 'g' cannot take the sum"),
        ({"g": np.broadcast_to(np.float32(0), 6)}, "out: 'g' cannot take the sum"),
        ({"g": [0.0] * 6}, "out: 'g' cannot take the sum"),
    ],
)
def test_an_array_that_cannot_take_the_sum_is_refused(make_workers: Any, out: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        make_workers(1).each(lambda w, reduce: reduce.sum({"g": drawn(0, 1.0, (6,))}, out=out))


Places = dict[str, tuple[int, int, int]]


@pytest.mark.parametrize(
    ("tensors", "out", "pair"),
    [
        (
            {"g": (0, 6, 1), "h": (6, 12, 1)},
            {"g": (12, 18, 1), "h": (12, 18, 1)},
            "'g' shares memory with 'h'",
        ),
        (
            {"g": (0, 6, 1), "h": (6, 12, 1)},
            {"g": (12, 18, 1), "h": (17, 23, 1)},
            "'g' shares memory with 'h'",
        ),
        ({"g": (0, 6, 1), "h": (6, 12, 1)}, {"g": (6, 12, 1)}, "'g' shares memory with 'h'"),
        (
            {"g": (0, 6, 1), "h": (6, 12, 1)},
            {"h": (5, 11, 1), "g": (12, 18, 1)},
            "'h' shares memory with 'g'",
        ),
        ({"g": (0, 6, 1), "h": (20, 24, 1)}, {"g": (5, 11, 1)}, "'g' shares memory with 'g'"),
        ({"g": (12, 18, 1), "h": (0, 24, 4)}, {"g": (18, 24, 1)}, "'g' shares memory with 'h'"),
    ],
)
def test_arrays_that_share_memory_are_refused_and_nothing_is_lost(
    make_workers: Any, tensors: Places, out: Places, pair: str
) -> None:
    """Places are slices of one array: first, behind the last, step."""
    workers, memory = make_workers(1), np.arange(24, dtype=np.float32)
    given, into = (
        {name: memory[slice(*place)] for name, place in places.items()} for places in (tensors, out)
    )
    with pytest.raises(InvalidRequestError, match=f"out: {pair}; pass an array of its own"):
        workers.each(lambda w, reduce: reduce.sum(given, out=into))
    assert memory.tolist() == list(range(24))
    (result,) = workers.each(lambda w, reduce: reduce.sum(given))
    assert all(np.array_equal(result[name].values, tensor) for name, tensor in given.items())


def test_neighbours_in_one_array_do_not_share_memory(make_workers: Any) -> None:
    memory = np.arange(24, dtype=np.float32)
    g, h, i = memory[:6], memory[6:12], memory[12:18]
    empty = memory[3:3]
    (result,) = make_workers(1).each(
        lambda w, reduce: reduce.sum({"g": g, "h": h, "none": empty}, out={"g": g, "h": i, "none": empty})
    )
    assert np.shares_memory(result["g"].values, g)
    assert memory.tolist() == [*range(12), *range(6, 12), *range(18, 24)]


def test_a_number_without_dimensions_is_written_to_one(make_workers: Any) -> None:
    own = np.array(0.0, np.float32)
    make_workers(1).each(lambda w, reduce: reduce.sum({"g": np.array(2.5, np.float32)}, out={"g": own}))
    assert own == 2.5
