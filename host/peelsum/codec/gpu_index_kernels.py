"""Triton kernels of the index: bitmaps of non-zeros, and the positions that they stand for.

They see pointers and sizes; what a bitmap is, `peelsum.codec.kernels` says. Words are int32 on the device.
A tile is a number of words by the 32 bits of each, so that 32 neighbours are one row. Element numbers are
int64 throughout.
"""

from __future__ import annotations

import triton
import triton.language as tl

WORD_BITS = tl.constexpr(32)


@triton.jit
def wide(x):
    """A size as int64, also where Triton made a constant of it, as it does of 1."""
    return tl.zeros((), tl.int64) + x


@triton.jit
def singly(start, BLOCK: tl.constexpr):
    """int64[BLOCK] from `start` on, one to a thread, where scattered accesses follow.

    Several to a thread would be read at once, but then moved about, by way of shared memory, before each
    scattered access: those have one to a thread.
    """
    return tl.max_contiguous(start + tl.arange(0, BLOCK).to(tl.int64), 1)


@triton.jit
def popcount(x):
    """Bits set in each of the int32 x."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def packed(bits):
    """Words int32[w] of bits[w, 32], each 0 or 1: as no two lie in the same place, their sum is their OR."""
    return tl.sum(bits.to(tl.int32) << tl.arange(0, WORD_BITS)[None, :], axis=1)


@triton.jit
def unpacked(words):
    """Bits int32[w, 32], each 0 or 1, of words[w]."""
    return (words.to(tl.uint32, bitcast=True)[:, None] >> tl.arange(0, WORD_BITS)[None, :]).to(tl.int32) & 1


@triton.jit
def load_bits(bitmap, word, elements):
    """Words of a bitmap without what it may hold from `elements` on; 0 past its end."""
    words = tl.load(bitmap + word, mask=word * WORD_BITS < elements, other=0)
    beyond = tl.minimum(tl.maximum((word + 1) * WORD_BITS - elements, 0), WORD_BITS - 1).to(tl.uint32)
    kept = tl.full(words.shape, 0xFFFFFFFF, tl.uint32) >> beyond
    return words & kept.to(tl.int32, bitcast=True)


@triton.jit
def load_tile(values, element, end, n):
    """values[element], 0 from n on. Tiles that `end` by then are read without a mask: 16 bytes at once."""
    return tl.load(values + element) if end <= n else tl.load(values + element, mask=element < n, other=0)


@triton.jit
def raise_to(largest, tile_largest):
    """The largest of all tiles into largest[1]. Only tiles that know a larger one queue up for the atomic."""
    tl.atomic_max(largest, tile_largest, mask=tile_largest > tl.load(largest), sem="relaxed")


@triton.jit
def index_kernel(values, bitmap, largest, n, STORE: tl.constexpr, WORDS: tl.constexpr):
    """Bitmap and magnitude of values[n], given as bit patterns; the magnitude alone unless STORE."""
    tile = tl.program_id(0).to(tl.int64) * WORDS
    word = tile + tl.arange(0, WORDS)
    element = word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    magnitudes = load_tile(values, element, (tile + WORDS) * WORD_BITS, n) & 0x7FFFFFFF
    if STORE:
        tl.store(bitmap + word, packed(magnitudes != 0), mask=word * WORD_BITS < n)
    raise_to(largest, tl.max(tl.max(magnitudes, axis=1), axis=0))


@triton.jit
def totals_kernel(bitmap, totals, elements, WORDS: tl.constexpr):
    """Bits set in each tile: totals[tiles]."""
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    total = tl.sum(popcount(load_bits(bitmap, word, elements)), axis=0)
    tl.store(totals + tl.program_id(0), total.to(tl.int64))


@triton.jit
def scan_kernel(totals, count, tiles, BLOCK: tl.constexpr):
    """Sums of all tiles before each in place of totals[tiles], and of all into count[1]; one program."""
    before = tl.zeros((), tl.int64)
    for start in range(0, tiles, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        total = tl.load(totals + tile, mask=tile < tiles, other=0)
        tl.store(totals + tile, before + tl.cumsum(total, axis=0) - total, mask=tile < tiles)
        before += tl.sum(total, axis=0)
    tl.store(count, before)


@triton.jit
def ranks(words, bases):
    """How many bits come before each of words[w] of this tile, from all tiles: int64[w]."""
    counts = popcount(words)
    return tl.load(bases + tl.program_id(0)) + tl.cumsum(counts, axis=0) - counts


@triton.jit
def positions_kernel(bitmap, bases, out, elements, capacity, first, WORDS: tl.constexpr):
    """Numbers, from `first` on, of the bits set, ascending, into out[capacity], as far as they fit."""
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    words = load_bits(bitmap, word, elements)
    bits = unpacked(words)
    rank = ranks(words, bases)[:, None] + tl.cumsum(bits, axis=1) - bits
    element = first + word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    tl.store(out + rank, element, mask=(bits != 0) & (rank < capacity))


@triton.jit
def occupied_kernel(positions, count, out, capacity, SIZES: tl.constexpr, BLOCK: tl.constexpr):
    """How many blocks of 2**b elements hold one of positions[count], added to out[SIZES]."""
    candidates = tl.minimum(tl.load(count), capacity)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, candidates, tl.num_programs(0) * BLOCK):
        t = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = t < candidates
        here = tl.load(positions + t, mask=inside, other=0)
        # The first is in a block of its own, of any size: it differs from -1 in every bit.
        before = tl.load(positions + t - 1, mask=inside & (t > 0), other=-1)
        for b in tl.static_range(SIZES):
            begins = inside & ((here >> b) != (before >> b))
            tl.atomic_add(out + b, tl.sum(begins.to(tl.int64), axis=0), sem="relaxed")
