"""Results are as close to the exact sums as `error_bounds` says; small values survive beside large ones."""

import math
from fractions import Fraction

import numpy as np
import pytest
from sums_of_floats import check, workers_of

#: How many times as large errors may be as those of float32 added in sequence: median and 99th percentile.
MEDIAN, MOST = 2.0, 10.0


def exact_sums(arrays):
    flat = [array.reshape(-1).tolist() for array in arrays]
    return [sum((Fraction(value) for value in values), Fraction(0)) for values in zip(*flat, strict=True)]


def held(tensor, sums, divisor=1):
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
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_no_value_differs_by_more_than_its_bound(make_workers, form, average):
    group = make_workers(3, forms=form, average=average)
    for step in range(3):
        arrays = workers_of(700, 3, 0.4, step, spread=12)
        arrays[step][step] = 3e38 if step else 1e-45
        tensor = group.sum([{"g": array} for array in arrays])[0]["g"]
        held(tensor, exact_sums(arrays), 3 if average else 1)
        if form != "dense":
            untouched = np.logical_and.reduce([array == 0 for array in arrays])
            assert not tensor.error_bounds[untouched].any()


def test_bounds_are_no_larger_than_they_must_be(make_workers):
    """The worst of many elements comes close; without the rounding to float32, it would exceed its bound."""
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(0.5, 1, 4000).astype(np.float32) for _ in range(2)]
    tensor = make_workers(2).sum([{"g": array} for array in arrays])[0]["g"]
    errors = np.array(
        [abs(float(Fraction(v) - s)) for v, s in zip(tensor.values.tolist(), exact_sums(arrays), strict=True)]
    )
    assert (errors / tensor.error_bounds).max() > 0.9
    assert errors.max() > 2 / 2 ** (tensor.fixed.scale + 1)


def test_a_sum_too_large_for_float32_has_no_bound(make_workers):
    array = np.array([3e38, 1.0], np.float32)
    tensor = make_workers(2).sum([{"g": array}] * 2)[0]["g"]
    assert tensor.values.tolist() == [math.inf, 0.0]
    held(tensor, exact_sums([array] * 2))


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_small_values_are_summed_as_well_as_by_float32(make_workers, form, workers):
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
