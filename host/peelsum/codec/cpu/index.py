"""The index on all cores: bitmaps, blocks and Bloom filters, by loops that Numba compiles.

A compiled loop does the work of the method of the same name, for a slice of its elements. Bytes are
little-endian, as on every processor that Numba supports.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from peelsum import buffers
from peelsum.buffers import frozen
from peelsum.codec.arrays import Integers, Numbers, Words
from peelsum.codec.cpu.vectors import used_bits, write_bitmap_words, write_set_bits
from peelsum.codec.cpu.words import MAGNITUDE_MASK, compiled, leaf, lowest, mixed, popcount
from peelsum.codec.layout import BLOCK_SIZES, WORD_BITS, BloomLayout, block_words, index_words
from peelsum.codec.threads import each, slices

_NEGATIVE_ZERO = np.uint32(0x80000000)
_FULL = np.uint32(0xFFFFFFFF)
_ZERO, _ONE, _31 = np.uint32(0), np.uint32(1), np.uint32(31)
_S5, _S32 = np.uint64(5), np.uint64(32)
_LOW5, _NONE, _BYTE, _8 = np.uint64(31), np.uint64(0), np.uint32(255), np.uint32(8)
#: For each byte, the numbers of its set bits, ascending, and then zeros.
_SET_BITS = np.array(
    [
        byte >> bit & 1 and bit
        for byte in range(256)
        for bit in sorted(range(8), key=lambda b: not byte >> b & 1)
    ],
    np.uint8,
)
_BATCH = 1024  # words that a loop handles before the next loop over the same words
OVERRUN = 8  # positions that are written at once, also if fewer are needed


class CpuIndex:
    """The operations of `CodecDevice` on bitmaps, see there."""

    def count(self, index: Words) -> int:
        """Return how many bits of a bitmap are set. It may be on this device, or on the host, as received."""
        return int(np.bitwise_count(index).sum())

    def positions(self, index: Words, elements: int, first: int = 0, count: int | None = None) -> Numbers:
        """Return the elements whose bit is set in a bitmap of `elements` bits, ascending: int64[k].

        `count` is k, if it is known; without it, the GPU's kernels wait for the device to count.
        """
        spans = slices(elements)
        if len(spans) == 1:
            out = buffers.empty(count_bits(index, elements) if count is None else count, np.int64)
            positions(index, elements, first, out)
            return out
        counts = each(elements, lambda a, b: int(count_bits(_words(index, a, b), b - a)))
        out = buffers.empty(sum(counts), np.int64)
        parts = dict(zip(spans, np.split(out, list(accumulate(counts[:-1]))), strict=True))
        each(elements, lambda a, b: positions(_words(index, a, b), b - a, first + a, parts[a, b]))
        return out

    def block_encode(self, index: Words, elements: int, block: int, out: Words) -> None:
        """Write the bitmap of the blocks that hold a set bit of `index`.

        `block` is the number of elements in a block, a power of 2 and at least 2; `out` has
        block_words(elements, block) words.
        """
        if block < WORD_BITS:
            shift, index = block.bit_length() - 1, frozen(index)
            each(
                WORD_BITS * index.size,
                lambda a, b: block_encode(_words(index, a, b), shift, out[(a >> shift) // WORD_BITS :]),
            )
        elif block == WORD_BITS:
            non_zero_words(frozen(index), out)
        else:
            used = buffers.empty(block_words(elements, WORD_BITS), np.uint32)
            non_zero_words(frozen(index), used)
            self.block_encode(used, index.size, block // WORD_BITS, out)

    def block_decode(self, blocks: Words, elements: int, block: int, out: Words) -> None:
        """Write the bitmap of all elements of the blocks set in `blocks` into out[index_words(elements)]."""
        if block < WORD_BITS:
            shift, blocks = block.bit_length() - 1, frozen(blocks)
            each(
                WORD_BITS * out.size,
                lambda a, b: block_decode(blocks[(a >> shift) // WORD_BITS :], shift, _words(out, a, b)),
            )
        elif block == WORD_BITS:
            fill_blocks(frozen(blocks), out)
        else:
            used = buffers.empty(block_words(elements, WORD_BITS), np.uint32)
            self.block_decode(blocks, out.size, block // WORD_BITS, used)
            fill_blocks(frozen(used), out)
        clear_padding(out, elements)

    def bloom_encode(self, layout: BloomLayout, index: Words, out: Words, first: int = 0) -> None:
        """Write the Bloom filter of a bitmap into out[layout.words].

        The OR of filters is the filter of the bitmaps' OR.
        """
        index = frozen(index)

        def work(begin: int, end: int) -> Words:
            slice_filter = buffers.empty(out.size, np.uint32) if begin else out
            slice_filter[:] = 0
            first_word, words = (first + begin) // WORD_BITS, _words(index, begin, end)
            bloom_encode(*_bloom(layout), first_word, words, slice_filter)
            return slice_filter

        for slice_filter in each(WORD_BITS * index.size, work, copies_of=out.size)[1:]:
            np.bitwise_or(out, slice_filter, out=out)

    def bloom_decode(
        self, layout: BloomLayout, words: Words, elements: int, out: Words, first: int = 0
    ) -> None:
        """Write the bitmap of the elements that pass the filter `words` into out[index_words(elements)].

        They are all elements encoded on any worker, and a few false positives.
        """
        words = frozen(words)

        def work(begin: int, end: int) -> None:
            first_word, part = (first + begin) // WORD_BITS, _words(out, begin, end)
            bloom_decode(*_bloom(layout), first_word, words, end - begin, part)

        each(elements, work)

    def gather_bits(self, index: Words, mask: Words, out: Words) -> Any:
        """Write the bits of `index` that `mask` selects, in order, as a bitmap of k bits.

        `mask` is a bitmap of as many words as `index`, with k set bits; `out` has index_words(k) words.
        Return a scan of `mask` for `scatter_bits`, or None.
        """
        gather_bits(frozen(index), frozen(mask), out)

    def scatter_bits(self, bits: Words, mask: Words, out: Words, scan: Any = None) -> None:
        """Write bit t of `bits` to the place of the t-th set bit of `mask`, and 0 elsewhere.

        The inverse of `gather_bits`; `out` has as many words as `mask`. `scan` is what `gather_bits` returned
        for the same mask; without it, the mask is scanned again.
        """
        scatter_bits(frozen(bits), frozen(mask), out)


def occupied(numbers: Integers) -> Numbers:
    """Count the blocks of 2**b numbers that have a non-zero number, for each b: int64[BLOCK_SIZES]."""
    words, counts = frozen(numbers.view(np.uint32)), np.empty(BLOCK_SIZES, np.int64)
    bitmap = np.empty(index_words(words.size), np.uint32)
    non_zero_words(words, bitmap)
    count_blocks(bitmap, counts)
    return counts


def _words(bitmap: Words, begin: int, end: int) -> Words:
    """Return the words that hold bits `begin` (a multiple of 32) to `end`."""
    return bitmap[begin // WORD_BITS : -(-end // WORD_BITS)]


def _bloom(layout: BloomLayout) -> tuple[int, int, np.uint64]:
    """Return a layout's fields as the compiled loops take them."""
    return layout.hashes, layout.rows, np.uint64(layout.seed)


