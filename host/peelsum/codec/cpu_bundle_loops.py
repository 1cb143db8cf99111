"""Loops over many small dense tensors that lie back to back, compiled by Numba and cached on disk.

They write the words that the kernels of `peelsum.codec.cpu` write for one tensor after another. Tensor m
holds the elements begins[m] to begins[m + 1], and blocks firsts[m] to firsts[m + 1]. A tensor of one block
has one scale, and no words for blocks.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.block_scales import LEVEL_BITS, LEVELS
from peelsum.codec.cpu import frozen
from peelsum.codec.cpu_index_loops import Words, compiled, magnitude, magnitudes
from peelsum.codec.cpu_loops import decode_octaves, encode_exponents
from peelsum.codec.fixed_point import EXPONENT_WORDS, MANTISSA_BITS, NON_FINITE

_Integers = NDArray[np.int32]
_Floats = NDArray[np.float32]
_Places = NDArray[np.int64]

#: In place of a field, of a tensor that is zero on every worker.
ZERO = -1


@compiled
def write_headers(bits: Words, begins: _Places, firsts: _Places, block: int, out: Words) -> None:
    """Write each tensor's exponent and the words of its blocks."""
    at = 0
    for m in range(begins.size - 1):
        own, blocks = bits[begins[m] : begins[m + 1]], firsts[m + 1] - firsts[m]
        words = out[at + EXPONENT_WORDS : at + EXPONENT_WORDS + (blocks if blocks > 1 else 0)]
        largest = magnitude(own)
        if blocks > 1:
            magnitudes(own, block, words)
            encode_exponents(words, int(largest))
        out[at : at + EXPONENT_WORDS] = 0
        if largest:
            field = largest >> np.uint32(MANTISSA_BITS)
            out[at + int(field) // 32] = np.uint32(1) << (field % np.uint32(32))
        at += EXPONENT_WORDS + words.size


@compiled
def read_headers(words: Words, firsts: _Places, fields: _Integers, octaves: _Integers) -> None:
    """Read the OR of all workers' headers: each tensor's exponent field or ZERO, and its blocks' octaves."""
    at = 0
    for m in range(firsts.size - 1):
        fields[m] = ZERO
        for word in range(EXPONENT_WORDS):
            for bit in range(32):
                if (words[at + word] >> np.uint32(bit)) & np.uint32(1):
                    fields[m] = 32 * word + bit
        at += EXPONENT_WORDS
        blocks, own = firsts[m + 1] - firsts[m], octaves[firsts[m] : firsts[m + 1]]
        own[:] = 0
        if blocks > 1:
            if fields[m] not in (ZERO, NON_FINITE):
                field = int(fields[m])
                turn = np.uint32((LEVELS - 1 - (field >> LEVEL_BITS)) % LEVELS)
                decode_octaves(words[at : at + blocks], turn, 1 - (field & 1), own)
            at += blocks


@compiled
def quantize(
    values: _Floats,
    begins: _Places,
    firsts: _Places,
    block: int,
    fields: _Integers,
    highest: int,
    octaves: _Integers,
    out: _Integers,
) -> None:
    """Write the integers of tensors that have a field, back to back; scales are highest - field + octaves."""
    at = 0
    for m in range(fields.size):
        if fields[m] == ZERO or fields[m] == NON_FINITE:
            continue
        for b in range(firsts[m], firsts[m + 1]):
            begin = begins[m] + (b - firsts[m]) * block
            factor = math.ldexp(1.0, highest - fields[m] + octaves[b])
            end, back = min(begin + block, begins[m + 1]), np.uint64(begin - at)
            for i in range(np.uint64(begin), np.uint64(end)):
                out[i - back] = np.int32(np.rint(np.float64(values[i]) * factor))
            at += end - begin


@compiled
def dequantize(
    total: _Integers,
    begins: _Places,
    firsts: _Places,
    block: int,
    fields: _Integers,
    highest: int,
    octaves: _Integers,
    divisor: float,
    out: _Floats,
) -> None:
    """Write the sums of all tensors: 0 without a field, and NaN if some worker's values are not finite."""
    at = 0
    for m in range(fields.size):
        if fields[m] == ZERO or fields[m] == NON_FINITE:
            out[begins[m] : begins[m + 1]] = 0.0 if fields[m] == ZERO else np.nan
            continue
        for b in range(firsts[m], firsts[m + 1]):
            begin = begins[m] + (b - firsts[m]) * block
            factor = math.ldexp(1.0, -(highest - fields[m] + octaves[b]))
            end, back = min(begin + block, begins[m + 1]), np.uint64(begin - at)
            for i in range(np.uint64(begin), np.uint64(end)):
                out[i] = np.float32(np.float64(total[i - back]) * factor / divisor)
            at += end - begin


def warm_up() -> None:
    """Run every loop once, as `Bundle` does, so that a later timed step does not include its compilation."""
    values, places, fields = np.ones(1, np.float32), np.array([0, 1]), np.zeros(1, np.int32)
    octaves, numbers = np.zeros(1, np.int32), np.zeros(1, np.int32)
    words = np.zeros(EXPONENT_WORDS, np.uint32)
    write_headers(values.view(np.uint32), places, places, 1, words)
    read_headers(frozen(words), places, fields, octaves)
    quantize(values, places, places, 1, fields, 0, octaves, numbers)
    dequantize(frozen(numbers), places, places, 1, fields, 0, octaves, 1.0, values)
