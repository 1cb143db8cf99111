"""Conversions that compressors share: rounding, packing into 32-bit words, and fixed point.

Values are rounded so that each is a small integer times a unit: float64 then holds them and their sums.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import fixed_point, kernels
from peelsum.compress.compressor import Floats, Values
from peelsum.summation import Words

_WORD_BITS = 32
_MANTISSA_BITS = 23
#: The bit pattern of infinity in float32; codes from here on are not finite.
NOT_FINITE = 0xFF << _MANTISSA_BITS
#: Significant bits of units that are not powers of two.
UNIT_BITS = 16


def code_of(value: float) -> int:
    """Return the bits of the smallest float32 from `value` >= 0 on, which are ordered as the floats are.

    NaN and what float32 cannot hold become `NOT_FINITE`.
    """
    if not value < math.inf:
        return NOT_FINITE
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if float(rounded) < value:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    return min(int(rounded.view(np.uint32)), NOT_FINITE)


def value_of(code: int) -> float:
    """Return the float32 whose bits are `code`."""
    return float(np.uint32(code).view(np.float32))


def rounded_up(values: NDArray[np.float64], bits: int = UNIT_BITS) -> NDArray[np.float64]:
    """Return the smallest numbers of at most `bits` significant bits that are not below `values` >= 0."""
    mantissas, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.ceil(np.ldexp(mantissas, bits)), exponents - bits))


def stochastic(magnitudes: NDArray[np.float64], random: Words) -> NDArray[np.int64]:
    """Return magnitudes >= 0, each rounded up with the probability of its fraction, else down: unbiased.

    The probability is exact up to 2**-32.
    """
    below = np.floor(magnitudes)
    return (below + (random < np.ldexp(magnitudes - below, _WORD_BITS))).astype(np.int64)


def pack(fields: NDArray[np.integer], bits: int) -> Words:
    """Return fields[n] of `bits` bits, 1, 2, 4, ... 32, as uint32[ceil(n * bits / 32)].

    Field i is in bits (i * bits) % 32 upwards of word i * bits // 32.
    """
    each = _WORD_BITS // bits
    padded = np.zeros(-(-len(fields) // each) * each, np.uint32)
    padded[: len(fields)] = fields
    columns, words = padded.reshape(-1, each), np.zeros(len(padded) // each, np.uint32)
    for column in range(each):
        words |= columns[:, column] << np.uint32(column * bits)
    return words


def unpack(words: Words, count: int, bits: int) -> NDArray[np.int64]:
    """Return int64[count]: the fields that `pack` packed, or their sums."""
    shifts = np.arange(0, _WORD_BITS, bits, dtype=np.uint32)
    fields = (words[:, None] >> shifts) & np.uint32((1 << bits) - 1)
    return fields.reshape(-1)[:count].astype(np.int64)


def packed_words(count: int, bits: int) -> int:
    """Return the number of words that `pack` returns for `count` fields."""
    return -(-count * bits // _WORD_BITS)


def field_bits(largest: int) -> int:
    """Return the smallest width, 1, 2, 4, ... 32, of a field that holds 0 to `largest`."""
    return 1 << (max(largest.bit_length(), 1) - 1).bit_length()


def fixed_words(values: Floats, bound: float, workers: int) -> Words:
    """Return values[k] in the fixed point in which sums of `workers` values up to `bound` fit an int32."""
    words = np.empty(len(values), np.uint32)
    fixed = fixed_point(code_of(bound) >> _MANTISSA_BITS, workers)
    kernels("cpu").quantize(values, fixed, words.view(np.int32))
    return words


def fixed_values(words: Words, bound: float, workers: int) -> Values:
    """Return float64[k]: the values of `fixed_words`, or of their sum over workers."""
    scale = fixed_point(code_of(bound) >> _MANTISSA_BITS, workers).scale
    return np.ldexp(words.view(np.int32).astype(np.float64), -scale)
