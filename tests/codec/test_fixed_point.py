"""The shared scale never overflows, never wastes a bit, and follows from OR-ed words alone."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peelsum.codec import NON_FINITE, CodecError, FixedPoint, device, quantize, scale_for

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
WORKERS = st.integers(1, 2**31 - 1)


def bits_of(value):
    return int(np.float32(abs(value)).view(np.uint32))


@settings(deadline=None, derandomize=True)
@given(st.integers(0, NON_FINITE - 1), WORKERS)
def test_scale_is_the_largest_that_cannot_overflow(field, workers):
    scale = scale_for(field, workers)
    largest = (2 - Fraction(2) ** -23) * Fraction(2) ** (field - 127)
    assert workers * round(largest * Fraction(2) ** scale) <= 2**31 - 1
    assert workers * round(largest * Fraction(2) ** (scale + 1)) > 2**31 - 1


@settings(deadline=None, derandomize=True)
@given(values=st.lists(FINITE, min_size=1, max_size=8))
def test_sum_of_quantised_values_fits_and_keeps_the_bound(values):
    scale = scale_for(max(map(bits_of, values)) >> 23, len(values))
    quantized = np.empty(len(values), np.int32)
    quantize(np.array(values, np.float32), FixedPoint(scale), quantized)
    total = sum(int(q) for q in quantized)
    assert abs(total) <= 2**31 - 1
    exact = sum(Fraction(float(np.float32(value))) for value in values)
    assert abs(Fraction(total) / Fraction(2) ** scale - exact) <= len(values) * Fraction(2) ** -(scale + 1)


def test_subnormals_are_quantised_exactly():
    values = np.array([1e-45, -3e-45, 1.1754942e-38, 0.0], np.float32)
    scale = scale_for(0, 4)
    quantized = np.empty(4, np.int32)
    quantize(values, FixedPoint(scale), quantized)
    np.testing.assert_array_equal(np.ldexp(quantized.astype(np.float64), -scale), values)


@pytest.mark.parametrize(("field", "workers"), [(10, 0), (10, 2**31), (NON_FINITE, 4), (-1, 4)])
def test_impossible_scales_are_refused(field, workers):
    with pytest.raises(CodecError, match="use "):
        scale_for(field, workers)


@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 97, 1009, 8191, 8192, 8193, 3 * 8192 + 17, 65537])
def test_quantize(n):
    rng, scale = np.random.default_rng(n), 11
    sample = (rng.normal(size=n) * 10.0 ** rng.integers(-6, 3, n) * (rng.random(n) < 0.9)).astype(np.float32)
    expected = [round(float(value) * 2.0**scale) for value in sample]
    out = np.empty(n, np.int32)
    quantize(sample, FixedPoint(scale), out)
    np.testing.assert_array_equal(out, np.array(expected, np.int32))


def test_half_goes_to_even():
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    out = np.empty(6, np.int32)
    quantize(halves, FixedPoint(0), out)
    np.testing.assert_array_equal(out, [0, 2, 2, 0, -2, -2])


def test_read_only_and_foreign_memory_is_read():
    sample = np.frombuffer(np.linspace(-9, 9, 97, dtype=np.float32).tobytes(), np.float32)
    assert not sample.flags.writeable
    out = np.empty(97, np.int32)
    quantize(sample, FixedPoint(3), out)
    np.testing.assert_array_equal(out, np.rint(sample.astype(np.float64) * 8).astype(np.int32))


def test_unknown_implementation_is_refused():
    with pytest.raises(CodecError, match="'gpux' is unknown; use one of cpu, reference"):
        device("gpux")