@leaf
def write_bitmap(bits: Words, begin: int, end: int, clean: bool, out: Words) -> np.uint32:
    """Write the bitmap of the non-zeros among floats[begin:end]; return their largest magnitude.

    Floats and magnitude are bit patterns. `begin` is a multiple of 32. clean: replace -0.0 by 0.0.
    """
    whole = max(end // 32 * 32, begin)
    # Bit 31 of the result is set if there is a -0.0.
    result = write_bitmap_words(bits, np.uint64(begin), np.uint64((whole - begin) // 32), out)
    if whole < end:
        word = _ZERO
        for i in range(np.uint64(whole), np.uint64(end)):
            magnitude = np.uint32(bits[i] & MAGNITUDE_MASK)
            word |= np.uint32(magnitude != _ZERO) << np.uint32(i & _LOW5)
            sign = np.uint32((result & _NEGATIVE_ZERO) | (np.uint32(bits[i] == _NEGATIVE_ZERO) << _31))
            result = np.uint32(max(np.uint32(result & MAGNITUDE_MASK), magnitude) | sign)
        out[np.uint64(whole // 32)] = word
    if clean and result & _NEGATIVE_ZERO:  # few slices have one
        for i in range(np.uint64(begin), np.uint64(end)):
            bits[i] = _ZERO if bits[i] == _NEGATIVE_ZERO else bits[i]
    return np.uint32(result & MAGNITUDE_MASK)


@compiled
def masked_word(index: Words, w: int, elements: int) -> np.uint32:
    """Return word w of a bitmap, with the bits from `elements` on cleared."""
    if 32 * w + 32 <= elements:
        return np.uint32(index[w])
    return np.uint32(index[w] & np.uint32((1 << max(elements - 32 * w, 0)) - 1))


@compiled
def count_bits(index: Words, elements: int) -> int:
    """Count the set bits among the first `elements` bits of a bitmap."""
    count = 0
    for w in range(index.size):
        count += int(popcount(masked_word(index, w, elements)))
    return count


@compiled
def positions(index: Words, elements: int, first: int, out: Numbers) -> None:
    """Write the positions of the set bits, plus `first`.

    If less than one bit in 32 is set, they are written bit by bit. Else each byte is looked up in a table of
    its set bits, which takes the same time for any byte: a branch per bit would be mispredicted. A byte
    writes eight positions, even if fewer bits are set. So the last words, where `out` has less room, are
    written bit by bit.
    """
    if 32 * out.size < elements:
        _write_few_positions(index, elements, first, out)
        return
    k, room, words = _NONE, np.int64(out.size) - 32, np.uint64(elements // 32)
    w = np.uint64(0)
    while w < words and np.int64(k) <= room:
        word, start = index[w], first + 32 * np.int64(w)
        for _ in range(4):
            byte = np.uint64(word & _BYTE)
            write_set_bits(_SET_BITS, byte, start, out, k)
            k += np.uint64(popcount(np.uint32(byte)))
            word, start = np.uint32(word >> _8), start + 8
        w += np.uint64(1)
    for rest in range(w, np.uint64(index.size)):
        at = int(np.int64(rest))
        k = _write_bits(masked_word(index, at, elements), first + 32 * at, out, k)


@compiled
def _write_few_positions(index: Words, elements: int, first: int, out: Numbers) -> None:
    """Write the positions of the set bits of a sparse bitmap: look at 32 words at once, skip zeros."""
    k, whole = _NONE, np.uint64(elements // 1024 * 32)
    for w in range(_NONE, whole, _S32):
        used = used_bits(index, w, _FULL)
        while used != _ZERO:
            at = int(np.int64(w)) + int(lowest(used))
            used = np.uint32(used & np.uint32(used - _ONE))
            k = _write_bits(index[np.uint64(at)], first + 32 * at, out, k)
    for rest in range(elements // 1024 * 32, index.size):
        k = _write_bits(masked_word(index, rest, elements), first + 32 * rest, out, k)


@compiled
def _write_bits(word: np.uint32, start: int, out: Numbers, k: np.uint64) -> np.uint64:
    """Write the positions of a word's set bits to out[k:]; return the index after the last."""
    while word != _ZERO:
        out[k] = start + np.int64(lowest(word))
        word = np.uint32(word & np.uint32(word - _ONE))
        k += np.uint64(1)
    return k


@compiled
def block_encode(index: Words, shift: int, out: Words) -> None:
    """Write the bitmap of the blocks, of 2**shift < 32 elements, that hold a set bit.

    The words of a batch are packed in a loop of their own, which vectorizes.
    """
    squeezed, together, width = np.empty(_BATCH, np.uint32), np.uint64(1 << shift), np.uint64(32 >> shift)
    for start in range(0, index.size, _BATCH):
        words = index[start : start + _BATCH]
        squeezed[: words.size] = words
        squeezed[words.size :] = _ZERO
        for _ in range(shift):
            for w in range(words.size):
                # Pack bits 0, 2, 4, ... of each pair's OR into the lower half.
                word = np.uint32((squeezed[w] | (squeezed[w] >> _ONE)) & np.uint32(0x55555555))
                word = np.uint32((word | (word >> _ONE)) & np.uint32(0x33333333))
                word = np.uint32((word | (word >> np.uint32(2))) & np.uint32(0x0F0F0F0F))
                word = np.uint32((word | (word >> np.uint32(4))) & np.uint32(0x00FF00FF))
                squeezed[w] = np.uint32((word | (word >> np.uint32(8))) & np.uint32(0x0000FFFF))
        first, count = np.uint64(start >> shift), np.uint64((words.size + (1 << shift) - 1) >> shift)
        for o in range(count):
            word = _ZERO
            for e in range(together):
                word |= np.uint32(squeezed[o * together + e] << np.uint32(e * width))
            out[first + o] = word


@compiled
def block_decode(blocks: Words, shift: int, out: Words) -> None:
    """Write the bitmap of all elements of the set blocks, of 2**shift < 32 elements.

    The words of a batch are unpacked in a loop of their own, which vectorizes.
    """
    inside, width = np.uint64((1 << shift) - 1), np.uint64(32 >> shift)
    for start in range(0, out.size, _BATCH):
        words, first = out[start : start + _BATCH], np.uint64(start >> shift)
        for w in range(np.uint64(words.size)):
            words[w] = np.uint32(blocks[first + (w >> np.uint64(shift))] >> np.uint32((w & inside) * width))
        for _ in range(shift):
            for w in range(words.size):
                # Write each of bits 0 to 15 twice, side by side.
                word = np.uint32(words[w] & np.uint32(0x0000FFFF))
                word = np.uint32((word | (word << np.uint32(8))) & np.uint32(0x00FF00FF))
                word = np.uint32((word | (word << np.uint32(4))) & np.uint32(0x0F0F0F0F))
                word = np.uint32((word | (word << np.uint32(2))) & np.uint32(0x33333333))
                word = np.uint32((word | (word << _ONE)) & np.uint32(0x55555555))
                words[w] = np.uint32(word | np.uint32(word << _ONE))


@compiled
def non_zero_words(index: Words, out: Words) -> None:
    """Write a bitmap of which words are not zero, i.e. of blocks of 32 elements."""
    whole = index.size // 32 * 32
    for w in range(np.uint64(0), np.uint64(whole), np.uint64(32)):
        out[w >> _S5] = used_bits(index, w, _FULL)
    if whole < index.size:
        word = _ZERO
        for i in range(whole, index.size):
            word |= np.uint32(index[i] != _ZERO) << np.uint32(i - whole)
        out[whole // 32] = word


@compiled
def fill_blocks(used: Words, out: Words) -> None:
    """Set all bits of the words whose bit in `used` is set; zero the others."""
    for w in range(out.size):
        out[w] = np.uint32(-((used[w >> 5] >> np.uint32(w & 31)) & _ONE))


@compiled
def clear_padding(out: Words, elements: int) -> None:
    """Clear the bits of a bitmap from `elements` on."""
    for w in range(elements // 32, out.size):
        out[w] = masked_word(out, w, elements)


@compiled
def _count_small_blocks(index: Words, out: Numbers) -> None:
    """Count the blocks of 1, 2, 4, 8 and 16 elements that hold a set bit; the loop vectorizes."""
    ones_, twos, fours, eights, sixteens = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
    for w in range(index.size):
        word = np.uint32(index[w])
        ones_ += popcount(word)
        word = np.uint32((word | (word >> _ONE)) & np.uint32(0x55555555))
        twos += popcount(word)
        word = np.uint32((word | (word >> np.uint32(2))) & np.uint32(0x11111111))
        fours += popcount(word)
        word = np.uint32((word | (word >> np.uint32(4))) & np.uint32(0x01010101))
        eights += popcount(word)
        sixteens += popcount(np.uint32((word | (word >> _8)) & np.uint32(0x00010001)))
    out[0], out[1], out[2], out[3], out[4] = ones_, twos, fours, eights, sixteens


@compiled
def count_blocks(index: Words, out: Numbers) -> None:
    """Count the blocks of 2**b elements that hold a set bit, for each b below BLOCK_SIZES, into out[b]."""
    _count_small_blocks(index, out[0:5])
    used = np.empty((index.size + 31) // 32, np.uint32)
    non_zero_words(index, used)  # blocks of 32 elements
    _count_small_blocks(used, out[5:10])
    twice, counts = np.empty((used.size + 31) // 32, np.uint32), np.empty(5, np.int64)
    non_zero_words(used, twice)
    _count_small_blocks(twice, counts)
    out[10:] = counts[: BLOCK_SIZES - 10]


@compiled
def _bloom_hash(word: int, seed: np.uint64) -> tuple[np.uint32, np.uint32]:
    """Return the first hash of a bitmap's word, and the difference from each hash to the next."""
    value = mixed(np.uint64(word), seed)
    return np.uint32(value), np.uint32(np.uint32(value >> _S32) | _ONE)


@compiled
def _rotate_left(word: np.uint32, bits: np.uint32) -> np.uint32:
    """Rotate a word left by `left` modulo 32 bits."""
    return np.uint32(np.uint32(word << (bits & _31)) | np.uint32(word >> (np.uint32(-bits) & _31)))


@compiled
def list_non_zero_words(words: Words, out: Numbers) -> int:
    """Write the positions of the non-zero words, ascending; return how many there are.

    `out` is longer than `words` by `OVERRUN` or more.
    """
    count, whole = _NONE, words.size // 32 * 32
    for w in range(_NONE, np.uint64(whole), _S32):
        used = used_bits(words, w, _FULL)
        for byte in range(4):
            number = np.uint64(used & _BYTE)
            write_set_bits(_SET_BITS, number, np.int64(w) + 8 * byte, out, count)
            count += np.uint64(popcount(np.uint32(number)))
            used = np.uint32(used >> _8)
    for rest in range(whole, words.size):
        out[count] = rest
        count += np.uint64(words[rest] != _ZERO)
    return int(np.int64(count))


@compiled
def _bloom_rows(hashed: Words, rows: int, out: Words) -> None:
    """Write the row of a filter's sub-table to which each hash belongs; the loop vectorizes."""
    for i in range(hashed.size):
        out[i] = np.uint32((np.uint64(hashed[i]) * np.uint64(rows)) >> _S32)


@compiled
def bloom_encode(hashes: int, rows: int, seed: np.uint64, first_word: int, index: Words, out: Words) -> None:
    """Write the filter of a bitmap's non-zero words into `out`, which must be zero.

    first_word: the number of the bitmap's first word in its tensor.
    """
    numbers, used = np.empty(_BATCH + OVERRUN, np.int64), np.empty(_BATCH, np.uint32)
    room = np.empty((3, _BATCH), np.uint32)
    for start in range(0, index.size, _BATCH):
        words = index[start : start + _BATCH]
        count = list_non_zero_words(words, numbers)
        hashed, stride, row = room[0, :count], room[1, :count], room[2, :count]
        for i in range(np.uint64(count)):
            used[i] = words[np.uint64(numbers[i])]
            hashed[i], stride[i] = _bloom_hash(first_word + start + numbers[i], seed)
        for j in range(hashes):
            table = out[j * rows : (j + 1) * rows]
            _bloom_rows(hashed, rows, row)
            for i in range(np.uint64(count)):
                table[np.uint64(row[i])] |= _rotate_left(used[i], hashed[i])
            for i in range(np.uint64(count)):
                hashed[i] += stride[i]


@compiled
def bloom_decode(
    hashes: int, rows: int, seed: np.uint64, first_word: int, words: Words, elements: int, out: Words
) -> None:
    """Write the bitmap of the elements that pass the filter `words`.

    A batch of words is looked up in one sub-table after the other; the loops around a look-up vectorize.
    first_word: the number of the bitmap's first word in its tensor.
    """
    room = np.empty((3, _BATCH), np.uint32)
    for start in range(0, out.size, _BATCH):
        passed = out[start : start + _BATCH]
        hashed, stride, row = room[0, : passed.size], room[1, : passed.size], room[2, : passed.size]
        for w in range(passed.size):
            hashed[w], stride[w] = _bloom_hash(first_word + start + w, seed)
            passed[w] = _FULL
        for j in range(hashes):
            table = words[j * rows : (j + 1) * rows]
            _bloom_rows(hashed, rows, row)
            for w in range(np.uint64(row.size)):
                row[w] = table[np.uint64(row[w])]
            for w in range(passed.size):
                passed[w] &= _rotate_left(row[w], np.uint32(-hashed[w]))
                hashed[w] += stride[w]
    clear_padding(out, elements)


@compiled
def _compress_step(
    mask: np.uint32, gaps: np.uint32, bits: np.uint32
) -> tuple[np.uint32, np.uint32, np.uint32]:
    """Compute one of five steps (`bits` = 1, 2, 4, 8, 16) that move a mask's set bits to the lowest bits.

    Return the bits that move in this step, the mask after it, and the gaps that remain for later steps. A bit
    moves if the number of gaps below it has bit `bits` set (parallel suffix: Warren, Hacker's Delight, 7-4).
    There is no branch, so the compiler handles several words at once.
    """
    odd = np.uint32(gaps ^ (gaps << _ONE))
    odd ^= np.uint32(odd << np.uint32(2))
    odd ^= np.uint32(odd << np.uint32(4))
    odd ^= np.uint32(odd << np.uint32(8))
    odd ^= np.uint32(odd << np.uint32(16))
    moved = np.uint32(odd & mask)
    return moved, np.uint32((mask ^ moved) | (moved >> bits)), np.uint32(gaps & ~odd)


@compiled
def _shift_up(word: np.uint32, moved: np.uint32, bits: np.uint32) -> np.uint32:
    """Shift bits up to the bits `moved`, as a step of `_compress_step` says."""
    return np.uint32((word & ~moved) | ((word << bits) & moved))


@compiled
def _compress_bits(words: Words, masks: Words, out: Words) -> None:
    """Move the bits of each word that its mask selects, in order, to the lowest bits."""
    for w in range(masks.size):
        mask = np.uint32(masks[w])
        word, gaps = np.uint32(words[w] & mask), np.uint32(~mask << _ONE)
        for step in range(5):
            moved, mask, gaps = _compress_step(mask, gaps, np.uint32(1 << step))
            shifted = np.uint32(word & moved)
            word = np.uint32((word ^ shifted) | (shifted >> np.uint32(1 << step)))
        out[w] = word


@compiled
def _expand_bits(words: Words, masks: Words, out: Words) -> None:
    """Move the lowest bits of each word to the bits of its mask: the inverse of `_compress_bits`."""
    for w in range(masks.size):
        mask = np.uint32(masks[w])
        moved_1, moving, gaps = _compress_step(mask, np.uint32(~mask << _ONE), np.uint32(1))
        moved_2, moving, gaps = _compress_step(moving, gaps, np.uint32(2))
        moved_4, moving, gaps = _compress_step(moving, gaps, np.uint32(4))
        moved_8, moving, gaps = _compress_step(moving, gaps, np.uint32(8))
        moved_16, moving, gaps = _compress_step(moving, gaps, np.uint32(16))
        word = _shift_up(np.uint32(words[w]), moved_16, np.uint32(16))
        word = _shift_up(word, moved_8, np.uint32(8))
        word = _shift_up(word, moved_4, np.uint32(4))
        word = _shift_up(word, moved_2, np.uint32(2))
        word = _shift_up(word, moved_1, np.uint32(1))
        out[w] = word & mask


@compiled
def gather_bits(index: Words, mask: Words, out: Words) -> None:
    """Write the bits of `index` that `mask` selects, end to end. Words whose mask is 0 are skipped."""
    numbers, room = np.empty(_BATCH + OVERRUN, np.int64), np.empty((3, _BATCH), np.uint32)
    pending, filled, at = np.uint64(0), np.uint64(0), 0  # bits not yet written, and their number
    for start in range(0, mask.size, _BATCH):
        count = list_non_zero_words(mask[start : start + _BATCH], numbers)
        words, masks, squeezed = room[0, :count], room[1, :count], room[2, :count]
        for i in range(np.uint64(count)):
            words[i] = index[np.uint64(start + numbers[i])]
            masks[i] = mask[np.uint64(start + numbers[i])]
        _compress_bits(words, masks, squeezed)
        for i in range(np.uint64(count)):
            pending |= np.uint64(squeezed[i]) << filled
            filled += np.uint64(popcount(masks[i]))
            if at < out.size:
                out[np.uint64(at)] = np.uint32(pending)
            full = filled >> _S5
            pending >>= full << _S5
            filled &= _LOW5
            at += int(full)
    if at < out.size:
        out[at] = np.uint32(pending)


@compiled
def scatter_bits(bits: Words, mask: Words, out: Words) -> None:
    """Write consecutive bits to the set bits of `mask`, and 0 elsewhere. Words whose mask is 0 are skipped.

    The bits of the others are read without a branch, from two words each.
    """
    numbers, room = np.empty(_BATCH + OVERRUN, np.int64), np.empty((3, _BATCH), np.uint32)
    at, last = np.uint64(0), np.uint64(max(bits.size - 1, 0))
    for start in range(0, mask.size, _BATCH):
        batch = out[start : start + _BATCH]
        count = list_non_zero_words(mask[start : start + _BATCH], numbers)
        compressed, masks, expanded = room[0, :count], room[1, :count], room[2, :count]
        for i in range(np.uint64(count)):
            masks[i] = mask[np.uint64(start + numbers[i])]
            lower = at >> _S5
            window = np.uint64(bits[lower]) | (np.uint64(bits[min(lower + np.uint64(1), last)]) << _S32)
            compressed[i] = np.uint32(window >> (at & _LOW5))
            at += np.uint64(popcount(masks[i]))
        _expand_bits(compressed, masks, expanded)
        batch[:] = _ZERO
        for i in range(np.uint64(count)):
            batch[np.uint64(numbers[i])] = expanded[i]
