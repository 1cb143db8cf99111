"""The index on a GPU: bitmaps, positions of set bits, blocks, Bloom filters, bits that a mask selects."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from peelsum.codec.arrays import Words
from peelsum.codec.gpu import launch
from peelsum.codec.gpu.launch import BLOCK, SCANNED_WORDS, TILE_WORDS, empty, kernel, tiles_of
from peelsum.codec.gpu.words import (
    WORD_BITS,
    as_int64,
    mixed,
    one_per_thread,
    packed,
    popcount,
    ranks,
    unpacked,
)
from peelsum.codec.layout import WORD_BITS as ROW
from peelsum.codec.layout import BloomLayout, block_words

#: The largest block that one kernel handles; larger ones take several passes.
_LARGEST_BLOCK = 4096
#: Warps of programs that count a bitmap's bits, and may list them.
SCAN_WARPS = 8


class GpuIndex:
    """The operations of `CodecDevice` on bitmaps."""

    def count(self, index: Tensor | Words) -> int:
        """Return how many bits of a bitmap are set. Waits for the device if the bitmap is there."""
        if isinstance(index, np.ndarray):
            return int(np.bitwise_count(index).sum())
        return int(scan_bits(index)[-1])

    def positions(self, index: Tensor, elements: int, first: int = 0, count: int | None = None) -> Tensor:
        """Return the positions of the set bits, plus `first`: int64[k].

        Waits for the device, unless `count` is given.
        """
        if count is None:
            count = int(scan_bits(index, elements)[-1])
        out = empty(count, index, torch.int64)
        scan_bits(index, elements, out, first)
        return out

    def block_encode(self, index: Tensor, elements: int, block: int, out: Tensor) -> None:
        """Write the bitmap of the blocks that hold a set bit."""
        if block < ROW:
            grid, bits = tiles_of(out.numel(), TILE_WORDS), block.bit_length() - 1
            launch.run(small_block_encode_kernel, grid, index, out, elements, bits, TILE_WORDS)
        elif block <= _LARGEST_BLOCK:
            block_length = block // ROW
            words = max(1, TILE_WORDS // block_length)
            grid = tiles_of(out.numel(), words)
            launch.run(large_block_encode_kernel, grid, index, out, elements, block_length, words)
        else:
            used = empty(block_words(elements, _LARGEST_BLOCK), index)
            self.block_encode(index, elements, _LARGEST_BLOCK, used)
            self.block_encode(used, tiles_of(elements, _LARGEST_BLOCK), block // _LARGEST_BLOCK, out)

    def block_decode(self, blocks: Tensor, elements: int, block: int, out: Tensor) -> None:
        """Write the bitmap of all elements of the blocks that are set."""
        grid, bits = tiles_of(out.numel(), TILE_WORDS), block.bit_length() - 1
        launch.run(block_decode_kernel, grid, blocks, out, elements, bits, TILE_WORDS)

    def bloom_encode(self, layout: BloomLayout, index: Tensor, out: Tensor, first: int = 0) -> None:
        """Write the Bloom filter of a bitmap."""
        out.zero_()
        words, rest = index.numel(), (first // ROW, layout.hashes, layout.rows, BLOCK)
        seed = launch.signed(layout.seed)
        launch.run(bloom_encode_kernel, tiles_of(words, BLOCK), index, out, seed, words, *rest)

    def bloom_decode(
        self, layout: BloomLayout, words: Tensor, elements: int, out: Tensor, first: int = 0
    ) -> None:
        """Write the bitmap of the elements that pass a Bloom filter."""
        grid, rest = tiles_of(out.numel(), BLOCK), (first // ROW, layout.hashes, layout.rows, BLOCK)
        seed = launch.signed(layout.seed)
        launch.run(bloom_decode_kernel, grid, words, out, seed, elements, *rest)

    def gather_bits(self, index: Tensor, mask: Tensor, out: Tensor) -> Tensor:
        """Write the bits that `mask` selects, end to end, as a shorter bitmap; return its `scan_bits`."""
        out.zero_()
        bases, words = scan_bits(mask), mask.numel()
        grid = tiles_of(words, SCANNED_WORDS)
        launch.run(gather_bits_kernel, grid, index, mask, bases, out, words, SCANNED_WORDS)
        return bases

    def scatter_bits(self, bits: Tensor, mask: Tensor, out: Tensor, scan: Tensor | None = None) -> None:
        """Write consecutive bits to the set bits of `mask`. scan: what `gather_bits` returned, or None."""
        bases, words = scan_bits(mask) if scan is None else scan, mask.numel()
        grid = tiles_of(words, SCANNED_WORDS)
        launch.run(scatter_bits_kernel, grid, bits, mask, bases, out, words, SCANNED_WORDS)


def scan_bits(
    bitmap: Tensor, elements: int | None = None, out: Tensor | None = None, first: int = 0
) -> Tensor:
    """Count the set bits before each tile of SCANNED_WORDS words, and in all of them: int64[tiles + 1].

    out: int64[k], to which the positions of the first k set bits are written, plus `first`.
    """
    tiles = tiles_of(bitmap.numel(), SCANNED_WORDS)
    zeroed = torch.zeros(2 * (tiles + 1), dtype=torch.int64, device=bitmap.device)
    progress, bases = zeroed[: tiles + 1], zeroed[tiles + 1 :]
    size = ROW * bitmap.numel() if elements is None else elements
    listed, room = (bases, 0) if out is None else (out, out.numel())
    launch.run(
        scan_kernel, tiles, bitmap, progress, bases, listed, size, first, room, out is not None,
        SCANNED_WORDS, num_warps=SCAN_WARPS,
    )  # fmt: skip
    return bases


@triton.jit
def _inside(word, elements):
    """Return words in which the bits of elements are set, and those from `elements` on are not."""
    beyond = tl.minimum(tl.maximum((word + 1) * WORD_BITS - elements, 0), WORD_BITS - 1).to(tl.uint32)
    return (tl.full(word.shape, 0xFFFFFFFF, tl.uint32) >> beyond).to(tl.int32, bitcast=True)


@triton.jit
def load_bits(bitmap, word, elements):
    """Load words of a bitmap, with the bits from `elements` on cleared; 0 past its end."""
    words = tl.load(bitmap + word, mask=word * WORD_BITS < elements, other=0)
    return words & _inside(word, elements)


@triton.jit
def count_before(progress, tile, total):
    """Return the sum of the totals of the tiles before a program's, by decoupled look-back: int64.

    progress[1 + tiles] was zero before the launch. Its first number hands out tiles, in the order in which
    programs begin, so that a program waits only for those that run. Then follow, for each tile, 4 * count +
    1 for the tile's own count, or + 2 for that of all tiles up to it.
    """
    before, behind = tl.zeros((), tl.int64), tile
    tl.atomic_xchg(progress + 1 + tile, 4 * total + 1, sem="relaxed")
    while behind > 0:
        published = tl.load(progress + behind, volatile=True)
        before += tl.where(published == 0, 0, published // 4)
        behind = tl.where(published % 4 == 2, 0, tl.where(published == 0, behind, behind - 1))
    tl.atomic_xchg(progress + 1 + tile, 4 * (before + total) + 2, sem="relaxed")
    return before


@triton.jit
def write_positions(words, before, out, first, room):
    """Write the positions of the set bits of words[w], plus `first`, to out[before:], up to out[room]."""
    bits, counts = unpacked(words), popcount(words)
    rank = before + (tl.cumsum(counts, axis=0) - counts)[:, None] + tl.cumsum(bits, axis=1) - bits
    bit = tl.arange(0, words.shape[0])[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    tl.store(out + rank, first + bit, mask=(bits != 0) & (rank < room))


@kernel
def scan_kernel(
    bitmap, progress, bases, out, elements, first, room, LISTED: tl.constexpr, WORDS: tl.constexpr
):
    """Write the set bits before each tile, and in all: bases[tiles + 1]; if LISTED, also their positions."""
    tile = tl.atomic_add(progress, 1, sem="relaxed").to(tl.int64)
    words = load_bits(bitmap, tile * WORDS + tl.arange(0, WORDS), elements)
    total = tl.sum(popcount(words), axis=0).to(tl.int64)
    before = count_before(progress, tile, total)
    tl.store(bases + tile, before)
    tl.store(bases + tile + 1, before + total, mask=tile == tl.num_programs(0) - 1)
    if LISTED:
        write_positions(words, before, out, first + tile * (WORDS * WORD_BITS), room)


@kernel
def small_block_encode_kernel(index, out, elements, BITS: tl.constexpr, WORDS: tl.constexpr):
    """Write the bitmap of blocks of 2**BITS < 32 elements: a block is some bits of one word."""
    program = tl.program_id(0)
    word = program.to(tl.int64) * WORDS + tl.arange(0, WORDS)
    begin = (word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]) << BITS
    held = load_bits(index, begin // WORD_BITS, elements).to(tl.uint32, bitcast=True)
    stretch = (held >> (begin % WORD_BITS).to(tl.uint32)) & ((1 << (1 << BITS)) - 1)
    tl.store(out + word, packed(stretch != 0), mask=(word * WORD_BITS << BITS) < elements)


@kernel
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


@kernel
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
        words &= _inside(word, elements)
    tl.store(out + word, words, mask=inside)


@triton.jit
def _bloom_hashes(seed, word, first_word):
    """Return each word's first hash, and the difference from each hash to the next: uint64[w] each."""
    value = mixed(word + first_word, seed)
    return value & 0xFFFFFFFF, (value >> 32) | 1


