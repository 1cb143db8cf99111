"""Predict the exponents of blocks from earlier steps, and compare them with a step's: compiled loops.

An exponent here is that of a block's largest value over all workers, as the exponent field of a float32; 0
stands for a block without non-zeros. `firsts`, int64[segments + 1], holds each segment's first block, and the
end.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peelsum.buffers import frozen
from peelsum.codec import NON_FINITE
from peelsum.codec.fixed_point import ZERO
from peelsum.compiling import compiler

#: Octaves by which a block may grow from one step to the next without exceeding its predicted exponent.
MARGIN = 2
#: Fewest bits of the largest integer of a block, beside its sign. A block with fewer is sent again.
FEWEST_BITS = 10
#: Octaves by which a block's predicted exponent may exceed the largest of its segment. Beyond, the block is
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
def write_exponents(
    words: _Words,
    firsts: _Numbers,
    segment_fields: _Integers,
    scales: _Integers,
    highest: int,
    out: _Integers,
) -> None:
    """Write the exponents of blocks; 0 also for those of segments that are not finite.

    words: the OR of all workers' words of scales. segment_fields, scales: what `decode_scales` makes of them.
    """
    for s in range(segment_fields.size):
        summed = segment_fields[s] != ZERO and segment_fields[s] != NON_FINITE
        for b in range(np.uint64(firsts[s]), np.uint64(firsts[s + 1])):
            out[b] = highest - scales[b] if summed and words[b] else 0


@_compiled
def predict_exponents(exponents: _Integers, firsts: _Numbers, out: _Integers) -> None:
    """Write the exponents that blocks will probably not exceed, from those of earlier steps.

    exponents: as `History.levels` returns them. A block with 0 was always zero, and gets the largest exponent
    of its segment.
    """
    for s in range(firsts.size - 1):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        largest = _largest(exponents, begin, end)
        for b in range(begin, end):
            exponent = exponents[b] + MARGIN if exponents[b] else largest
            out[b] = exponent if exponent < _LARGEST_FINITE else _LARGEST_FINITE


@_compiled
def flag_blocks(
    words: _Words, firsts: _Numbers, exponents: _Integers, expected: _Integers, highest: int, bits: int,
    scales: _Integers, bounds: _Integers, exceeding: _Flags, resent: _Flags,
) -> int:  # fmt: skip
    """Compare the exponents of blocks with those `expected` of them; return how many blocks are `resent`.

    Flag in `exceeding` the blocks whose exponent is larger than expected: their integers need a second word
    for their high bits. Flag in `resent` the blocks whose numbers must be sent again, by scales that fit:
    their integers need more than two words, or have fewer than FEWEST_BITS of `bits`, or the expected
    exponent is above the largest of their segment by more than COARSEST octaves.
    words: the blocks' words of scales. scales: what `decode_scales` made of these; overwritten by the scales
    of the step. bounds: the lesser of both.
    """
    count = 0
    for s in range(firsts.size - 1):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        coarsest = _largest(exponents, begin, end) + COARSEST
        for b in range(begin, end):
            exponent, field, actual = exponents[b], expected[b], scales[b]
            exceeding[b] = words[b] != 0 and highest - actual > field
            coarse = exponent > 0 and (exponent < field - bits + FEWEST_BITS or field > coarsest)
            resent[b] = coarse or exponent > field + bits - 1
            scales[b] = highest - field if exponent > 0 and not resent[b] else actual
            bounds[b] = min(scales[b], actual)
            count += resent[b]
    return count


@_compiled
def _largest(exponents: _Integers, begin: np.uint64, end: np.uint64) -> np.int32:
    """Return the largest of exponents[begin:end]."""
    largest = np.int32(0)
    for b in range(begin, end):
        largest = max(largest, exponents[b])
    return largest


@_compiled
def update_exponents(kept: _Integers, exponents: _Integers, firsts: _Numbers) -> None:
    """Update the exponents that the history has `kept` of blocks by those of a step; see `BlockExponents`."""
    for s in range(firsts.size - 1):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        largest = _largest(exponents, begin, end)
        for b in range(begin, end):
            exponent = exponents[b]
            if exponent > 0:
                fallen = kept[b] - exponent
                kept[b] = exponent + (fallen // 2 if fallen > 0 else 0)
            if largest > 0:
                kept[b] = min(kept[b], largest + COARSEST - MARGIN)


@_compiled
def quantize_by_block(values: _Floats, blocks: _Numbers, scales: _Integers, bits: int, out: _Numbers) -> None:
    """Write rint(value * 2**scale), by the scale of the value's block; 0 if that has over 2 * bits bits."""
    limit = 2.0 ** (2 * bits - 1)
    for i in range(values.size):
        number = np.rint(math.ldexp(np.float64(values[i]), scales[blocks[i]]))
        out[i] = np.int64(number) if abs(number) < limit else np.int64(0)


def warm_up() -> None:
    """Run these loops once."""
    words, firsts = frozen(np.ones(1, np.uint32)), np.array([0, 1])
    fields, flags = np.ones(1, np.int32), np.ones(1, np.bool)
    write_exponents(words, firsts, fields, fields, 1, fields)
    predict_exponents(fields, firsts, fields)
    flag_blocks(words, firsts, fields, fields, 1, 1, fields, fields, flags, flags)
    update_exponents(fields, fields, firsts)
    blocks, numbers = np.zeros((2, 1), np.int64)
    quantize_by_block(np.ones(1, np.float32), blocks, fields, 1, numbers)
