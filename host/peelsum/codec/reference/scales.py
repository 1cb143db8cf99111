"""Encode and decode the words that agree on scales, in NumPy: `peelsum.codec.scales` says what they mean."""

from __future__ import annotations

import numpy as np

from peelsum.codec.arrays import Integers, Numbers, Words
from peelsum.codec.fixed_point import MANTISSA_BITS, NON_FINITE
from peelsum.codec.scales import (
    DEPTH,
    LARGEST_FINITE,
    LEVEL_BITS,
    LEVELS,
    NON_FINITE_BIT,
    SPAN,
    ZERO,
)


def encode_scales(magnitudes: Words, firsts: Numbers) -> tuple[Words, Words]:
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


def decode_scales(segments: Words, blocks: Words, firsts: Numbers) -> tuple[Integers, Integers]:
    """Return exponent fields int32[segments] and int32[blocks] that no worker's values exceed.

    segments, blocks: the OR of all workers' words. A segment's field is `ZERO` if all its values are zero, or
    `NON_FINITE` if some are not finite. A block of zeros has the largest field that its segment may have.
    """
    tops = np.frexp((segments & np.uint32((1 << NON_FINITE_BIT) - 1)).astype(np.float64))[1] - 1
    tops = np.minimum(SPAN * tops + SPAN - 1, LARGEST_FINITE)
    fields = np.where(segments == 0, ZERO, np.where(segments >> NON_FINITE_BIT, NON_FINITE, tops))
    top = np.repeat(np.maximum(tops, 0), np.diff(firsts)) >> LEVEL_BITS
    # Rotated left, so that the level of the segment's upper end is the uppermost bit.
    bits = ((LEVELS - 1 - top) % LEVELS).astype(np.uint64)
    words = blocks.astype(np.uint64)
    rotated = (words << bits | words >> (np.uint64(LEVELS) - bits)) & np.uint64(0xFFFFFFFF)
    below = np.where(blocks != 0, LEVELS - np.frexp(rotated.astype(np.float64))[1], 0)
    upper = ((top - below) << LEVEL_BITS) + (1 << LEVEL_BITS) - 1
    return fields.astype(np.int32), np.clip(upper, 0, LARGEST_FINITE).astype(np.int32)
