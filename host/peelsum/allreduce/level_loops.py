"""Loops over what is expected of blocks that have scales of their own: compiled by Numba, and cached on disk.

A block's level is its exponent field. `firsts`, int64[segments + 1], holds each segment's first block, and
the end.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peelsum.buffers import frozen
from peelsum.codec import NON_FINITE
from peelsum.codec.scales import ZERO
from peelsum.compiling import compiler

#: Octaves by which a block may grow from one step to the next without exceeding its expected field.
MARGIN = 2
#: Bits of a block's largest number, beside its sign. With fewer, its numbers are sent again.
FEWEST_BITS = 10
#: Octaves by which a block's expected field may exceed the largest of its segment. Beyond, its numbers are
#: sent again: else a step after much larger ones would lose as many bits more than fixed point has to.
COARSEST = 6

_Words = NDArray[np.uint32]
_Numbers = NDArray[np.int64]
_Integers = NDArray[np.int32]
_Flags = NDArray[np.bool_]
_Floats = NDArray[np.float32]

_LARGEST_FINITE = NON_FINITE - 1

_compiled = compiler({"nogil": True})


@_compiled
def levels_of(
    words: _Words, firsts: _Numbers, fields: _Integers, scales: _Integers, highest: int, out: _Integers
) -> None:
    """Write the exponent fields of blocks; 0 for those without numbers, and of segments not finite.

    words: the blocks' words of scales. fields, scales: what `decode_scales` makes of them.
    """
    for s in range(fields.size):
        summed = fields[s] != ZERO and fields[s] != NON_FINITE
        for b in range(np.uint64(firsts[s]), np.uint64(firsts[s + 1])):
            out[b] = highest - scales[b] if summed and words[b] else 0


@_compiled
def expect(levels: _Integers, firsts: _Numbers, out: _Integers) -> None:
    """Write the fields that blocks are expected not to exceed, from those of earlier steps.

    levels: as `History.levels` returns them. A block of level 0 was always zero, and is expected to be like
    the largest of its segment.
    """
    for s in range(firsts.size - 1):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        largest = _largest(levels, begin, end)
        for b in range(begin, end):
            field = levels[b] + MARGIN if levels[b] else largest
            out[b] = field if field < _LARGEST_FINITE else _LARGEST_FINITE


@_compiled
def judge(
    words: _Words, firsts: _Numbers, levels: _Integers, expected: _Integers, highest: int, bits: int,
    scales: _Integers, bounds: _Integers, exceeding: _Flags, again: _Flags,
) -> int:  # fmt: skip
    """Compare blocks with the fields that were `expected` of them; return how many are sent `again`.

    These are above what two words hold, or leave fewer than FEWEST_BITS of `bits` to their numbers, or were
    expected to exceed the largest of their segment by more than COARSEST octaves.
    words: their words of scales. scales: what `decode_scales` made of these; overwritten by the scales of the
    step, which are those of blocks without numbers, too. bounds: the lesser of both.
    """
    count = 0
    for s in range(firsts.size - 1):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        coarsest = _largest(levels, begin, end) + COARSEST
        for b in range(begin, end):
            level, field, actual = levels[b], expected[b], scales[b]
            exceeding[b] = words[b] != 0 and highest - actual > field
            coarse = level > 0 and (level < field - bits + FEWEST_BITS or field > coarsest)
            again[b] = coarse or level > field + bits - 1
            scales[b] = highest - field if level > 0 and not again[b] else actual
            bounds[b] = min(scales[b], actual)
            count += again[b]
    return count


@_compiled
def _largest(levels: _Integers, begin: np.uint64, end: np.uint64) -> np.int32:
    largest = np.int32(0)
    for b in range(begin, end):
        largest = max(largest, levels[b])
    return largest


@_compiled
def learn(kept: _Integers, levels: _Integers, firsts: _Numbers) -> None:
    """Update the fields that are kept of blocks by those of a step: see `Levels`."""
    for s in range(firsts.size - 1):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        largest = _largest(levels, begin, end)
        for b in range(begin, end):
            level = levels[b]
            if level > 0:
                fallen = kept[b] - level
                kept[b] = level + (fallen // 2 if fallen > 0 else 0)
            if largest > 0:
                kept[b] = min(kept[b], largest + COARSEST - MARGIN)


@_compiled
def numbers_of(values: _Floats, blocks: _Numbers, scales: _Integers, bits: int, out: _Numbers) -> None:
    """Write rint(value * 2**scale), by the scale of each value's block; 0 if it needs more than 2 * bits."""
    limit = 2.0 ** (2 * bits - 1)
    for i in range(values.size):
        number = np.rint(math.ldexp(np.float64(values[i]), scales[blocks[i]]))
        out[i] = np.int64(number) if abs(number) < limit else np.int64(0)


def warm_up() -> None:
    """Run these loops once."""
    words, firsts = frozen(np.ones(1, np.uint32)), np.array([0, 1])
    fields, flags = np.ones(1, np.int32), np.ones(1, np.bool)
    levels_of(words, firsts, fields, fields, 1, fields)
    expect(fields, firsts, fields)
    judge(words, firsts, fields, fields, 1, 1, fields, fields, flags, flags)
    learn(fields, fields, firsts)
    blocks, numbers = np.zeros((2, 1), np.int64)
    numbers_of(np.ones(1, np.float32), blocks, fields, 1, numbers)
