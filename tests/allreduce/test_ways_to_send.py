"""With any index, prediction and support, the sum is exact and needs no more rounds than necessary."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from patience import PATIENCE_S
from sums_of_floats import (
    DTYPES,
    FAR,
    FORMS,
    INDEXES,
    ODD_SIZES,
    SLACK,
    SLOW,
    check,
    typed,
    workers_of,
)

from peelsum.allreduce import Allreduce, InvalidRequestError, NetworkModel
from peelsum.codec import BFloat16, layout


def supports(n: int, lanes: int) -> dict[str, NDArray[np.int64]]:
    """Return supports that are difficult for hashing and blocks."""
    powers = 2 ** np.arange(1, 40)
    return {
        "one block": np.arange(3 * lanes, 4 * lanes),
        "one per block": np.arange(5, n, lanes),
        "columns": np.flatnonzero(np.arange(n) % lanes < 2),
        "powers of two": powers[powers < n],
        "first": np.array([0]),
        "last": np.array([n - 1]),
        "ends": np.array([0, n - 1]),
        "all": np.arange(n),
    }


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("form", ["compact", "sketch"])
@pytest.mark.parametrize("predict", [False, True])
def test_sum_is_exact_step_after_step(make_workers: Any, index: str, form: str, predict: bool) -> None:
    group = make_workers(3, forms=form, index=index, predict=predict)
    for step, density in enumerate([0.05, 0.05, 0.3, 0.0, 0.002, 0.01]):
        arrays = workers_of(2003, 3, density, step)
        results = group.sum([{"g": array} for array in arrays])
        tensor = check(results, arrays, slack=SLACK if predict and step else 0)
        assert tensor.index == (index if index != "auto" else tensor.index)


@pytest.mark.parametrize("index", INDEXES[:3])
@pytest.mark.parametrize("form", ["compact", "sketch"])
def test_adversarial_supports(make_workers: Any, index: str, form: str) -> None:
    n, lanes = 4099, 8
    group = make_workers(4, lanes, forms=form, index=index, predict=True)
    for name, where in supports(n, lanes).items():
        arrays = []
        for worker in range(4):
            array = np.zeros(n, np.float32)
            mine = where[worker % 2 :: 2] if where.size > 1 else where
            array[mine] = np.random.default_rng(worker).normal(size=mine.size)
            arrays.append(array)
        for _ in range(2):
            results = group.sum([{"g": array} for array in arrays])
            assert check(results, arrays, slack=SLACK).finite, name


@pytest.mark.parametrize("n", ODD_SIZES)
@pytest.mark.parametrize("form", FORMS)
def test_odd_sizes_of_every_type(make_workers: Any, form: str, n: int) -> None:
    arrays = workers_of(n, 3, 0.1, n)
    made = [{dtype: typed(array, dtype) for dtype in DTYPES} for array in arrays]
    results = make_workers(3, 32, forms=form).sum([{d: mine[d][0] for d in DTYPES} for mine in made])
    for dtype in DTYPES:
        assert check(results, [mine[dtype][1] for mine in made], dtype).form == form


@pytest.mark.slow
@pytest.mark.parametrize("n", [999_999, 1_000_000])
@pytest.mark.parametrize("index", INDEXES[:3])
def test_a_million_elements(make_workers: Any, n: int, index: str) -> None:
    for form in ("compact", "sketch"):
        group = make_workers(4, 256, forms=form, index=index, predict=True)
        for step in range(2):
            arrays = workers_of(n, 4, 0.01, step)
            check(group.sum([{"g": array} for array in arrays]), arrays, slack=SLACK)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_narrow_floats_are_summed_as_they_are(make_workers: Any, form: str, implementation: str) -> None:
    halves = [array.astype(np.float16) for array in workers_of(999, 3, 0.1, 1)]
    wide = workers_of(999, 3, 0.1, 2, spread=30)
    brains, truncated = zip(*(typed(array, "bfloat16") for array in wide), strict=True)
    group = make_workers(3, forms=form, implementation=implementation)
    inputs = [
        {"half": half.reshape(27, 37)[:, ::-1], "brain": BFloat16(brain.bits.reshape(37, 27).T)}
        for half, brain in zip(halves, brains, strict=True)
    ]
    results = group.sum(inputs)
    check(results, [half.reshape(27, 37)[:, ::-1].astype(np.float32) for half in halves], "half")
    summed = check(results, [np.ascontiguousarray(array.reshape(37, 27).T) for array in truncated], "brain")
    assert summed.shape == summed.values.shape == (27, 37)
    assert summed.values.dtype == np.float32


def test_a_narrow_float_that_is_not_finite_reaches_all(make_workers: Any) -> None:
    bits, halves = np.zeros((2, 5), np.uint16), np.zeros((2, 5), np.float16)
    bits[1, 2], halves[0, 3] = 0x7F80, np.nan
    inputs = [{"brain": BFloat16(bits[w]), "half": halves[w]} for w in range(2)]
    for result in make_workers(2).sum(inputs):
        assert np.isnan(result["brain"].values).all()
        assert np.isnan(result["half"].values).all()


def test_types_are_part_of_the_plan(make_workers: Any) -> None:
    failures = make_workers(2, timeout_s=PATIENCE_S).failures(
        [{"g": np.zeros(4, np.float16)}, {"g": BFloat16(np.zeros(4, np.uint16))}]
    )
    assert "'g' float16[4] dense" in str(failures[0])
    assert "'g' bfloat16[4] dense" in str(failures[1])


@pytest.mark.parametrize("workers", [16, 32, 255])
def test_many_workers(make_workers: Any, workers: int) -> None:
    """More workers than a four-bit counter can count, all of which add to the same cells."""
    arrays = workers_of(211, workers, 0.5, workers)
    for form in ("compact", "sketch"):
        group = make_workers(workers, 32, forms=form, cells_per_candidate=1.5)
        check(group.sum([{"g": array} for array in arrays]), arrays)


def test_cells_that_wrap_many_times(make_workers: Any) -> None:
    """Sums near the limits of int32, hundreds of which share a cell, are exact."""
    n = 5000
    arrays = [np.full(n, 2.0 - 2.0**-20, np.float32) * sign for sign in (1, 1, 1)]
    group = make_workers(3, 4, forms="sketch", cells_per_candidate=0.05)
    tensor = check(group.sum([{"g": array} for array in arrays]), arrays)
    assert int(tensor.total.min()) > 2**30


class Calls:
    """A recorder of ops and lengths of all parts that one worker sums."""

    def __init__(self, group: Any) -> None:
        self.calls: list[list[tuple[str, int]]] = []
        original = group.summations[0].sum_words

        def spy(parts: Any) -> Any:
            self.calls.append([(part.op, part.words.size) for part in parts])
            return original(parts)

        group.summations[0].sum_words = spy

    def take(self) -> list[list[tuple[str, int]]]:
        taken, self.calls = self.calls, []
        return taken


@pytest.mark.parametrize("form", ["dense", "sketch"])
def test_a_prediction_that_holds_takes_one_exchange(make_workers: Any, form: str) -> None:
    group = make_workers(2, 8, forms=form, index="bitmap", predict=True, cells_per_candidate=2.0)
    calls, arrays = Calls(group), workers_of(640, 2, 0.1, 1)
    counts = []
    for factor in (1.0, 1.9, 3.9, 0.5, 2.0**-3, 2.0**-30, 2.0**30, 1.0):
        scaled = [array * np.float32(factor) for array in arrays]
        check(group.sum([{"g": array} for array in scaled]), scaled, slack=SLACK)
        counts.append(len(calls.take()))
    # The first step agrees on the tensors, without a prediction. Later, values that grow or shrink much are
    # sent again.
    assert counts == [3, 1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("cells", [1.5, 0.6])
def test_segments_of_a_sketch_sent_ahead(
    make_workers: Any, cells: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "SEGMENT_AHEAD", 60)
    settings = {"forms": "sketch", "predict": True, "cells_per_candidate": cells}
    groups = [make_workers(3, 8, implementation=one, **settings) for one in ("cpu", "reference")]
    for step in range(3):
        arrays = workers_of(4000, 3, 0.1, step)
        inputs = [{"g": array} for array in arrays]
        ours, wanted = (group.sum(inputs)[0]["g"] for group in groups)
        check([{"g": ours}], arrays, slack=SLACK)
        np.testing.assert_array_equal(ours.total, wanted.total)
        assert ours.words_sent == wanted.words_sent


def test_a_prediction_loses_no_more_than_its_slack(make_workers: Any) -> None:
    group = make_workers(2, forms="dense", predict=True)
    scales = []
    for exponent in (0, 0, -3, -4):
        arrays = [np.array([2.0**exponent], np.float32)] * 2
        results = group.sum([{"g": array} for array in arrays])
        scales.append(check(results, arrays, slack=SLACK).fixed.scale)
    assert scales == [29, 28, 28, 31]


def test_a_sketch_predicted_too_small_is_finished_by_the_left_over_round(make_workers: Any) -> None:
    group = make_workers(2, 8, forms="sketch", index="bitmap", predict=True)
    calls = Calls(group)
    for density in (0.01, 0.5):
        arrays = workers_of(2000, 2, density, 3)
        check(group.sum([{"g": array} for array in arrays]), arrays, slack=SLACK)
    header, left_over = calls.take()[-2:]
    assert [op for op, _ in header] == ["or", "or", "add"]
    assert left_over == [("add", left_over[0][1])]
    assert left_over[0][1] > 1000


def test_predictions_and_choices_wait_for_the_yes(make_workers: Any) -> None:
    """A step whose values are not finite does not change the next step's prediction."""
    group = make_workers(2, forms="dense", predict=True)
    ones = np.ones(4, np.float32)
    check(group.sum([{"g": ones}] * 2), [ones] * 2)
    for bad in (np.nan, np.inf):
        results = group.sum([{"g": ones}, {"g": ones * np.float32(bad)}])
        assert all(np.isnan(result["g"].values).all() for result in results)
        assert all(not result["g"].quantized.any() for result in results)
    calls = Calls(group)
    check(group.sum([{"g": ones}] * 2), [ones] * 2, slack=SLACK)
    assert len(calls.take()) == 1


