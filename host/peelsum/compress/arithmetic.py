"""Conversions that compressors share: rounding, packing into 32-bit words, and fixed point.

Values are rounded so that each is a small integer times a unit: float64 then holds them and their sums.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import fixed_point, quantize
from peelsum.compress.compressor import Floats, Values
from peelsum.summation import Words

Bytes = NDArray[np.uint8]

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


def rounded(values: Values, bits: int) -> Values:
    """Return values rounded to `bits` significant bits."""
    mantissas, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissas, bits)), exponents - bits))


def levels(values: Values, units: Values | float, random: Words) -> NDArray[np.int64]:
    """Return values / units, magnitudes rounded up with the probability of their fraction, else down.

    The mean is unbiased; the probability is exact up to 2**-32.
    """
    magnitudes = np.abs(values) / units
    below = np.floor(magnitudes)
    rounded = (below + (random < np.ldexp(magnitudes - below, _WORD_BITS))).astype(np.int64)
    return np.where(values < 0, -rounded, rounded)


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


def field_bits(largest: int) -> int:
    """Return the smallest width, 1, 2, 4, ... 32, of a field that holds 0 to `largest`."""
    return 1 << (max(largest.bit_length(), 1) - 1).bit_length()


def fixed_words(values: Floats, bound: float, workers: int) -> Words:
    """Return values[k] in the fixed point in which sums of `workers` values up to `bound` fit an int32."""
    words = np.empty(len(values), np.uint32)
    fixed = fixed_point(code_of(bound) >> _MANTISSA_BITS, workers)
    quantize(values, fixed, words.view(np.int32))
    return words


def fixed_values(words: Words, bound: float, workers: int) -> Values:
    """Return float64[k]: the values of `fixed_words`, or of their sum over workers."""
    scale = fixed_point(code_of(bound) >> _MANTISSA_BITS, workers).scale
    return np.ldexp(words.view(np.int32).astype(np.float64), -scale)


def bytes_of(*arrays: NDArray[Any]) -> Bytes:
    """Return the arrays' bytes, one after the other."""
    return np.concatenate([np.ascontiguousarray(one).view(np.uint8) for one in arrays])


def arrays_of(data: Bytes, *layout: tuple[type[np.generic], int]) -> list[NDArray[Any]]:
    """Return the arrays of `bytes_of`, by the type and length of each; length -1 is all that is left."""
    arrays, begin = [], 0
    for kind, length in layout:
        end = data.size if length < 0 else begin + length * np.dtype(kind).itemsize
        arrays.append(data[begin:end].copy().view(kind))
        begin = end
    return arrays


def scales_of(mantissas: NDArray[np.uint16], exponents: NDArray[np.int16]) -> Values:
    """Return float64[n]: the scales of `halves_of`."""
    return np.asarray(np.ldexp(mantissas.astype(np.float64), exponents.astype(np.int64) - UNIT_BITS))


def halves_of(scales: Values) -> tuple[NDArray[np.uint16], NDArray[np.int16]]:
    """Return the mantissas and the exponents of scales >= 0 of at most 16 significant bits."""
    mantissas, exponents = np.frexp(scales)
    return np.ldexp(mantissas, UNIT_BITS).astype(np.uint16), exponents.astype(np.int16)


def block_count(elements: int, block: int | None) -> int:
    """Return the number of blocks, of which the last may be shorter; None is one block of all."""
    return -(-elements // block) if block else min(elements, 1)


def blocked(values: Floats, block: int | None) -> Values:
    """Return float64[blocks, block], padded with zeros."""
    out = np.zeros((block_count(values.size, block), block or max(values.size, 1)))
    out.reshape(-1)[: values.size] = values
    return out


def by_element(numbers: Values, elements: int, block: int | None) -> Values:
    """Return float64[elements]: each block's number, for all its elements."""
    return np.repeat(numbers, block or max(elements, 1))[:elements]
