"""Recovered sums equal the int32 sums of the workers' quantized tensors, bit for bit, in every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

Floats = NDArray[np.float32]
FORMS = ["dense", "compact", "sketch"]


def sparse(seed: int, shape: tuple[int, ...], density: float) -> Floats:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, shape)
    return np.where(rng.random(shape) < density, values, 0).astype(np.float32)


def check(results: list[Any], inputs: list[dict[str, Floats]], exact: Callable[..., Any]) -> None:
    """Compare every worker's result of every tensor with the independent computation."""
    for name in inputs[0]:
        arrays = [tensors[name] for tensors in inputs]
        scales, quantized, total = exact(arrays, results[0][name].fixed)
        with np.errstate(over="ignore"):  # a sum of finite floats may be infinite
            floats = np.ldexp(np.array(total, np.float64), -np.array(scales or [0])).astype(np.float32)
        for result, mine, array in zip(results, quantized, arrays, strict=True):
            tensor = result[name]
            assert scales == (None if tensor.scales is None else tensor.scales.reshape(-1).tolist())
            assert tensor.total.shape == tensor.quantized.shape == tensor.values.shape == array.shape
            assert tensor.quantized.reshape(-1).tolist() == mine
            assert tensor.total.reshape(-1).tolist() == total
            np.testing.assert_array_equal(tensor.values.reshape(-1), floats)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
def test_sum_is_exact(make_workers: Any, exact: Any, form: str, workers: int, density: float) -> None:
    group = make_workers(workers, forms=form)
    for step in range(2):
        inputs = [{"g": sparse(10 * step + w, (37, 29), density)} for w in range(workers)]
        results = group.sum(inputs)
        check(results, inputs, exact)
        union = np.logical_or.reduce([tensors["g"] != 0 for tensors in inputs])
        for result in results:
            reached = union.mean() if form != "dense" else np.mean(result["g"].total != 0)
            assert result["g"].density == pytest.approx(reached)
            assert result["g"].form == form


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
@pytest.mark.parametrize("form", FORMS)
def test_many_tensors_share_a_step(make_workers: Any, exact: Any, form: str, implementation: str) -> None:
    shapes = {"empty": (0, 3), "point": (), "one": (1,), "lane": (8,), "odd": (7, 11), "large": (513,)}
    inputs = [
        {name: sparse(31 * w + i, shape, 0.3) for i, (name, shape) in enumerate(shapes.items())}
        for w in range(4)
    ]
    results = make_workers(4, forms=form, implementation=implementation).sum(inputs)
    check(results, inputs, exact)
    assert list(results[0]) == list(shapes)


@settings(
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the fixtures hold no state
)
@given(data=st.data())
def test_any_tensors_any_forms(make_workers: Any, exact: Any, data: st.DataObject) -> None:
    workers, lanes = data.draw(st.integers(1, 32)), data.draw(st.integers(1, 32))
    side = data.draw(st.sampled_from([3, 9, 60 // workers + 9]))
    shapes = data.draw(
        st.lists(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=side), max_size=3)
    )
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    # Elements are drawn from a few values, so that tensors can be large.
    values = np.array([0.0, 0.0, *data.draw(st.lists(finite, min_size=1, max_size=12))], np.float32)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    inputs = [
        {f"t{i}": rng.choice(values, shape).astype(np.float32) for i, shape in enumerate(shapes)}
        for _ in range(workers)
    ]
    forms = {name: data.draw(st.sampled_from([*FORMS, "auto"])) for name in inputs[0]}
    cells, seed = data.draw(st.floats(0.05, 3.0)), data.draw(st.integers(0, 2**64))
    group = make_workers(workers, lanes, forms=forms, cells_per_candidate=cells, seed=seed)
    check(group.sum(inputs), inputs, exact)


@pytest.mark.parametrize("cells_per_candidate", [1.4, 0.14])
def test_a_sketch_of_any_size_is_finished_by_the_left_over_round(
    make_workers: Any, exact: Any, cells_per_candidate: float
) -> None:
    inputs = [{"g": sparse(w, (4000,), 0.1)} for w in range(3)]
    settings = {"forms": "sketch", "index": "bitmap", "cells_per_candidate": cells_per_candidate}
    results = make_workers(3, **settings).sum(inputs)
    check(results, inputs, exact)
    union = sum(np.logical_or.reduce([tensors["g"] != 0 for tensors in inputs]))
    # A quarter of all elements are candidates: blocks would be so full that a sketch has one lane.
    header_and_sketch = 8 + 4 + 125 + 3 * -(-int(union) * cells_per_candidate // 3)
    left_over = results[0]["g"].words_sent - header_and_sketch
    assert left_over == 0 if cells_per_candidate > 1 else left_over > 0.9 * union


def test_each_step_lays_out_its_sketches_differently(make_workers: Any) -> None:
    group = make_workers(2, forms="sketch", cells_per_candidate=0.8)
    inputs = [{"g": sparse(w, (3000,), 0.1), "h": sparse(w, (3000,), 0.1)} for w in range(2)]
    sent = [tensor.words_sent for _ in range(3) for tensor in group.sum(inputs)[0].tensors]
    assert len(set(sent)) > 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_on_one_worker_reaches_all(make_workers: Any, exact: Any, form: str, bad: float) -> None:
    inputs = [{"bad": sparse(w, (50,), 0.5), "good": sparse(w, (50,), 0.5)} for w in range(3)]
    inputs[1]["bad"][17] = bad
    results = make_workers(3, forms=form).sum(inputs)
    check(results, [{"good": tensors["good"]} for tensors in inputs], exact)
    for result in results:
        assert not result["bad"].finite
        assert np.isnan(result["bad"].values).all()
        assert not result["bad"].total.any()
        assert not result["bad"].quantized.any()
        assert np.isnan(result["bad"].density)


@pytest.mark.parametrize("form", FORMS)
def test_average_divides_the_exact_sum_once(make_workers: Any, form: str) -> None:
    inputs = [{"g": sparse(w, (99,), 0.6)} for w in range(3)]
    for result in make_workers(3, forms=form, average=True).sum(inputs):
        tensor = result["g"]
        expected = (tensor.total * 2.0**-tensor.scales / 3).astype(np.float32)
        np.testing.assert_array_equal(tensor.values, expected)


@pytest.mark.parametrize("form", FORMS)
def test_inputs_of_any_layout_are_read_and_left_alone(make_workers: Any, exact: Any, form: str) -> None:
    wide = [sparse(w, (40, 30), 0.3) for w in range(2)]
    originals = [array.copy() for array in wide]
    views = [array.T[::2, ::-3] for array in wide]
    for view in views:
        view.flags.writeable = False
    results = make_workers(2, forms=form).sum([{"g": view} for view in views])
    check(results, [{"g": np.ascontiguousarray(view)} for view in views], exact)
    for array, original in zip(wide, originals, strict=True):
        np.testing.assert_array_equal(array, original)


def test_a_list_is_named_by_position(make_workers: Any) -> None:
    inputs = [[sparse(w, (5,), 1.0), sparse(w, (6,), 1.0)] for w in range(2)]
    result = make_workers(2).sum(inputs)[0]
    assert list(result) == ["0", "1"]
    assert result[1] is result["1"]
    assert result["1"].values.shape == (6,)
