"""Agree on a scale for each block of a segment's elements, from OR-ed words: one for each block, one beside.

Strategy: the segment's word says where its largest value lies: a bit for `SPAN` exponent fields, and bit
`NON_FINITE_BIT` if some value is not finite. A block's word has bit `level % LEVELS`, where the level of an
exponent field is half of it. So the bits of all workers, read downwards from the upper end of the segment's
span, give the block's largest level, unless it is LEVELS or more below.

A block that is far below its worker's own largest value counts as `DEPTH` octaves below. Only if workers'
largest values differ by more than 2 * LEVELS - `DEPTH` - `SPAN` octaves can a level be read as one that is
LEVELS higher. The scale is then coarser than needed, never too fine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.fixed_point import MANTISSA_BITS, NON_FINITE

#: Levels that a block's word tells apart, one for each bit.
LEVELS = 32
#: log2 of the octaves (exponent fields) of a level.
LEVEL_BITS = 1
#: Octaves below a worker's largest value from which on blocks are not told apart.
DEPTH = 40
#: Exponent fields that have the same bit in a segment's word. Bits up to 28 are those of finite values.
SPAN = 9
#: The bit of a segment's word that says that some value is not finite.
NON_FINITE_BIT = 31
#: In place of an exponent field, of a segment that is zero on every worker, and of one that is not finite.
ZERO = -1
_LARGEST_FINITE = NON_FINITE - 1

_Words = NDArray[np.uint32]
_Fields = NDArray[np.int32]


def encoded(magnitudes: _Words, firsts: NDArray[np.int64]) -> tuple[_Words, _Words]:
    """Return a worker's words: uint32[segments] and uint32[blocks].

    magnitudes: each block's largest bit pattern of |g|, uint32[blocks].
    firsts: each segment's first block, and the end: int64[segments + 1]. No segment is without blocks.
    """
    largest = np.maximum.reduceat(magnitudes, firsts[:-1])
    field = (largest >> MANTISSA_BITS).astype(np.int64)
    bit = np.where(field == NON_FINITE, NON_FINITE_BIT, field // SPAN)
    segments = np.where(largest != 0, np.uint32(1) << bit.astype(np.uint32), 0).astype(np.uint32)
    least = np.repeat(np.maximum(field - DEPTH, 0), np.diff(firsts))
    levels = np.maximum((magnitudes >> MANTISSA_BITS).astype(np.int64), least) >> LEVEL_BITS
    words = np.where(magnitudes != 0, np.uint32(1) << (levels % LEVELS).astype(np.uint32), 0)
    return segments, words.astype(np.uint32)


def decoded(segments: _Words, blocks: _Words, firsts: NDArray[np.int64]) -> tuple[_Fields, _Fields]:
    """Return exponent fields int32[segments] and int32[blocks] that no worker's values exceed.

    segments, blocks: the OR of all workers' words. A segment's field is ZERO if all its values are zero, or
    NON_FINITE. A block's field is a segment's largest possible one if the block is zero.
    """
    tops = np.frexp((segments & np.uint32((1 << NON_FINITE_BIT) - 1)).astype(np.float64))[1] - 1
    tops = np.minimum(SPAN * tops + SPAN - 1, _LARGEST_FINITE)
    fields = np.where(segments == 0, ZERO, np.where(segments >> NON_FINITE_BIT, NON_FINITE, tops))
    top = np.repeat(np.maximum(tops, 0), np.diff(firsts)) >> LEVEL_BITS
    # Turned so that the level of the segment's upper end is the uppermost bit.
    left = ((LEVELS - 1 - top) % LEVELS).astype(np.uint64)
    wide = blocks.astype(np.uint64)
    turned = (wide << left | wide >> (np.uint64(LEVELS) - left)) & np.uint64(0xFFFFFFFF)
    below = np.where(blocks != 0, LEVELS - np.frexp(turned.astype(np.float64))[1], 0)
    upper = ((top - below) << LEVEL_BITS) + (1 << LEVEL_BITS) - 1
    return fields.astype(np.int32), np.clip(upper, 0, _LARGEST_FINITE).astype(np.int32)