def test_refinement_is_one_more_exchange_and_the_sketch_does_not_wait_for_it(make_workers: Any) -> None:
    arrays = workers_of(20_000, 2, 0.01, 1)
    for form, predict, ops in (
        ("compact", False, [["or", "or"], ["or"], ["add"]]),
        ("sketch", True, [["or", "or", "add"], ["or"]]),
    ):
        group = make_workers(2, forms=form, index="two_level", predict=predict)
        calls = Calls(group)
        for _ in range(2):
            calls.take()
            check(group.sum([{"g": array} for array in arrays]), arrays, slack=SLACK)
        assert [[op for op, _ in parts] for parts in calls.take()] == ops


def test_tensors_go_at_their_own_pace(make_workers: Any) -> None:
    """A dense tensor's values do not wait for another's refinement."""
    group = make_workers(2, forms={"d": "dense", "c": "compact"}, index="two_level")
    calls = Calls(group)
    arrays = workers_of(1000, 2, 0.05, 1)
    results = group.sum([{"d": array, "c": array} for array in arrays])
    for name in ("d", "c"):
        check(results, arrays, name)
    assert [[op for op, _ in parts] for parts in calls.take()] == [["or"], ["or"], ["or", "add"], ["add"]]


@pytest.mark.parametrize(
    ("density", "form", "index"),
    [
        (0.001, "compact", "bloom"),
        (0.03, "compact", "bloom"),
        (0.3, "compact", "bitmap"),
        (1.0, "dense", None),
    ],
)
def test_auto_finds_the_smallest(make_workers: Any, density: float, form: str, index: str | None) -> None:
    group = make_workers(2, 32, network=SLOW)
    arrays = [workers_of(50_000, 1, density, 1)[0]] * 2
    for _ in range(2):
        tensor = check(group.sum([{"g": array} for array in arrays]), arrays)
    assert (tensor.form, tensor.index) == (form, index)


