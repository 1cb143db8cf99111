"""Results are as close to the exact sums as `error_bounds` says; small values survive beside large ones."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sums_of_floats import FORMS, check, workers_of

from peelsum.allreduce.costs import Seen, candidates
from peelsum.allreduce.plan import Settings

#: How many times as large errors may be as those of float32 added in sequence: median and 99th percentile.
MEDIAN, MOST = 2.0, 10.0


def exact_sums(arrays: list[Any]) -> list[Fraction]:
    flat = [array.reshape(-1).tolist() for array in arrays]
    return [sum((Fraction(value) for value in values), Fraction(0)) for values in zip(*flat, strict=True)]


def held(tensor: Any, sums: list[Fraction], divisor: int = 1) -> None:
    """Neither bound is exceeded by any element, in Python's fractions; the bound for all is the larger."""
    bounds, values = tensor.error_bounds.reshape(-1), tensor.values.reshape(-1)
    assert tensor.error_bounds.shape == tensor.shape
    for exact, value, bound in zip(sums, values.tolist(), bounds.tolist(), strict=True):
        if math.isinf(value):
            assert bound == tensor.error_bound == math.inf
            continue
        error = abs(Fraction(value) - exact / divisor)
        assert error <= Fraction(bound)
        assert math.isinf(bound) or bound <= tensor.error_bound


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_no_value_differs_by_more_than_its_bound(make_workers: Any, form: str, average: bool) -> None:
    group = make_workers(3, forms=form, average=average)
    for step in range(3):
        arrays = workers_of(700, 3, 0.4, step, spread=12)
        arrays[step][step] = 3e38 if step else 1e-45
        tensor = group.sum([{"g": array} for array in arrays])[0]["g"]
        held(tensor, exact_sums(arrays), 3 if average else 1)
        if form != "dense":
            untouched = np.logical_and.reduce([array == 0 for array in arrays])
            assert not tensor.error_bounds[untouched].any()


def test_bounds_are_no_larger_than_they_must_be(make_workers: Any) -> None:
    """The worst of many elements comes close; without the rounding to float32, it would exceed its bound."""
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(0.5, 1, 4000).astype(np.float32) for _ in range(2)]
    tensor = make_workers(2).sum([{"g": array} for array in arrays])[0]["g"]
    errors = np.array(
        [abs(float(Fraction(v) - s)) for v, s in zip(tensor.values.tolist(), exact_sums(arrays), strict=True)]
    )
    assert (errors / tensor.error_bounds).max() > 0.9
    assert errors.max() > 2 / 2 ** (tensor.fixed.scale + 1)


def test_a_sum_too_large_for_float32_has_no_bound(make_workers: Any) -> None:
    array = np.array([3e38, 1.0], np.float32)
    tensor = make_workers(2).sum([{"g": array}] * 2)[0]["g"]
    assert tensor.values.tolist() == [math.inf, 0.0]
    held(tensor, exact_sums([array] * 2))


def test_what_is_not_exact_at_all_has_no_bound(make_workers: Any) -> None:
    infinite = np.array([math.inf, 1.0], np.float32)
    tensor = make_workers(2).sum([{"g": infinite}] * 2)[0]["g"]
    assert tensor.error_bound == math.inf
    assert np.isinf(tensor.error_bounds).all()


@pytest.mark.parametrize("form", ["dense", "compact"])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_small_values_are_summed_as_well_as_by_float32(make_workers: Any, form: str, workers: int) -> None:
    """Rows of 128 whose magnitudes differ by up to 2**30; with one scale, half would be lost.

    In its first step, a compact tensor of unknown density has larger blocks.
    """
    rng = np.random.default_rng(workers)
    rows = 2.0 ** -rng.integers(0, 31, 200)
    arrays = [(rows[:, None] * rng.standard_normal((200, 128))).astype(np.float32) for _ in range(workers)]
    group = make_workers(workers, 256, forms=form)
    for _ in range(2):
        tensor = check(group.sum([{"g": array} for array in arrays]), arrays)
    assert tensor.fixed.block == 32
    exact = np.sum(arrays, axis=0, dtype=np.longdouble)
    in_sequence = arrays[0].copy()
    for array in arrays[1:]:
        in_sequence += array
    ours, float32 = (np.abs((one - exact) / exact) for one in (tensor.values, in_sequence))
    assert np.median(ours) <= MEDIAN * np.median(float32)
    assert np.quantile(ours, 0.99) <= MOST * np.quantile(float32, 0.99)


def test_an_outlier_costs_only_its_block(make_workers: Any) -> None:
    arrays = [np.full(4096, 1e-3, np.float32) for _ in range(2)]
    arrays[0][1000] = 1e6
    tensor = make_workers(2, 256).sum([{"g": array} for array in arrays])[0]["g"]
    others = np.delete(tensor.values, slice(992, 1024))
    np.testing.assert_array_equal(others, np.float32(2e-3))
    assert tensor.values[1000] == np.float32(1e6 + 1e-3)


@pytest.mark.parametrize("n", [4096, 2**20])
@pytest.mark.parametrize("density", [0.01, 0.03, 0.1, 0.3, 1.0])
def test_scales_take_at_most_one_word_in_twenty(n: int, density: float) -> None:
    """Of every way to send it, by formula; a worker counts the same words."""
    for one in candidates(n, Seen.uniform(n, density), Settings(), predict=False):
        block = one.choice.scale_block
        assert block is not None or n == 4096
        assert not block or -(-n // block) <= one.words / 20


@pytest.mark.parametrize("form", ["dense", "compact"])
def test_words_of_scales_are_sent_and_counted(make_workers: Any, form: str) -> None:
    arrays = workers_of(40_000, 2, 0.05, 3)
    group = make_workers(2, 256, forms=form, index="bitmap")
    for _ in range(2):
        tensor = group.sum([{"g": array} for array in arrays])[0]["g"]
        values = 40_000 if form == "dense" else 1250 + len(tensor.positions)
        blocks = tensor.words_sent - 8 - values
        assert blocks == -(-40_000 // tensor.fixed.block)
        assert 0 < blocks <= values / 20


def test_workers_whose_choices_differ_do_not_mix_scales(make_workers: Any) -> None:
    """The blocks are part of the plan: they follow from what all saw, and a digest says so."""
    group = make_workers(2, forms="compact")
    for density in (0.5, 0.01, 0.2):
        arrays = workers_of(20_000, 2, density, 1)
        results = group.sum([{"g": array} for array in arrays])
        check(results, arrays)
        assert len({result["g"].fixed.block for result in results}) == 1
