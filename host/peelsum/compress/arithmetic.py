"""Conversions that compressors share: rounding, packing into 32-bit words, and fixed point.

Values are rounded to small integers times a unit, so that they and their sums are exact in float64.
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
#: The bit pattern of infinity in float32; patterns from this one on are not finite.
NOT_FINITE = 0xFF << _MANTISSA_BITS
#: Significant bits of units that are not powers of two.
UNIT_BITS = 16


def to_code(value: float) -> int:
    """Return the bit pattern of `value` >= 0, rounded up to a float32. Patterns have the order of floats.

    NaN, and values above the range of float32, become `NOT_FINITE`.
    """
    if not value < math.inf:
        return NOT_FINITE
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if float(rounded) < value:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    return min(int(rounded.view(np.uint32)), NOT_FINITE)


def from_code(code: int) -> float:
    """Return the float32 with the bit pattern `code`."""
    return float(np.uint32(code).view(np.float32))


def round_up(values: NDArray[np.float64], bits: int = UNIT_BITS) -> NDArray[np.float64]:
    """Return the smallest numbers of at most `bits` significant bits that are not below `values` >= 0."""
    mantissas, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.ceil(np.ldexp(mantissas, bits)), exponents - bits))


def round_stochastically(values: Values, units: Values | float, random: Words) -> NDArray[np.int64]:
    """Return values / units as integers, rounded stochastically: up with the probability of the fraction.

    Magnitudes are rounded. The mean is unbiased; the probability is exact up to 2**-32.
    random: uint32, in the shape of `values`.
    """
    magnitudes = np.abs(values) / units
    below = np.floor(magnitudes)
    rounded = (below + (random < np.ldexp(magnitudes - below, _WORD_BITS))).astype(np.int64)
    return np.where(values < 0, -rounded, rounded)


def pack(fields: NDArray[np.integer], bits: int) -> Words:
    """Pack fields[n] of `bits` bits (1, 2, 4, ... or 32) into uint32[ceil(n * bits / 32)].

    Field i begins at bit (i * bits) % 32, counted from the lowest, of word i * bits // 32.
    """
    per_word = _WORD_BITS // bits
    padded = np.zeros(-(-len(fields) // per_word) * per_word, np.uint32)
    padded[: len(fields)] = fields
    columns, words = padded.reshape(-1, per_word), np.zeros(len(padded) // per_word, np.uint32)
    for column in range(per_word):
        words |= columns[:, column] << np.uint32(column * bits)
    return words


def unpack(words: Words, count: int, bits: int) -> NDArray[np.int64]:
    """Return int64[count]: the fields that `pack` packed, or their sums if words were added up."""
    shifts = np.arange(0, _WORD_BITS, bits, dtype=np.uint32)
    fields = (words[:, None] >> shifts) & np.uint32((1 << bits) - 1)
    return fields.reshape(-1)[:count].astype(np.int64)


def fixed_words(values: Floats, bound: float, workers: int) -> Words:
    """Return uint32[k]: values[k] as fixed point, scaled so that the sum of all workers' fits an int32.

    bound: the largest magnitude of any worker's values.
    """
    words = np.empty(len(values), np.uint32)
    fixed = fixed_point(to_code(bound) >> _MANTISSA_BITS, workers)
    quantize(values, fixed, words.view(np.int32))
    return words


def fixed_values(words: Words, bound: float, workers: int) -> Values:
    """Return float64[k]: the values of `fixed_words`, or their sums if words were added up."""
    scale = fixed_point(to_code(bound) >> _MANTISSA_BITS, workers).scale
    return np.ldexp(words.view(np.int32).astype(np.float64), -scale)


def to_bytes(*arrays: NDArray[Any]) -> Bytes:
    """Return the bytes of all arrays, concatenated."""
    return np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arrays])


def from_bytes(data: Bytes, *layout: tuple[type[np.generic], int]) -> list[NDArray[Any]]:
    """Return the arrays that `to_bytes` concatenated, given the type and length of each.

    Length -1 stands for all remaining bytes.
    """
    arrays, begin = [], 0
    for kind, length in layout:
        end = data.size if length < 0 else begin + length * np.dtype(kind).itemsize
        arrays.append(data[begin:end].copy().view(kind))
        begin = end
    return arrays


def join_scales(mantissas: NDArray[np.uint16], exponents: NDArray[np.int16]) -> Values:
    """Return float64[n]: the scales that `split_scales` split."""
    return np.asarray(np.ldexp(mantissas.astype(np.float64), exponents.astype(np.int64) - UNIT_BITS))


def split_scales(scales: Values) -> tuple[NDArray[np.uint16], NDArray[np.int16]]:
    """Split scales >= 0 of at most 16 significant bits into mantissas and exponents."""
    mantissas, exponents = np.frexp(scales)
    return np.ldexp(mantissas, UNIT_BITS).astype(np.uint16), exponents.astype(np.int16)


def block_count(elements: int, block: int | None) -> int:
    """Return the number of blocks of `block` elements; None makes all elements one block."""
    return -(-elements // block) if block else min(elements, 1)


def split_blocks(values: Floats, block: int | None) -> Values:
    """Return float64[blocks, block], padded with zeros."""
    out = np.zeros((block_count(values.size, block), block or max(values.size, 1)))
    out.reshape(-1)[: values.size] = values
    return out


def repeat_blocks(numbers: Values, elements: int, block: int | None) -> Values:
    """Return float64[elements]: for each element, the number of its block."""
    return np.repeat(numbers, block or max(elements, 1))[:elements]
