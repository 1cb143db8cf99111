"""The compiled loops of `peelsum.compress` against exact arithmetic on single numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from peelsum.compress import TopK, loops
from peelsum.compress.memory import magnitude
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


@pytest.mark.parametrize("scale", [0, 40])
@pytest.mark.parametrize("elements", [0, 1, 9])
def test_added_units(scale: int, elements: int) -> None:
    """The sum of what is kept and of the rounded gradient, and its largest magnitude."""
    kept, out = NUMBERS[:elements] // 4, np.full(elements, 7, np.int64)
    gradient = np.ldexp([-0.5, 1.5, 2.5, 3.0, -7.0, 0.75, -(2.0**19), 2.0**18, 1.0], -scale)
    gradient = gradient.astype(np.float32)[:elements]
    most = loops.added_units(gradient, math.ldexp(1.0, scale), kept, out)
    units = [round(Fraction(float(one)) * Fraction(2) ** scale) for one in gradient]
    assert out.tolist() == [int(a) + b for a, b in zip(kept, units, strict=True)]
    assert most == max(map(abs, out.tolist()), default=0)


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
def test_magnitude_of_floats(values: list[float], expected: float) -> None:
    assert magnitude(np.array(values, np.float32)) == np.float32(expected)


def expected_largest(values: np.ndarray, count: int) -> list[int]:
    order = sorted(np.flatnonzero(~np.isnan(values)), key=lambda i: (-abs(float(values[i])), i))
    return sorted(int(one) for one in order[:count])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("count", range(10))
def test_largest_takes_the_first_of_equals(count: int, dtype: type[np.floating]) -> None:
    values = np.array([1.0, -3.0, 2.0, 0.0, 3.0, -2.0, 2.0, np.nan, 2.0 + 1e-12], dtype)
    assert largest(values, count).tolist() == expected_largest(values, count)


@pytest.mark.parametrize("size", [1, 5, 300, 2047, 2048, 4095, 4096, 4097, 20000])
@pytest.mark.parametrize("kind", ["apart", "near", "few", "equal", "zero", "every other", "not finite"])
def test_largest_of_many(kind: str, size: int) -> None:
    """Of all kinds of values, whether a sample tells where they are, or misleads."""
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
    values = values.astype(np.float32)
    for count in {1, -(-size // 100), size // 2, size - 1, size} - {0}:
        assert largest(values, count).tolist() == expected_largest(values, count)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_top_k_never_chooses_nan(count: int) -> None:
    magnitudes = np.array([np.nan, 1.0, 2.0], np.float32)
    chosen = TopK(1.0).choose(magnitudes, 0, 0) if count == 3 else largest(magnitudes, count)
    assert set(chosen.tolist()) <= {1, 2}
