"""Agree on a scale for each block of a tensor's elements, from OR-ed words: one word for each block.

Strategy: a block's largest exponent field, halved, is its level. A worker sets bit `level % LEVELS` of the
block's word. The largest field of the whole tensor is agreed beside it. So the bits of the OR, read downwards
from that field's level, give the largest level of any worker, unless it is LEVELS or more below.

A block that is far below its worker's own largest value counts as `DEPTH` octaves below. Only if workers'
largest values differ by more than 2 * LEVELS - `DEPTH` octaves can a level be read as one that is LEVELS
higher. The scale is then coarser than needed, never too fine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.fixed_point import MANTISSA_BITS

#: Levels that a word tells apart, one for each bit.
LEVELS = 32
#: log2 of the octaves (exponent fields) of a level.
LEVEL_BITS = 1
#: Octaves below a worker's largest value from which on blocks are not told apart.
DEPTH = 46
_LOW32 = 0xFFFFFFFF
_Fields = int | NDArray[np.int64]


def exponents_of(largest: NDArray[np.uint32], magnitude: int | NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the words uint32[blocks] that a worker contributes to the OR.

    `largest` holds each block's largest bit pattern of |g|, and `magnitude` that of its tensor, one for all
    blocks or one for each. Blocks of zeros get a word without bits.
    """
    least = np.maximum((np.asarray(magnitude, np.int64) >> MANTISSA_BITS) - DEPTH, 0)
    fields = np.maximum((largest >> MANTISSA_BITS).astype(np.int64), least).astype(np.uint32)
    bits = np.uint32(1) << (fields >> LEVEL_BITS) % LEVELS
    return np.where(largest != 0, bits, 0).astype(np.uint32)


def octaves_of(words: NDArray[np.uint32], exponent_field: _Fields) -> NDArray[np.int32]:
    """Return how many octaves each block's values are below the tensor's, from OR-ed words: int32[blocks].

    `exponent_field` is the largest of any worker, one for all blocks or one for each. 0 for blocks that are
    zero on every worker.
    """
    turn, spare = turn_of(exponent_field)
    wide, left = words.astype(np.uint64), np.asarray(turn, np.uint64)
    turned = (wide << left | wide >> (np.uint64(LEVELS) - left)) & np.uint64(_LOW32)
    below = LEVELS - np.frexp(turned.astype(np.float64))[1]
    octaves = np.maximum((below << LEVEL_BITS) - spare, 0)
    return np.where(words != 0, octaves, 0).astype(np.int32)


def turn_of(exponent_field: _Fields) -> tuple[Any, Any]:
    """Return by how many bits words are turned left, so that the tensor's level is the uppermost bit.

    Also return the octaves of that level that lie above the tensor's exponent field.
    """
    return (LEVELS - 1 - (exponent_field >> LEVEL_BITS)) % LEVELS, 1 - (exponent_field & 1)
