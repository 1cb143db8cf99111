"""Functions that kernels share: bit operations on words, rows of 32 elements as tiles, and the hash.

Words are int32 on the device, element numbers int64. A tile is [words, 32 bits], so 32 neighbouring elements
are one row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec import layout

WORD_BITS = tl.constexpr(32)
_MIX_STEP = tl.constexpr(layout.MIX_STEP)
_MIX_FIRST = tl.constexpr(layout.MIX_FIRST)
_MIX_SECOND = tl.constexpr(layout.MIX_SECOND)


@triton.jit
def as_int64(x):
    """Return an integer as int64, even if Triton specialized it to a constant, as it does with 1."""
    return tl.zeros((), tl.int64) + x


@triton.jit
def one_per_thread(start, BLOCK: tl.constexpr):
    """Return the integers from `start` on, int64[BLOCK], laid out one per thread, for scattered accesses.

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
def ranks(words, bases, tile):
    """Count the set bits before each of a tile's words[w], including those of earlier tiles: int64[w]."""
    counts = popcount(words)
    return tl.load(bases + tile) + tl.cumsum(counts, axis=0) - counts


@triton.jit
def atomic_max_if_larger(largest, tile_largest):
    """Raise largest[1] to tile_largest. Only tiles with a larger value execute the atomic."""
    tl.atomic_max(largest, tile_largest, mask=tile_largest > tl.load(largest), sem="relaxed")


@triton.jit
def mixed(counter, seed):
    """Return `peelsum.codec.layout.mix` of counter * MIX_STEP + seed, modulo 2**64: uint64, from int64."""
    value = counter.to(tl.uint64) * _MIX_STEP + seed.to(tl.uint64)
    value = (value ^ (value >> 30)) * _MIX_FIRST
    value = (value ^ (value >> 27)) * _MIX_SECOND
    return value ^ (value >> 31)