def test_auto_finds_blocks_where_non_zeros_come_in_rows(make_workers: Any) -> None:
    group, array = make_workers(2, 32, network=SLOW), np.zeros((1000, 64), np.float32)
    array[::50] = 1.5
    for _ in range(2):
        tensor = check(group.sum([{"g": array}] * 2), [array] * 2)
    assert (tensor.form, tensor.index) == ("compact", "two_level")


def test_exchanges_that_cost_much_are_avoided(make_workers: Any) -> None:
    group = make_workers(2, 32, network=FAR, predict=True)
    arrays = workers_of(50_000, 2, 0.01, 1)
    calls, exchanges = Calls(group), {}
    for _ in range(12):  # a sketch is sent ahead once compact steps have saved its words
        tensor = check(group.sum([{"g": array} for array in arrays]), arrays, slack=SLACK)
        exchanges[tensor.form, tensor.index] = len(calls.take())
    assert exchanges == {("compact", "bloom"): 2, ("sketch", "bloom"): 1}


@pytest.mark.parametrize("name", ["limbs", "estimate", "graphs"])
def test_arguments_of_earlier_versions_are_refused(make_workers: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}: was removed; leave it out"):
        make_workers(1, **{name: 1})
    with pytest.raises(TypeError, match="'limb' is not an argument"):
        make_workers(1, limb=1)


