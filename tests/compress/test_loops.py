"""The compiled loops of `peelsum.compress` against exact arithmetic on single numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from peelsum.compress import TopK, loops
from peelsum.compress.sparsifiers import largest

NUMBERS = np.array([0, 1, -1, 3, 2**24 + 1, -(2**24) - 3, 2**60 + 2**36, -(2**61), 2**61 - 1], np.int64)


def nearest_float(value: Fraction) -> np.float32:
    """Return the nearest float32; of two, the even one."""
    near = np.float32(float(value))
    some = [np.nextafter(near, np.float32(to)) for to in (-np.inf, np.inf)] + [near]
    return min(some, key=lambda one: (abs(Fraction(float(one)) - value), int(one.view(np.uint32)) % 2))


@pytest.mark.parametrize("numbers", [NUMBERS, NUMBERS[:0], NUMBERS[:1], -NUMBERS[:-1], NUMBERS[-2:-1]])
def test_magnitude(numbers: np.ndarray) -> None:
    assert loops.magnitude(numbers) == max((abs(int(one)) for one in numbers), default=0)


@pytest.mark.parametrize("scale", [0, 1, 20, 40, 149, -24])
def test_units_are_rounded_to_the_nearest_even(scale: int) -> None:
    spacing = 2.0**-scale
    gradient = np.array([0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.75, 3.0, -(2.0**20)]) * spacing
    gradient = gradient.astype(np.float32)
    out = np.full(gradient.size, 7, np.int64)
    loops.units(gradient, math.ldexp(1.0, scale), out)
    assert out.tolist() == [round(Fraction(float(one)) * Fraction(2) ** scale) for one in gradient]


@pytest.mark.parametrize("scale", [0, 40, 100, 185, -60])
def test_offers_are_floats_near_the_numbers(scale: int) -> None:
    out = np.full(NUMBERS.size, 7, np.float32)
    loops.offer(NUMBERS, math.ldexp(1.0, -scale), out)
    expected = [
        nearest_float(Fraction(float(nearest_float(Fraction(int(one))))) / Fraction(2) ** scale)
        for one in NUMBERS
    ]
    np.testing.assert_array_equal(out.view(np.uint32), np.array(expected).view(np.uint32))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_largest_takes_the_first_of_equals(count: int) -> None:
    magnitudes = np.array([1.0, 3.0, 2.0, 0.0, 3.0, 2.0, 2.0], np.float32)
    order = sorted(range(7), key=lambda i: (-magnitudes[i], i))[:count]
    out = np.full(count, 9, np.int64)
    assert loops.largest(magnitudes, magnitudes[order[-1]], out) == count
    assert out.tolist() == sorted(order)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_top_k_never_chooses_nan(count: int) -> None:
    magnitudes = np.array([np.nan, 1.0, 2.0], np.float32)
    chosen = TopK(1.0).choose(magnitudes, 0, 0) if count == 3 else largest(magnitudes, count)
    assert set(chosen.tolist()) <= {1, 2}
