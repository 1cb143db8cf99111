"""The compiled loops of `peelsum.compress` against exact arithmetic on single numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from compressors import exactly

from peelsum.compress import ExactValues, loops
from peelsum.compress.memory import magnitude
from peelsum.compress.sparsifier import largest

NUMBERS = np.array([0, 1, -1, 3, 2**24 + 1, -(2**24) - 3, 2**60 + 2**36, -(2**61), 2**61 - 1], np.int64)


def nearest_float(value):
    """Return the nearest float32; of two, the even one."""
    near = np.float32(float(value))
    some = [np.nextafter(near, np.float32(to)) for to in (-np.inf, np.inf)] + [near]
    return min(some, key=lambda one: (abs(Fraction(float(one)) - value), int(one.view(np.uint32)) % 2))


#: Floats of every kind of magnitude, and of either sign.
NUMBERS_OF_FLOATS = [0, -0.0, 1e-45, -3e-39, 2**-126, -1e-20, 0.1, -1, 1 + 2**-23, 3e9, -7e20, 3.4e38]
FLOATS = np.array(NUMBERS_OF_FLOATS, np.float32)


def sums(a, b, got):
    """Require that got is a + b: exactly if 60 bits hold it, else up to 2**-58 of the larger."""
    rounded = 0
    for one, other, total in zip(a, b, got, strict=True):
        larger, finest = max(abs(one), abs(other)), max(one.denominator, other.denominator)
        if (larger * finest) < 2**58:
            assert total == one + other
        assert abs(total - one - other) <= larger / 2**58
        rounded += total != one + other
    return rounded


def pairs(scales):
    """Return every combination of a float, a number and a scale."""
    floats, numbers, scale = np.meshgrid(FLOATS, NUMBERS, np.array(scales, np.int16), indexing="ij")
    return floats.ravel(), numbers.ravel(), scale.ravel()


def test_a_gradient_is_added_exactly_where_there_is_room():
    floats, numbers, scales = pairs([-70, -24, 0, 24, 40, 149, 185])
    out, out_scales = np.full(numbers.size, 7, np.int64), np.full(numbers.size, 7, np.int16)
    loops.add_gradient(floats.view(np.uint32), numbers, scales, out, out_scales)
    given = [Fraction(float(one)) for one in floats]
    rounded = sums(exactly(numbers, scales), given, exactly(out, out_scales))
    assert 0 < rounded < numbers.size
    assert np.abs(out).max() <= 2**61
    assert not out_scales[(floats == 0) & (numbers == 0)].any()


def test_a_number_that_became_zero_leaves_no_scale_behind():
    """However coarse it was: the next gradient is exact."""
    out, scales = np.zeros(FLOATS.size, np.int64), np.full(FLOATS.size, -77, np.int16)
    loops.add_gradient(FLOATS.view(np.uint32), np.zeros_like(out), scales, out, scales)
    assert exactly(out, scales) == [Fraction(float(one)) for one in FLOATS]


def test_what_was_sent_is_subtracted_exactly_where_there_is_room():
    floats, numbers, scales = pairs([-24, 0, 40, 149])
    sent = ExactValues.of(floats.astype(np.float64))
    before, at = exactly(numbers, scales), sent.positions
    loops.subtract(numbers, scales, at, sent.numbers, sent.scales)
    given = [-Fraction(float(one)) for one in floats]
    sums(before, given, exactly(numbers, scales))
    # Units of what was sent do not matter, only what they need to be.
    one, scale = np.array([3], np.int64), np.array([1], np.int16)
    loops.subtract(one, scale, np.array([0]), np.array([2**40]), np.array([40], np.int16))
    assert (one.tolist(), scale.tolist()) == ([1], [1])


def test_velocities_decay_and_are_added():
    """u = momentum u + gradient, and what is kept grows by u, up to 2**-38 of the velocity."""
    floats, numbers, scales = pairs([-70, 0, 40, 149])
    velocity = np.roll(numbers, 1) // 8
    out, new, out_scales = np.zeros_like(numbers), np.zeros_like(numbers), np.zeros_like(scales)
    results = out, new, out_scales
    loops.add_gradient_with_momentum(floats.view(np.uint32), 0.75, numbers, velocity, scales, *results)
    before, was = exactly(numbers, scales), exactly(velocity, scales)
    sums = exactly(out, out_scales), exactly(new, out_scales)
    for gradient, kept, u, total, v in zip(floats, before, was, *sums, strict=True):
        largest = max(abs(Fraction(float(gradient))), abs(u))
        wanted = Fraction(3, 4) * u + Fraction(float(gradient))
        slack = largest / 2**39 + max(largest, abs(kept)) / 2**52
        assert abs(v - wanted) <= slack
        assert abs(total - kept - v) <= slack


@pytest.mark.parametrize("scale", [0, 40, 100, 185, -60])
def test_offers_are_floats_near_the_numbers(scale):
    out = np.full(NUMBERS.size, 7, np.float32)
    loops.to_floats(NUMBERS, np.full(NUMBERS.size, scale, np.int16), out)
    floats = [Fraction(float(nearest_float(Fraction(int(one))))) for one in NUMBERS]
    expected = [nearest_float(one / Fraction(2) ** scale) for one in floats]
    np.testing.assert_array_equal(out.view(np.uint32), np.array(expected).view(np.uint32))


def test_offers_of_too_large_numbers_are_a_part_of_them():
    out, scales = np.full(3, 7, np.float32), np.full(3, -70, np.int16)
    loops.to_floats(np.array([2**60, -(2**58), 2**55]), scales, out)
    assert out.tolist() == [2.0**126, -(2.0**126), 2.0**125]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], 0.0),
        ([0.0, -0.0], 0.0),
        ([1.0, -3.0, 2.0], 3.0),
        ([-1e-45, 0.0], 1e-45),
        ([3e38, -3.4e38], 3.4e38),
    ]
    + [([1.0, value, -4.0], math.inf) for value in (np.nan, -np.nan, np.inf, -np.inf)],
)
def test_magnitude_of_floats(values, expected):
    assert magnitude(np.array(values, np.float32)) == np.float32(expected)


def expected_largest(values, count):
    order = sorted(np.flatnonzero(~np.isnan(values)), key=lambda i: (-abs(float(values[i])), i))
    return sorted(int(one) for one in order[:count])


def test_largest_takes_the_first_of_equals():
    values = np.array([1.0, -3.0, 2.0, 0.0, 3.0, -2.0, 2.0, np.nan, 2.0 + 2**-22], np.float32)
    for count in range(10):
        assert largest(values, count).tolist() == expected_largest(values, count)


@pytest.mark.parametrize("kind", ["apart", "near", "few", "equal", "zero", "every other", "not finite"])
def test_largest_of_many(kind):
    """Of all kinds of values, whether a sample tells where they are, or misleads."""
    for size in (1, 5, 300, 2047, 2048, 4095, 4096, 4097, 20000):
        values = many(kind, size)
        for count in {1, -(-size // 100), size // 2, size - 1, size} - {0}:
            assert largest(values, count).tolist() == expected_largest(values, count)


def many(kind, size):
    rng = np.random.default_rng(size)
    values = rng.standard_normal(size)
    if kind == "apart":
        values *= 2.0 ** rng.integers(-140, 120, size)
    elif kind == "near":
        values = 1.0 + rng.integers(0, 100, size) * 2.0**-23
    elif kind == "few":
        values = np.round(values)
    elif kind in ("equal", "zero"):
        values = np.full(size, -1.5 * (kind == "equal"))
    elif kind == "every other":  # the sample sees none, or only these
        values[:: size // 2048 | 1] *= 1e6 if size % 2 else 1e-6
    else:
        values[rng.random(size) < 0.4] = np.nan
        values[rng.random(size) < 0.1] = np.inf
    return values.astype(np.float32)