def test_unknown_indexes_are_refused_at_once(make_workers: Any) -> None:
    with pytest.raises(InvalidRequestError, match="index: 'tree' is unknown; use one of bitmap, two_level, "):
        make_workers(1, index="tree")


@pytest.mark.parametrize(
    ("field", "value"),
    [("gbps", 0.0), ("gbps", -1.0), ("gbps", math.nan), ("round_trip_s", -1.0), ("round_trip_s", math.inf)],
)
def test_impossible_networks_are_refused_at_once(field: str, value: float) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field}: {value} is not a .*; use "):
        NetworkModel(**{field: value})


@pytest.mark.parametrize("form", ["compact", "sketch"])
@pytest.mark.parametrize("network", [SLOW, FAR], ids=["refined", "unrefined"])
def test_a_filter_so_small_that_everything_passes(
    make_workers: Any, form: str, network: NetworkModel
) -> None:
    n = 3001
    group = make_workers(2, 8, forms=form, index="bloom", predict=True, network=network)
    few, many = np.zeros(n, np.float32), workers_of(n, 1, 0.4, 1)[0]
    few[5] = 1.0
    for array in (few, few, many):
        tensor = check(group.sum([{"g": array}] * 2), [array] * 2, slack=SLACK)
    assert tensor.total_at.shape == (np.count_nonzero(many),)


@pytest.mark.parametrize("index", INDEXES[1:3])
def test_implementations_work_together(make_workers: Any, index: str) -> None:
    ways = {"forms": {"c": "compact", "s": "sketch", "d": "dense"}, "index": index, "predict": True}
    group = make_workers(2, 8, implementation="reference", **ways)
    group.reduces[1] = Allreduce(group.summations[1], implementation="cpu", **ways)
    for step in range(3):
        arrays = workers_of(5003, 2, 0.05, step)
        results = group.sum([dict.fromkeys("csd", array) for array in arrays])
        for name in "csd":
            check(results, arrays, name, slack=SLACK)


@pytest.mark.parametrize("width", [1, 64, 256, 1024])
def test_sketches_get_blocks_that_suit_the_support(make_workers: Any, width: int) -> None:
    """Rows that fill whole blocks are peeled with few lanes, as there would be too few blocks otherwise."""
    group, n = make_workers(1, 256, forms="sketch", index="bitmap"), 1 << 20
    left_over = 0
    for step in range(12):
        rng = np.random.default_rng([width, step])
        chosen = np.repeat(rng.random(n // width) < 0.005, width)
        (result,) = group.sum([{"g": chosen.astype(np.float32)}])
        cells = 1.3 * 1.01 * np.count_nonzero(chosen)
        if step:
            scales = len(result["g"].fixed.octaves)
            left_over += result["g"].words_sent > 8 + scales + n // 32 + cells
    assert left_over <= 1
