"""Loops over the blocks of a step that have scales of their own, compiled by Numba and cached on disk.

A large model has millions of blocks: each loop goes over them once, and allocates nothing. `firsts`,
int64[segments + 1], holds each segment's first block, and the end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.block_scales import (
    DEPTH,
    LEVEL_BITS,
    LEVELS,
    NON_FINITE_BIT,
    SPAN,
    ZERO,
)
from peelsum.codec.cpu_index_loops import Numbers, Words, compiled, magnitude, ones
from peelsum.codec.fixed_point import MANTISSA_BITS, NON_FINITE
from peelsum.codec.index import WORD_BITS as ROW

_Integers = NDArray[np.int32]
_Flags = NDArray[np.bool_]
_Factors = NDArray[np.float64]

_LARGEST_FINITE = NON_FINITE - 1
_MANTISSA_OF_FLOAT64, _BIAS_OF_FLOAT64 = 52, 1023
_ONE, _31, _32 = np.uint32(1), np.uint32(31), np.uint32(32)


@compiled
def encode_scales(firsts: Numbers, magnitudes: Words, segments: Words, blocks: Words) -> None:
    """Do what `block_scales.encoded` does. `magnitudes` may be `blocks`."""
    for s in range(segments.size):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        largest = magnitude(magnitudes[firsts[s] : firsts[s + 1]])
        field = np.int64(largest >> np.uint32(MANTISSA_BITS))
        bit = NON_FINITE_BIT if field == NON_FINITE else field // SPAN
        segments[s] = np.uint32(1 << bit) if largest else np.uint32(0)
        least = np.int64(field - DEPTH if field > DEPTH else 0)
        for b in range(begin, end):
            own = np.int64(magnitudes[b] >> np.uint32(MANTISSA_BITS))
            level = (own if own > least else least) >> LEVEL_BITS
            blocks[b] = np.uint32(1 << (level % LEVELS)) if magnitudes[b] else np.uint32(0)


@compiled
def decode_scales(
    segments: Words, blocks: Words, firsts: Numbers, highest: int, fields: _Integers, scales: _Integers
) -> None:
    """Do what `block_scales.decoded` does; write scales[blocks], `highest` less a block's field."""
    for s in range(segments.size):
        top = _top(segments[s])
        fields[s] = top if segments[s] else ZERO
        if segments[s] >> np.uint32(NON_FINITE_BIT):
            fields[s] = NON_FINITE
        level = max(top, 0) >> LEVEL_BITS
        turn = np.uint32((LEVELS - 1 - level) % LEVELS)
        for b in range(np.uint64(firsts[s]), np.uint64(firsts[s + 1])):
            # Turned: the segment's uppermost level is the uppermost bit. Fill all bits below the highest.
            word = np.uint32((blocks[b] << turn) | (blocks[b] >> ((_32 - turn) & _31)))
            for shift in (1, 2, 4, 8, 16):
                word = np.uint32(word | (word >> np.uint32(shift)))
            below = np.int64(LEVELS - int(ones(word))) if word else np.int64(0)
            upper = ((level - below) << LEVEL_BITS) + (1 << LEVEL_BITS) - 1
            upper = upper if upper > 0 else np.int64(0)
            scales[b] = highest - (upper if upper < _LARGEST_FINITE else np.int64(_LARGEST_FINITE))


@compiled
def powers(scales: _Integers, factors: _Factors, inverse: _Factors) -> None:
    """Write 2**scale and 2**-scale."""
    bits, inverse_bits = factors.view(np.int64), inverse.view(np.int64)
    for b in range(scales.size):
        bits[b] = (_BIAS_OF_FLOAT64 + np.int64(scales[b])) << _MANTISSA_OF_FLOAT64
        inverse_bits[b] = (_BIAS_OF_FLOAT64 - np.int64(scales[b])) << _MANTISSA_OF_FLOAT64


@compiled
def _top(word: np.uint32) -> int:
    """Return the largest exponent field that a segment's word allows, or less than 0."""
    for bit in range(NON_FINITE_BIT - 1, -1, -1):
        if (word >> np.uint32(bit)) & _ONE:
            return min(SPAN * bit + SPAN - 1, _LARGEST_FINITE)
    return -1


@compiled
def located(
    flags: _Flags, begins: Numbers, rows: Numbers, firsts: Numbers, sizes: Numbers
) -> NDArray[np.int64]:
    """Return the rows of `Located`, int64[4, k], for the elements of flagged blocks.

    begins, rows: int64[segments + 1], of `Table`. sizes: int64[segments], elements of a block.
    """
    count = 0
    for s in range(sizes.size):
        for b in range(firsts[s], firsts[s + 1]):
            if flags[b]:
                count += min(sizes[s], begins[s + 1] - begins[s] - (b - firsts[s]) * sizes[s])
    found, at = np.empty((4, count), np.int64), 0
    for s in range(sizes.size):
        for b in range(firsts[s], firsts[s + 1]):
            if not flags[b]:
                continue
            start = (b - firsts[s]) * sizes[s]
            for i in range(start, min(start + sizes[s], begins[s + 1] - begins[s])):
                found[0, at], found[1, at], found[2, at] = begins[s] + i, s, b
                found[3, at] = ROW * rows[s] + i
                at += 1
    return found
