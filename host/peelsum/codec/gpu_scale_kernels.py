"""Triton kernels for the scales of blocks; `peelsum.codec.block_scales` defines the words."""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec import block_scales
from peelsum.codec.fixed_point import MANTISSA_BITS
from peelsum.codec.gpu_index_kernels import WORD_BITS, load_tile, popcount, raise_to
from peelsum.codec.gpu_table_kernels import ints, placed, size

_LEVELS = tl.constexpr(block_scales.LEVELS)
_LEVEL_BITS = tl.constexpr(block_scales.LEVEL_BITS)
_DEPTH = tl.constexpr(block_scales.DEPTH)
_MANTISSA_BITS = tl.constexpr(MANTISSA_BITS)


@triton.jit
def exponent_words(largest, word):
    """Return the words of a tensor's one-hot exponent field; `largest` is its magnitude."""
    field = largest >> _MANTISSA_BITS
    bit = tl.full(word.shape, 1, tl.int32) << (field % 32)
    return tl.where((word == field // 32) & (largest != 0), bit, 0)


@triton.jit
def exponent_kernel(table, launches, largest, out, WORDS: tl.constexpr):
    """Write the exponent field of largest[1], one-hot, into out[WORDS]. One program."""
    launch, _, _ = placed(table, launches)
    largest, out = ints(launch, 0, largest), ints(launch, 1, out)
    word = tl.arange(0, WORDS)
    tl.store(out + word, exponent_words(tl.load(largest), word))


@triton.jit
def block_magnitudes_kernel(table, launches, values, out, largest, n, block_words, WORDS: tl.constexpr):
    """Raise out[blocks], which must be zero, to the blocks' magnitudes, and largest[1] to that of values[n].

    Values are given as bit patterns; a block has `block_words` times 32.
    """
    launch, program, _ = placed(table, launches)
    values, out, largest = ints(launch, 0, values), ints(launch, 1, out), ints(launch, 2, largest)
    n, block_words = size(launch, 3, n), size(launch, 4, block_words)
    tile = program.to(tl.int64) * WORDS
    word = tile + tl.arange(0, WORDS)
    element = word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    magnitudes = load_tile(values, element, (tile + WORDS) * WORD_BITS, n) & 0x7FFFFFFF
    most = tl.max(magnitudes, axis=1)
    into = out + word // block_words
    before = tl.load(into, mask=most != 0, other=0)
    tl.atomic_max(into, most, mask=most > before, sem="relaxed")
    raise_to(largest, tl.max(most, axis=0))


@triton.jit
def block_words(most, largest):
    """Return the words of blocks with magnitudes `most`, of a tensor with magnitude `largest`."""
    least = (largest >> _MANTISSA_BITS) - _DEPTH
    level = (tl.maximum(most >> _MANTISSA_BITS, tl.maximum(least, 0)) >> _LEVEL_BITS) % _LEVELS
    bit = tl.full(level.shape, 1, tl.int32) << level
    return tl.where(most != 0, bit, 0)


@triton.jit
def encode_exponents_kernel(table, launches, blocks, largest, count, BLOCK: tl.constexpr):
    """Replace blocks[count], each block's magnitude, by its word; largest[1] is the tensor's magnitude."""
    launch, program, _ = placed(table, launches)
    blocks, largest, count = ints(launch, 0, blocks), ints(launch, 1, largest), size(launch, 2, count)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    most = tl.load(blocks + at, mask=at < count, other=0)
    tl.store(blocks + at, block_words(most, tl.load(largest)), mask=at < count)


@triton.jit
def decode_octaves_kernel(table, launches, words, out, turn, spare, count, BLOCK: tl.constexpr):
    """Write the octaves of words[count], OR-ed over all workers, given `block_scales.turn_of`."""
    launch, program, _ = placed(table, launches)
    words, out, count = ints(launch, 0, words), ints(launch, 1, out), size(launch, 4, count)
    turn, spare = size(launch, 2, turn).to(tl.int32), size(launch, 3, spare).to(tl.int32)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + at, mask=at < count, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
    # Twice the word, shifted: its upper half is the word turned left.
    turned = (((word << 32 | word) << turn) >> 32).to(tl.uint32)
    for bits in tl.static_range(5):
        turned = turned | (turned >> (1 << bits))
    below = _LEVELS - popcount(turned.to(tl.int32, bitcast=True))
    octaves = tl.maximum((below << _LEVEL_BITS) - spare, 0)
    tl.store(out + at, tl.where(word != 0, octaves, 0), mask=at < count)
