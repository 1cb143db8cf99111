"""Triton kernels for the forms of the index: bitmaps of blocks, Bloom filters, and the candidates' own bits.

`peelsum.codec.kernels` and `peelsum.codec.index` document what they read and write.
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
    """Write the bitmap of blocks of 2**BITS < 32 elements: a block is some bits of one word."""
    program = tl.program_id(0)
    word = program.to(tl.int64) * WORDS + tl.arange(0, WORDS)
    begin = (word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]) << BITS
    held = load_bits(index, begin // WORD_BITS, elements).to(tl.uint32, bitcast=True)
    stretch = (held >> (begin % WORD_BITS).to(tl.uint32)) & ((1 << (1 << BITS)) - 1)
    tl.store(out + word, packed(stretch != 0), mask=(word * WORD_BITS << BITS) < elements)


@triton.jit
def large_block_encode_kernel(index, out, elements, BLOCK_WORDS: tl.constexpr, WORDS: tl.constexpr):
    """Write the bitmap of blocks of BLOCK_WORDS whole words.

    The tile's dimensions are words of `out`, their bits, and the words of each bit's block.
    """
    program = tl.program_id(0)
    word = program.to(tl.int64) * WORDS + tl.arange(0, WORDS)
    block = word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    source = block[:, :, None] * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)[None, None, :]
    used = tl.max((load_bits(index, source, elements) != 0).to(tl.int32), axis=2)
    tl.store(out + word, packed(used), mask=word * (WORD_BITS * WORD_BITS * BLOCK_WORDS) < elements)


@triton.jit
def block_decode_kernel(blocks, out, elements, BITS: tl.constexpr, WORDS: tl.constexpr):
    """Write the bitmap of all elements of the blocks of 2**BITS elements that are set in `blocks`."""
    program = tl.program_id(0)
    word = program.to(tl.int64) * WORDS + tl.arange(0, WORDS)
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
    """Return start and stride of the hashes of a bitmap's words: uint64[w] each."""
    value = mixed(word + first_word, tl.load(seed))
    return value & 0xFFFFFFFF, (value >> 32) | 1


@triton.jit
def _bloom_place(start, stride, j, rows):
    """Return rows int64[w] of the filter and rotations uint32[w] in sub-table j."""
    hashed = (start + j * stride) & 0xFFFFFFFF
    return j * wide(rows) + ((hashed * rows) >> 32).to(tl.int64), (hashed & 31).to(tl.uint32)


@triton.jit
def _rotated(words, left):
    """Rotate int32[w] left by 0 to 32 bits."""
    doubled = words.to(tl.uint32, bitcast=True).to(tl.uint64) << left.to(tl.uint64)
    return (doubled | (doubled >> 32)).to(tl.uint32).to(tl.int32, bitcast=True)


@triton.jit
def bloom_encode_kernel(index, out, seed, words, first_word, hashes, rows, BLOCK: tl.constexpr):
    """OR a bitmap's words into the filter out[hashes * rows], which must be zero."""
    program = tl.program_id(0)
    word = singly(program.to(tl.int64) * BLOCK, BLOCK)
    held = tl.load(index + word, mask=word < words, other=0)
    start, stride = _bloom_hashes(seed, word, first_word)
    for j in range(hashes):
        row, rotation = _bloom_place(start, stride, j, rows)
        tl.atomic_or(out + row, _rotated(held, rotation), mask=held != 0, sem="relaxed")


@triton.jit
def bloom_decode_kernel(filter_, out, seed, elements, first_word, hashes, rows, BLOCK: tl.constexpr):
    """Write the bitmap of the elements that pass the filter."""
    program = tl.program_id(0)
    word = singly(program.to(tl.int64) * BLOCK, BLOCK)
    beyond = tl.minimum(tl.maximum((word + 1) * WORD_BITS - elements, 0), WORD_BITS - 1).to(tl.uint32)
    passed = (tl.full((BLOCK,), 0xFFFFFFFF, tl.uint32) >> beyond).to(tl.int32, bitcast=True)
    start, stride = _bloom_hashes(seed, word, first_word)
    for j in range(hashes):
        row, rotation = _bloom_place(start, stride, j, rows)
        # After a few sub-tables most words are empty; they are not looked up again.
        held = tl.load(filter_ + row, mask=(word * WORD_BITS < elements) & (passed != 0), other=0)
        passed &= _rotated(held, 32 - rotation)
    tl.store(out + word, passed, mask=word * WORD_BITS < elements)


@triton.jit
def gather_bits_kernel(index, mask, bases, out, words, BLOCK: tl.constexpr):
    """OR the bits of `index` that `mask` selects, in order, into `out`, which must be zero."""
    program = tl.program_id(0)
    word = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    masks = tl.load(mask + word, mask=word < words, other=0)
    held = tl.load(index + word, mask=word < words, other=0) & masks
    bits = unpacked(masks)
    before = tl.cumsum(bits, axis=1) - bits
    chosen = tl.sum(unpacked(held) << before, axis=1).to(tl.uint32, bitcast=True)
    rank = ranks(masks, bases, program)
    # Up to 32 bits that begin anywhere in a word: they may end in the next one.
    shifted = chosen.to(tl.uint64) << (rank & 31).to(tl.uint64)
    low, high = shifted.to(tl.uint32).to(tl.int32, bitcast=True), (shifted >> 32).to(tl.int32)
    tl.atomic_or(out + rank // WORD_BITS, low, mask=low != 0, sem="relaxed")
    tl.atomic_or(out + rank // WORD_BITS + 1, high, mask=high != 0, sem="relaxed")


@triton.jit
def scatter_bits_kernel(bits, mask, bases, out, words, BLOCK: tl.constexpr):
    """Do the inverse of `gather_bits_kernel`, into out[words]."""
    program = tl.program_id(0)
    word = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    masks = tl.load(mask + word, mask=word < words, other=0)
    rank, count = ranks(masks, bases, program), popcount(masks)
    source, shift = rank // WORD_BITS, (rank % WORD_BITS).to(tl.uint64)
    low = tl.load(bits + source, mask=count != 0, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
    spills = (rank % WORD_BITS) + count > WORD_BITS
    high = tl.load(bits + source + 1, mask=spills, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
    window = ((low | (high << 32)) >> shift).to(tl.uint32)
    chosen = unpacked(masks)
    before = (tl.cumsum(chosen, axis=1) - chosen).to(tl.uint32)
    tl.store(out + word, packed((window[:, None] >> before).to(tl.int32) & chosen), mask=word < words)