@triton.jit
def _bloom_place(start, stride, j, rows):
    """Return the rows of the filter, int64[w], and the rotations, uint32[w], of words in sub-table j."""
    hashed = (start + j * stride) & 0xFFFFFFFF
    return j * as_int64(rows) + ((hashed * rows) >> 32).to(tl.int64), (hashed & 31).to(tl.uint32)


@triton.jit
def _rotated(words, bits):
    """Rotate int32[w] left by 0 to 32 bits each."""
    shifted = words.to(tl.uint32, bitcast=True).to(tl.uint64) << bits.to(tl.uint64)
    return (shifted | (shifted >> 32)).to(tl.uint32).to(tl.int32, bitcast=True)


@kernel
def bloom_encode_kernel(index, out, seed, words, first_word, hashes, rows, BLOCK: tl.constexpr):
    """OR a bitmap's words into the filter out[hashes * rows], which must be zero."""
    program = tl.program_id(0)
    word = one_per_thread(program.to(tl.int64) * BLOCK, BLOCK)
    held = tl.load(index + word, mask=word < words, other=0)
    start, stride = _bloom_hashes(seed, word, first_word)
    for j in range(hashes):
        row, rotation = _bloom_place(start, stride, j, rows)
        tl.atomic_or(out + row, _rotated(held, rotation), mask=held != 0, sem="relaxed")


@kernel
def bloom_decode_kernel(filter_, out, seed, elements, first_word, hashes, rows, BLOCK: tl.constexpr):
    """Write the bitmap of the elements that pass the filter."""
    program = tl.program_id(0)
    word = one_per_thread(program.to(tl.int64) * BLOCK, BLOCK)
    passed = _inside(word, elements)
    start, stride = _bloom_hashes(seed, word, first_word)
    for j in range(hashes):
        row, rotation = _bloom_place(start, stride, j, rows)
        # After a few sub-tables most words are empty; they are not looked up again.
        held = tl.load(filter_ + row, mask=(word * WORD_BITS < elements) & (passed != 0), other=0)
        passed &= _rotated(held, 32 - rotation)
    tl.store(out + word, passed, mask=word * WORD_BITS < elements)


@kernel
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


@kernel
def scatter_bits_kernel(bits, mask, bases, out, words, BLOCK: tl.constexpr):
    """Write consecutive `bits` to the set bits of `mask`, the inverse of `gather_bits_kernel`: out[words]."""
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
