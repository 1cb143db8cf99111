"""The shared scale never overflows, never wastes a bit, and follows from OR-ed words alone."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peelsum.codec import (
    NON_FINITE,
    CodecError,
    FixedPoint,
    kernels,
    scale_for,
)

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
FAN_IN = st.integers(1, 2**31 - 1)


def bits_of(value: float) -> int:
    return int(np.float32(abs(value)).view(np.uint32))


@settings(deadline=None, derandomize=True)
@given(st.integers(0, NON_FINITE - 1), FAN_IN)
def test_scale_is_the_largest_that_cannot_overflow(field: int, fan_in: int) -> None:
    scale = scale_for(field, fan_in)
    largest = (2 - Fraction(2) ** -23) * Fraction(2) ** (field - 127)
    assert fan_in * round(largest * Fraction(2) ** scale) <= 2**31 - 1
    assert fan_in * round(largest * Fraction(2) ** (scale + 1)) > 2**31 - 1


@pytest.mark.parametrize("implementation", ["reference", "cpu"])
@settings(deadline=None, derandomize=True)
@given(values=st.lists(FINITE, min_size=1, max_size=8))
def test_sum_of_quantised_values_fits_and_keeps_the_bound(implementation: str, values: list[float]) -> None:
    ops = kernels(implementation)  # type: ignore[arg-type]
    scale = scale_for(max(map(bits_of, values)) >> 23, len(values))
    quantized = np.empty(len(values), np.int32)
    ops.quantize(np.array(values, np.float32), FixedPoint(scale), quantized)
    total = sum(int(q) for q in quantized)
    assert abs(total) <= 2**31 - 1
    exact = sum(Fraction(float(np.float32(value))) for value in values)
    assert abs(Fraction(total) / Fraction(2) ** scale - exact) <= len(values) * Fraction(2) ** -(scale + 1)


def test_subnormals_are_quantised_exactly() -> None:
    values = np.array([1e-45, -3e-45, 1.1754942e-38, 0.0], np.float32)
    scale = scale_for(0, 4)
    for name in ("reference", "cpu"):
        ops = kernels(name)  # type: ignore[arg-type]
        quantized = np.empty(4, np.int32)
        ops.quantize(values, FixedPoint(scale), quantized)
        np.testing.assert_array_equal(np.ldexp(quantized.astype(np.float64), -scale), values)


@pytest.mark.parametrize(("field", "fan_in"), [(10, 0), (10, 2**31), (NON_FINITE, 4), (-1, 4)])
def test_impossible_scales_are_refused(field: int, fan_in: int) -> None:
    with pytest.raises(CodecError, match="use "):
        scale_for(field, fan_in)
