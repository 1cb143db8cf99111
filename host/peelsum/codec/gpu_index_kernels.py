"""Triton kernels for the index: bitmaps of non-zeros, and the positions of their set bits.

`peelsum.codec.kernels` defines the bitmap. Words are int32 on the device, element numbers int64. A tile is
[words, 32 bits], so 32 neighbouring elements are one row.
"""

from __future__ import annotations

import triton
import triton.language as tl

WORD_BITS = tl.constexpr(32)


@triton.jit
def wide(x):
    """Return a size as int64, even if Triton specialized it to a constant, as it does with 1."""
    return tl.zeros((), tl.int64) + x


@triton.jit
def singly(start, BLOCK: tl.constexpr):
    """Return int64[BLOCK] from `start` on, one per thread, for scattered accesses.

    With several per thread, Triton would read them at once but rearrange them through shared memory before
    each scattered access, which has one per thread.
    """
    return tl.max_contiguous(start + tl.arange(0, BLOCK).to(tl.int64), 1)


@triton.jit
def popcount(x):
    """Count the set bits of each int32 in x."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def packed(bits):
    """Pack bits[w, 32], each 0 or 1, into int32[w]. Shifted bits are disjoint, so their sum is their OR."""
    return tl.sum(bits.to(tl.int32) << tl.arange(0, WORD_BITS)[None, :], axis=1)


@triton.jit
def unpacked(words):
    """Unpack words[w] into bits int32[w, 32], each 0 or 1."""
    return (words.to(tl.uint32, bitcast=True)[:, None] >> tl.arange(0, WORD_BITS)[None, :]).to(tl.int32) & 1


@triton.jit
def load_bits(bitmap, word, elements):
    """Load words of a bitmap, with the bits from `elements` on cleared; 0 past its end."""
    words = tl.load(bitmap + word, mask=word * WORD_BITS < elements, other=0)
    beyond = tl.minimum(tl.maximum((word + 1) * WORD_BITS - elements, 0), WORD_BITS - 1).to(tl.uint32)
    kept = tl.full(words.shape, 0xFFFFFFFF, tl.uint32) >> beyond
    return words & kept.to(tl.int32, bitcast=True)


@triton.jit
def raise_to(largest, tile_largest):
    """Raise largest[1] to tile_largest. Only tiles with a larger value execute the atomic."""
    tl.atomic_max(largest, tile_largest, mask=tile_largest > tl.load(largest), sem="relaxed")


@triton.jit
def index_kernel(numbers, bitmap, n, WORDS: tl.constexpr):
    """Write the bitmap of numbers[n] that are not 0."""
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    element = word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    number = tl.load(numbers + element, mask=element < n, other=0)
    tl.store(bitmap + word, packed(number != 0), mask=word * WORD_BITS < n)


@triton.jit
def totals_kernel(bitmap, totals, elements, WORDS: tl.constexpr):
    """Count the set bits of each tile: totals[tiles]."""
    program = tl.program_id(0)
    word = program.to(tl.int64) * WORDS + tl.arange(0, WORDS)
    total = tl.sum(popcount(load_bits(bitmap, word, elements)), axis=0)
    tl.store(totals + program, total.to(tl.int64))


@triton.jit
def scan_kernel(totals, count, tiles, BLOCK: tl.constexpr):
    """Replace totals[tiles] by its exclusive prefix sums; write the sum of all to count[1]. One program."""
    before = tl.zeros((), tl.int64)
    for start in range(0, tiles, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        total = tl.load(totals + tile, mask=tile < tiles, other=0)
        tl.store(totals + tile, before + tl.cumsum(total, axis=0) - total, mask=tile < tiles)
        before += tl.sum(total, axis=0)
    tl.store(count, before)


@triton.jit
def ranks(words, bases, tile):
    """Count the set bits before each of a tile's words[w], including earlier tiles': int64[w]."""
    counts = popcount(words)
    return tl.load(bases + tile) + tl.cumsum(counts, axis=0) - counts


@triton.jit
def positions_kernel(bitmap, bases, out, elements, first, WORDS: tl.constexpr):
    """Write the positions of the set bits, plus `first`, ascending."""
    program = tl.program_id(0)
    word = program.to(tl.int64) * WORDS + tl.arange(0, WORDS)
    words = load_bits(bitmap, word, elements)
    bits = unpacked(words)
    rank = ranks(words, bases, program)[:, None] + tl.cumsum(bits, axis=1) - bits
    element = first + word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    tl.store(out + rank, element, mask=bits != 0)
