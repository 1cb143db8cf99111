"""The index in NumPy: bitmaps, blocks and Bloom filters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.arrays import Floats, Numbers, Words
from peelsum.codec.layout import BLOCK_SIZES, MIX_FIRST, MIX_SECOND, MIX_STEP, WORD_BITS, BloomLayout


class ReferenceIndex:
    """The operations of `CodecDevice` on bitmaps."""

    def positions(self, index: Words, elements: int, first: int = 0, count: int | None = None) -> Numbers:
        """Return the positions of the set bits, plus `first`, ascending: int64[k]."""
        return np.flatnonzero(bits_of(index, elements)) + first

    def block_encode(self, index: Words, elements: int, block: int, out: Words) -> None:
        """Write the bitmap of the blocks that hold a set bit."""
        bits = np.zeros(-(-elements // block) * block, np.bool_)
        bits[:elements] = bits_of(index, elements)
        out[:] = _packed(np.logical_or.reduce(bits.reshape(-1, block), axis=1), out.size)

    def block_decode(self, blocks: Words, elements: int, block: int, out: Words) -> None:
        """Write the bitmap of all elements of the blocks that are set."""
        bits = np.repeat(bits_of(blocks, -(-elements // block)), block)
        out[:] = _packed(bits[:elements], out.size)

    def bloom_encode(self, layout: BloomLayout, index: Words, out: Words, first: int = 0) -> None:
        """Write the Bloom filter of a bitmap."""
        rows, rotations = _bloom_places(layout, index.size, first)
        out[:] = 0
        np.bitwise_or.at(out, rows, _rotated(index[:, np.newaxis], rotations))

    def bloom_decode(
        self, layout: BloomLayout, words: Words, elements: int, out: Words, first: int = 0
    ) -> None:
        """Write the bitmap of the elements that pass a Bloom filter."""
        rows, rotations = _bloom_places(layout, out.size, first)
        passed = np.bitwise_and.reduce(_rotated(words[rows], WORD_BITS - rotations), axis=1)
        out[:] = _packed(bits_of(passed, elements), out.size)

    def gather_bits(self, index: Words, mask: Words, out: Words) -> None:
        """Write the bits that `mask` selects, end to end, as a shorter bitmap."""
        elements = WORD_BITS * mask.size
        out[:] = _packed(bits_of(index, elements)[bits_of(mask, elements)], out.size)

    def scatter_bits(self, bits: Words, mask: Words, out: Words, scan: None = None) -> None:
        """Write consecutive bits to the set bits of `mask`: the inverse of `gather_bits`."""
        spread = bits_of(mask, WORD_BITS * mask.size).copy()
        spread[spread] = bits_of(bits, int(np.count_nonzero(spread)))
        out[:] = _packed(spread, out.size)


def index(values: Floats, out: Words) -> int:
    """Write the bitmap of the non-zeros of values[n] into out; return the largest bit pattern of |values|.

    -0.0 is zero, NaN is not.
    """
    magnitudes = magnitudes_of(values)
    out[:] = _packed(magnitudes != 0, out.size)
    return int(magnitudes.max(initial=0))


def occupied(positions: Numbers) -> Numbers:
    """Count the blocks of 2**b elements that hold one of positions[k], for each b: int64[BLOCK_SIZES]."""
    return np.array([np.unique(positions >> bits).size for bits in range(BLOCK_SIZES)], np.int64)


def magnitudes_of(values: Floats) -> Words:
    """Return the bit patterns without the sign; they order as |values| do, with infinity and NaN on top."""
    return values.view(np.uint32) & np.uint32(0x7FFFFFFF)


def bits_of(bitmap: Words, elements: int) -> NDArray[np.bool_]:
    """Return the first `elements` bits of a bitmap as bool[elements]."""
    bits = bitmap[:, np.newaxis] >> np.arange(WORD_BITS, dtype=np.uint32) & np.uint32(1)
    return bits.reshape(-1)[:elements].astype(np.bool_)


def _packed(bits: NDArray[np.bool_], words: int) -> Words:
    """Pack bool[n] into a bitmap of `words` words; missing bits are 0."""
    padded = np.zeros(WORD_BITS * words, np.bool_)
    padded[: bits.size] = bits
    weights = np.uint32(1) << np.arange(WORD_BITS, dtype=np.uint32)
    packed: Words = (padded.reshape(-1, WORD_BITS) * weights).sum(axis=1, dtype=np.uint32)
    return packed


def _bloom_places(layout: BloomLayout, words: int, first: int) -> tuple[Numbers, Words]:
    """Return filter rows int64[words, hashes] and rotations uint32[words, hashes] of a bitmap's words."""
    sub_table = np.arange(layout.hashes)
    drawn = mixed((np.arange(words) + first // WORD_BITS).astype(np.uint64), layout.seed)[:, np.newaxis]
    start, stride = drawn & np.uint64(0xFFFFFFFF), drawn >> np.uint64(32) | np.uint64(1)
    hashed = start + sub_table.astype(np.uint64) * stride & np.uint64(0xFFFFFFFF)
    row = hashed * np.uint64(layout.rows) >> np.uint64(32)
    return sub_table * layout.rows + row.astype(np.int64), (hashed % np.uint64(WORD_BITS)).astype(np.uint32)


def _rotated(words: Words, bits: Words) -> Words:
    """Rotate words left by 0 to 32 bits each."""
    shifted = words.astype(np.uint64) << bits.astype(np.uint64)
    return (shifted | shifted >> np.uint64(32)).astype(np.uint32)


def mixed(counter: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return `peelsum.codec.layout.mix` of counter * MIX_STEP + seed, element by element, modulo 2**64."""
    value = counter * np.uint64(MIX_STEP) + np.uint64(seed)
    value = (value ^ value >> np.uint64(30)) * np.uint64(MIX_FIRST)
    value = (value ^ value >> np.uint64(27)) * np.uint64(MIX_SECOND)
    return value ^ value >> np.uint64(31)
