"""Triton kernels of the index's forms: bitmaps of blocks, Bloom filters, and candidates' own bits.

What they write and read is said in `peelsum.codec.kernels` and `peelsum.codec.index`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec.gpu_index_kernels import (
    WORD_BITS,
    load_bits,
    packed,
    popcount,
    ranks,
    singly,
    unpacked,
    wide,
)
from peelsum.codec.gpu_sketch_kernels import mixed


@triton.jit
def small_block_encode_kernel(index, out, elements, BITS: tl.constexpr, WORDS: tl.constexpr):
    """Bitmap of blocks of 2**BITS elements, fewer than a word has: a block is some bits of one word."""
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    begin = (word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]) << BITS
    held = load_bits(index, begin // WORD_BITS, elements).to(tl.uint32, bitcast=True)
    stretch = (held >> (begin % WORD_BITS).to(tl.uint32)) & ((1 << (1 << BITS)) - 1)
    tl.store(out + word, packed(stretch != 0), mask=(word * WORD_BITS << BITS) < elements)


@triton.jit
def large_block_encode_kernel(index, out, elements, BLOCK_WORDS: tl.constexpr, WORDS: tl.constexpr):
    """Bitmap of blocks of BLOCK_WORDS whole words: the tile is out words, their bits, the words of each."""
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    block = word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    source = block[:, :, None] * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)[None, None, :]
    used = tl.max((load_bits(index, source, elements) != 0).to(tl.int32), axis=2)
    tl.store(out + word, packed(used), mask=word * (WORD_BITS * WORD_BITS * BLOCK_WORDS) < elements)


@triton.jit
def block_decode_kernel(blocks, out, elements, BITS: tl.constexpr, WORDS: tl.constexpr):
    """Bitmap of all elements of the blocks of 2**BITS that are set."""
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    inside = word * WORD_BITS < elements
    if BITS < 5:
        element = word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
        block = element >> BITS
        held = tl.load(blocks + block // WORD_BITS, mask=element < elements, other=0)
        words = packed((held.to(tl.uint32, bitcast=True) >> (block % WORD_BITS).to(tl.uint32)) & 1)
    else:
        block = word >> (BITS - 5)
        held = tl.load(blocks + block // WORD_BITS, mask=inside, other=0).to(tl.uint32, bitcast=True)
        words = 0 - ((held >> (block % WORD_BITS).to(tl.uint32)) & 1).to(tl.int32)
        beyond = tl.minimum(tl.maximum((word + 1) * WORD_BITS - elements, 0), WORD_BITS - 1).to(tl.uint32)
        words &= (tl.full(words.shape, 0xFFFFFFFF, tl.uint32) >> beyond).to(tl.int32, bitcast=True)
    tl.store(out + word, words, mask=inside)


@triton.jit
def _bloom_hashes(seed, word, first_word):
    """The two halves from which all rows and rotations of a bitmap's words follow: uint64[w] each."""
    value = mixed(word + first_word, tl.load(seed))
    return value & 0xFFFFFFFF, (value >> 32) | 1


@triton.jit
def _bloom_place(start, stride, j, rows):
    """Rows int64[w] of the filter and rotations uint32[w] in sub-table j."""
    hashed = (start + j * stride) & 0xFFFFFFFF
    return j * wide(rows) + ((hashed * rows) >> 32).to(tl.int64), (hashed & 31).to(tl.uint32)


@triton.jit
def _rotated(words, left):
    """int32[w] rotated left by 0 to 32 bits."""
    doubled = words.to(tl.uint32, bitcast=True).to(tl.uint64) << left.to(tl.uint64)
    return (doubled | (doubled >> 32)).to(tl.uint32).to(tl.int32, bitcast=True)


@triton.jit
def bloom_encode_kernel(index, out, seed, words, first_word, hashes, rows, BLOCK: tl.constexpr):
    """Words of a bitmap OR-ed into the filter out[hashes * rows], which is 0 before."""
    word = singly(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    held = tl.load(index + word, mask=word < words, other=0)
    start, stride = _bloom_hashes(seed, word, first_word)
    for j in range(hashes):
        row, rotation = _bloom_place(start, stride, j, rows)
        tl.atomic_or(out + row, _rotated(held, rotation), mask=held != 0, sem="relaxed")


@triton.jit
def bloom_decode_kernel(filter_, out, seed, elements, first_word, hashes, rows, BLOCK: tl.constexpr):
    """Bitmap of the elements that the filter lets pass."""
    word = singly(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    beyond = tl.minimum(tl.maximum((word + 1) * WORD_BITS - elements, 0), WORD_BITS - 1).to(tl.uint32)
    passed = (tl.full((BLOCK,), 0xFFFFFFFF, tl.uint32) >> beyond).to(tl.int32, bitcast=True)
    start, stride = _bloom_hashes(seed, word, first_word)
    for j in range(hashes):
        row, rotation = _bloom_place(start, stride, j, rows)
        # Words that are empty by now are not looked up any more: most of them, after a few sub-tables.
        held = tl.load(filter_ + row, mask=(word * WORD_BITS < elements) & (passed != 0), other=0)
        passed &= _rotated(held, 32 - rotation)
    tl.store(out + word, passed, mask=word * WORD_BITS < elements)


@triton.jit
def gather_bits_kernel(index, mask, bases, out, words, BLOCK: tl.constexpr):
    """Bits of `index` where `mask` has its bits, in order, OR-ed into out, which is 0 before."""
    word = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    masks = tl.load(mask + word, mask=word < words, other=0)
    held = tl.load(index + word, mask=word < words, other=0) & masks
    bits = unpacked(masks)
    before = tl.cumsum(bits, axis=1) - bits
    chosen = tl.sum(unpacked(held) << before, axis=1).to(tl.uint32, bitcast=True)
    rank = ranks(masks, bases)
    # Up to 32 bits, from somewhere in one word on: they end in the next.
    shifted = chosen.to(tl.uint64) << (rank & 31).to(tl.uint64)
    low, high = shifted.to(tl.uint32).to(tl.int32, bitcast=True), (shifted >> 32).to(tl.int32)
    tl.atomic_or(out + rank // WORD_BITS, low, mask=low != 0, sem="relaxed")
    tl.atomic_or(out + rank // WORD_BITS + 1, high, mask=high != 0, sem="relaxed")


@triton.jit
def scatter_bits_kernel(bits, mask, bases, out, words, BLOCK: tl.constexpr):
    """The inverse of `gather_bits_kernel`: into out[words]."""
    word = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    masks = tl.load(mask + word, mask=word < words, other=0)
    rank, count = ranks(masks, bases), popcount(masks)
    source, shift = rank // WORD_BITS, (rank % WORD_BITS).to(tl.uint64)
    low = tl.load(bits + source, mask=count != 0, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
    spills = (rank % WORD_BITS) + count > WORD_BITS
    high = tl.load(bits + source + 1, mask=spills, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
    window = ((low | (high << 32)) >> shift).to(tl.uint32)
    chosen = unpacked(masks)
    before = (tl.cumsum(chosen, axis=1) - chosen).to(tl.uint32)
    tl.store(out + word, packed((window[:, None] >> before).to(tl.int32) & chosen), mask=word < words)
