"""The index on all cores: bitmaps, blocks and Bloom filters, by loops that Numba compiles.

A public loop does what the operation of the same name does, for a slice of its elements. Bytes are
little-endian, as on every processor that Numba supports.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from peelsum import buffers
from peelsum.buffers import frozen
from peelsum.codec.arrays import Numbers, Words
from peelsum.codec.cpu.vectors import indexed, used_bits, write_places
from peelsum.codec.cpu.words import MAGNITUDE_MASK, compiled, leaf, lowest, mixed, ones
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout, block_words
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
_SEVERAL = 1024  # words
ROOM = 8  # numbers that are written at once


class CpuIndex:
    """The operations of `Device` on bitmaps."""

    def count(self, index: Words) -> int:
        """See `Device.count`."""
        return int(np.bitwise_count(index).sum())

    def positions(self, index: Words, elements: int, first: int = 0, count: int | None = None) -> Numbers:
        """See `Device.positions`."""
        index, spans = frozen(index), slices(elements)
        if len(spans) == 1:
            out = buffers.empty(set_bits(index, elements) if count is None else count, np.int64)
            positions(index, elements, first, out)
            return out
        counts = each(elements, lambda a, b: int(set_bits(_words(index, a, b), b - a)))
        out = buffers.empty(sum(counts), np.int64)
        parts = dict(zip(spans, np.split(out, list(accumulate(counts[:-1]))), strict=True))
        each(
            elements,
            lambda a, b: positions(_words(index, a, b), b - a, first + a, parts[a, b]),
        )
        return out

    def block_encode(self, index: Words, elements: int, block: int, out: Words) -> None:
        """See `Device.block_encode`."""
        if block < WORD_BITS:
            shift, index = block.bit_length() - 1, frozen(index)
            each(
                WORD_BITS * index.size,
                lambda a, b: block_encode(_words(index, a, b), shift, out[(a >> shift) // WORD_BITS :]),
            )
        elif block == WORD_BITS:
            used_words(frozen(index), out)
        else:
            used = buffers.empty(block_words(elements, WORD_BITS), np.uint32)
            used_words(frozen(index), used)
            self.block_encode(used, index.size, block // WORD_BITS, out)

    def block_decode(self, blocks: Words, elements: int, block: int, out: Words) -> None:
        """See `Device.block_decode`."""
        if block < WORD_BITS:
            shift, blocks = block.bit_length() - 1, frozen(blocks)
            each(
                WORD_BITS * out.size,
                lambda a, b: block_decode(blocks[(a >> shift) // WORD_BITS :], shift, _words(out, a, b)),
            )
        elif block == WORD_BITS:
            fill_words(frozen(blocks), out)
        else:
            used = buffers.empty(block_words(elements, WORD_BITS), np.uint32)
            self.block_decode(blocks, out.size, block // WORD_BITS, used)
            fill_words(frozen(used), out)
        clean(out, elements)

    def bloom_encode(self, layout: BloomLayout, index: Words, out: Words, first: int = 0) -> None:
        """See `Device.bloom_encode`."""
        index = frozen(index)

        def work(begin: int, end: int) -> Words:
            own = buffers.empty(out.size, np.uint32) if begin else out
            own[:] = 0
            bloom_encode(*_bloom(layout), (first + begin) // WORD_BITS, _words(index, begin, end), own)
            return own

        for own in each(WORD_BITS * index.size, work, copies_of=out.size)[1:]:
            np.bitwise_or(out, own, out=out)

    def bloom_decode(
        self, layout: BloomLayout, words: Words, elements: int, out: Words, first: int = 0
    ) -> None:
        """See `Device.bloom_decode`."""
        words = frozen(words)

        def work(begin: int, end: int) -> None:
            first_word, part = (first + begin) // WORD_BITS, _words(out, begin, end)
            bloom_decode(*_bloom(layout), first_word, words, end - begin, part)

        each(elements, work)

    def gather_bits(self, index: Words, mask: Words, out: Words) -> None:
        """See `Device.gather_bits`."""
        gather_bits(frozen(index), frozen(mask), out)

    def scatter_bits(self, bits: Words, mask: Words, out: Words, scan: None = None) -> None:
        """See `Device.scatter_bits`."""
        scatter_bits(frozen(bits), frozen(mask), out)


def occupied(positions: Numbers) -> Numbers:
    """Count the blocks of 2**b elements that hold one of positions[k], for each b: int64[BLOCK_SIZES].

    Positions are ascending.
    """
    out = buffers.empty(BLOCK_SIZES, np.int64)
    _occupied(frozen(positions), np.zeros(WORD_BITS + 1, np.int64), out)
    return out


def _words(bitmap: Words, begin: int, end: int) -> Words:
    """Return the words that hold bits `begin` (a multiple of 32) to `end`."""
    return bitmap[begin // WORD_BITS : -(-end // WORD_BITS)]


def _bloom(layout: BloomLayout) -> tuple[int, int, np.uint64]:
    return layout.hashes, layout.rows, np.uint64(layout.seed)


@leaf
def pack(bits: Words, begin: int, end: int, out: Words) -> np.uint32:
    """Write the bitmap's words for floats `begin`, a multiple of 32, to `end`; return their magnitude."""
    return np.uint32(_packed(bits, begin, end, out) & MAGNITUDE_MASK)


@leaf
def pack_over(bits: Words, begin: int, end: int, out: Words) -> np.uint32:
    """Do what `pack` does, and replace -0.0 by 0.0 in place: few slices have one."""
    largest = _packed(bits, begin, end, out)
    if largest & _NEGATIVE_ZERO:
        for i in range(np.uint64(begin), np.uint64(end)):
            bits[i] = _ZERO if bits[i] == _NEGATIVE_ZERO else bits[i]
    return np.uint32(largest & MAGNITUDE_MASK)


@leaf
def _packed(bits: Words, begin: int, end: int, out: Words) -> np.uint32:
    """Do what `pack` does; set bit 31 of the result if there is a -0.0."""
    whole = max(end // 32 * 32, begin)
    packed = indexed(bits, np.uint64(begin), np.uint64((whole - begin) // 32), out)
    if whole == end:
        return packed
    largest, sign, word = np.uint32(packed & MAGNITUDE_MASK), np.uint32(packed & _NEGATIVE_ZERO), _ZERO
    for i in range(np.uint64(whole), np.uint64(end)):
        own = np.uint32(bits[i] & MAGNITUDE_MASK)
        word |= np.uint32(own != _ZERO) << np.uint32(i & _LOW5)
        sign |= np.uint32(bits[i] == _NEGATIVE_ZERO) << _31
        largest = max(largest, own)
    out[np.uint64(whole // 32)] = word
    return np.uint32(largest | sign)


@compiled
def valid(index: Words, w: int, elements: int) -> np.uint32:
    """Return word w of a bitmap, with the bits from `elements` on cleared."""
    if 32 * w + 32 <= elements:
        return np.uint32(index[w])
    return np.uint32(index[w] & np.uint32((1 << max(elements - 32 * w, 0)) - 1))


@compiled
def set_bits(index: Words, elements: int) -> int:
    count = 0
    for w in range(index.size):
        count += int(ones(valid(index, w, elements)))
    return count


@compiled
def positions(index: Words, elements: int, first: int, out: Numbers) -> None:
    """Write positions by a table of bytes, or bit by bit if less than one bit in 32 is set.

    The table takes the same time for any byte: a branch per bit would be mispredicted. Each byte writes eight
    positions, even if it has fewer set bits. So the last words, which lack the room, go bit by bit.
    """
    if 32 * out.size < elements:
        _positions_of_few(index, elements, first, out)
        return
    k, room, words = _NONE, np.int64(out.size) - 32, np.uint64(elements // 32)
    w = np.uint64(0)
    while w < words and np.int64(k) <= room:
        word, start = index[w], first + 32 * np.int64(w)
        for _ in range(4):
            byte = np.uint64(word & _BYTE)
            write_places(_SET_BITS, byte, start, out, k)
            k += np.uint64(ones(np.uint32(byte)))
            word, start = np.uint32(word >> _8), start + 8
        w += np.uint64(1)
    for rest in range(w, np.uint64(index.size)):
        at = int(np.int64(rest))
        k = _write_bits(valid(index, at, elements), first + 32 * at, out, k)


@compiled
def _positions_of_few(index: Words, elements: int, first: int, out: Numbers) -> None:
    """Look at 32 words at once, and pass over those that are 0."""
    k, whole = _NONE, np.uint64(elements // 1024 * 32)
    for w in range(_NONE, whole, _S32):
        used = used_bits(index, w, _FULL)
        while used != _ZERO:
            at = int(np.int64(w)) + int(lowest(used))
            used = np.uint32(used & np.uint32(used - _ONE))
            k = _write_bits(index[np.uint64(at)], first + 32 * at, out, k)
    for rest in range(elements // 1024 * 32, index.size):
        k = _write_bits(valid(index, rest, elements), first + 32 * rest, out, k)


@compiled
def _write_bits(word: np.uint32, start: int, out: Numbers, k: np.uint64) -> np.uint64:
    """Write the positions of a word's set bits from out[k] on; return the place after them."""
    while word != _ZERO:
        out[k] = start + np.int64(lowest(word))
        word = np.uint32(word & np.uint32(word - _ONE))
        k += np.uint64(1)
    return k


@compiled
def _squeezed(word: np.uint32) -> np.uint32:
    """Pack bits 0, 2, 4, ... of a word into its lower half."""
    word &= np.uint32(0x55555555)
    word = np.uint32((word | (word >> _ONE)) & np.uint32(0x33333333))
    word = np.uint32((word | (word >> np.uint32(2))) & np.uint32(0x0F0F0F0F))
    word = np.uint32((word | (word >> np.uint32(4))) & np.uint32(0x00FF00FF))
    return np.uint32((word | (word >> np.uint32(8))) & np.uint32(0x0000FFFF))


@compiled
def _doubled(word: np.uint32) -> np.uint32:
    """Write each of bits 0 to 15 of a word twice, side by side."""
    word &= np.uint32(0x0000FFFF)
    word = np.uint32((word | (word << np.uint32(8))) & np.uint32(0x00FF00FF))
    word = np.uint32((word | (word << np.uint32(4))) & np.uint32(0x0F0F0F0F))
    word = np.uint32((word | (word << np.uint32(2))) & np.uint32(0x33333333))
    word = np.uint32((word | (word << _ONE)) & np.uint32(0x55555555))
    return np.uint32(word | np.uint32(word << _ONE))


@compiled
def block_encode(index: Words, shift: int, out: Words) -> None:
    """Encode blocks of 2**shift < 32 elements. The loop that squeezes words handles several at once."""
    squeezed, together, width = np.empty(_SEVERAL, np.uint32), np.uint64(1 << shift), np.uint64(32 >> shift)
    for start in range(0, index.size, _SEVERAL):
        words = index[start : start + _SEVERAL]
        squeezed[: words.size] = words
        squeezed[words.size :] = _ZERO
        for _ in range(shift):
            for w in range(words.size):
                squeezed[w] = _squeezed(np.uint32(squeezed[w] | (squeezed[w] >> _ONE)))
        first, count = np.uint64(start >> shift), np.uint64((words.size + (1 << shift) - 1) >> shift)
        for o in range(count):
            word = _ZERO
            for e in range(together):
                word |= np.uint32(squeezed[o * together + e] << np.uint32(e * width))
            out[first + o] = word


@compiled
def block_decode(blocks: Words, shift: int, out: Words) -> None:
    """Decode blocks of 2**shift < 32 elements. The loop that doubles bits handles several words at once."""
    inside, width = np.uint64((1 << shift) - 1), np.uint64(32 >> shift)
    for start in range(0, out.size, _SEVERAL):
        words, first = out[start : start + _SEVERAL], np.uint64(start >> shift)
        for w in range(np.uint64(words.size)):
            words[w] = np.uint32(blocks[first + (w >> np.uint64(shift))] >> np.uint32((w & inside) * width))
        for _ in range(shift):
            for w in range(words.size):
                words[w] = _doubled(words[w])


@compiled
def used_words(index: Words, out: Words) -> None:
    """Write the bitmap of the non-zero words, i.e. of blocks of 32 elements."""
    whole = index.size // 32 * 32
    for w in range(np.uint64(0), np.uint64(whole), np.uint64(32)):
        out[w >> _S5] = used_bits(index, w, _FULL)
    if whole < index.size:
        word = _ZERO
        for i in range(whole, index.size):
            word |= np.uint32(index[i] != _ZERO) << np.uint32(i - whole)
        out[whole // 32] = word


@compiled
def fill_words(used: Words, out: Words) -> None:
    """Set all bits of the words whose bit in `used` is set; zero the others."""
    for w in range(out.size):
        out[w] = np.uint32(-((used[w >> 5] >> np.uint32(w & 31)) & _ONE))


@compiled
def clean(out: Words, elements: int) -> None:
    """Clear the bits of a bitmap from `elements` on."""
    for w in range(elements // 32, out.size):
        out[w] = valid(out, w, elements)


@compiled
def _occupied(positions: Numbers, differing: Numbers, out: Numbers) -> None:
    """Count the occupied blocks of each size.

    A position begins a new block of 2**b elements if it differs from the previous position in bit b or above.
    differing[33], zero on entry, counts pairs of neighbours by the bit length of their XOR; the loop that
    computes the lengths vectorizes.
    """
    highest, lengths = (np.int64(1) << out.size) - 1, np.empty(_SEVERAL, np.uint64)
    for start in range(1, positions.size, _SEVERAL):
        later = positions[start : start + _SEVERAL]
        sooner = positions[start - 1 : start - 1 + later.size]
        for k in range(later.size):
            crossed = np.uint32(min(later[k] ^ sooner[k], highest))
            for shift in range(5):
                crossed |= crossed >> np.uint32(1 << shift)
            lengths[k] = ones(crossed)
        for k in range(later.size):
            differing[lengths[k]] += 1
    total = np.int64(min(positions.size, 1))
    for b in range(out.size - 1, -1, -1):
        total += differing[b + 1]
        out[b] = total


@compiled
def _occupied_up_to_16(index: Words, out: Numbers) -> None:
    """Count the occupied blocks of 1, 2, 4, 8 and 16 elements; the loop vectorizes."""
    ones_, twos, fours, eights, sixteens = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
    for w in range(index.size):
        word = np.uint32(index[w])
        ones_ += ones(word)
        word = np.uint32((word | (word >> _ONE)) & np.uint32(0x55555555))
        twos += ones(word)
        word = np.uint32((word | (word >> np.uint32(2))) & np.uint32(0x11111111))
        fours += ones(word)
        word = np.uint32((word | (word >> np.uint32(4))) & np.uint32(0x01010101))
        eights += ones(word)
        sixteens += ones(np.uint32((word | (word >> _8)) & np.uint32(0x00010001)))
    out[0], out[1], out[2], out[3], out[4] = ones_, twos, fours, eights, sixteens


@compiled
def occupied_in(index: Words, out: Numbers) -> None:
    """Count the occupied blocks of 2**b elements of a bitmap, for each b below BLOCK_SIZES."""
    _occupied_up_to_16(index, out[0:5])
    used = np.empty((index.size + 31) // 32, np.uint32)
    used_words(index, used)  # blocks of 32 elements
    _occupied_up_to_16(used, out[5:10])
    twice, counts = np.empty((used.size + 31) // 32, np.uint32), np.empty(5, np.int64)
    used_words(used, twice)
    _occupied_up_to_16(twice, counts)
    out[10:] = counts[: BLOCK_SIZES - 10]


@compiled
def _hash_of(word: int, seed: np.uint64) -> tuple[np.uint32, np.uint32]:
    """Return start and stride of a word's hashes."""
    value = mixed(np.uint64(word), seed)
    return np.uint32(value), np.uint32(np.uint32(value >> _S32) | _ONE)


@compiled
def _rotated(word: np.uint32, left: np.uint32) -> np.uint32:
    """Rotate a word left by `left` modulo 32 bits."""
    return np.uint32(np.uint32(word << (left & _31)) | np.uint32(word >> (np.uint32(-left) & _31)))


@compiled
def used_numbers(words: Words, out: Numbers) -> int:
    """Write the numbers of the non-zero words, ascending; return how many there are.

    `out` has room for `ROOM` numbers more than there are words.
    """
    count, whole = _NONE, words.size // 32 * 32
    for w in range(_NONE, np.uint64(whole), _S32):
        used = used_bits(words, w, _FULL)
        for byte in range(4):
            number = np.uint64(used & _BYTE)
            write_places(_SET_BITS, number, np.int64(w) + 8 * byte, out, count)
            count += np.uint64(ones(np.uint32(number)))
            used = np.uint32(used >> _8)
    for rest in range(whole, words.size):
        out[count] = rest
        count += np.uint64(words[rest] != _ZERO)
    return int(np.int64(count))


@compiled
def _rows_of(hashed: Words, rows: int, out: Words) -> None:
    """Write the row of each hash; this loop vectorizes."""
    for i in range(hashed.size):
        out[i] = np.uint32((np.uint64(hashed[i]) * np.uint64(rows)) >> _S32)


@compiled
def bloom_encode(hashes: int, rows: int, seed: np.uint64, first_word: int, index: Words, out: Words) -> None:
    """Encode the non-zero words of `index` into `out`, which must be zero."""
    numbers, used = np.empty(_SEVERAL + ROOM, np.int64), np.empty(_SEVERAL, np.uint32)
    room = np.empty((3, _SEVERAL), np.uint32)
    for start in range(0, index.size, _SEVERAL):
        words = index[start : start + _SEVERAL]
        count = used_numbers(words, numbers)
        hashed, stride, row = room[0, :count], room[1, :count], room[2, :count]
        for i in range(np.uint64(count)):
            used[i] = words[np.uint64(numbers[i])]
            hashed[i], stride[i] = _hash_of(first_word + start + numbers[i], seed)
        for j in range(hashes):
            table = out[j * rows : (j + 1) * rows]
            _rows_of(hashed, rows, row)
            for i in range(np.uint64(count)):
                table[np.uint64(row[i])] |= _rotated(used[i], hashed[i])
            for i in range(np.uint64(count)):
                hashed[i] += stride[i]


@compiled
def bloom_decode(
    hashes: int, rows: int, seed: np.uint64, first_word: int, words: Words, elements: int, out: Words
) -> None:
    """Look up one sub-table at a time, for many words; the loops around a look-up vectorize."""
    room = np.empty((3, _SEVERAL), np.uint32)
    for start in range(0, out.size, _SEVERAL):
        passed = out[start : start + _SEVERAL]
        hashed, stride, row = room[0, : passed.size], room[1, : passed.size], room[2, : passed.size]
        for w in range(passed.size):
            hashed[w], stride[w] = _hash_of(first_word + start + w, seed)
            passed[w] = _FULL
        for j in range(hashes):
            table = words[j * rows : (j + 1) * rows]
            _rows_of(hashed, rows, row)
            for w in range(np.uint64(row.size)):
                row[w] = table[np.uint64(row[w])]
            for w in range(passed.size):
                passed[w] &= _rotated(row[w], np.uint32(-hashed[w]))
                hashed[w] += stride[w]
    clean(out, elements)


@compiled
def _move(mask: np.uint32, gaps: np.uint32, bits: np.uint32) -> tuple[np.uint32, np.uint32, np.uint32]:
    """Compute one of five steps (`bits` = 1, 2, 4, 8, 16) that pack a mask's set bits downwards.

    Return the bits that move in this step, the mask after it, and the gaps left for later steps. A bit moves
    if the number of gaps below it has bit `bits` set (parallel suffix: Warren, Hacker's Delight, 7-4). There
    is no branch, so the compiler handles several words at once.
    """
    odd = np.uint32(gaps ^ (gaps << _ONE))
    odd ^= np.uint32(odd << np.uint32(2))
    odd ^= np.uint32(odd << np.uint32(4))
    odd ^= np.uint32(odd << np.uint32(8))
    odd ^= np.uint32(odd << np.uint32(16))
    moved = np.uint32(odd & mask)
    return moved, np.uint32((mask ^ moved) | (moved >> bits)), np.uint32(gaps & ~odd)


@compiled
def _down(word: np.uint32, moved: np.uint32, bits: np.uint32) -> np.uint32:
    taken = np.uint32(word & moved)
    return np.uint32((word ^ taken) | (taken >> bits))


@compiled
def _up(word: np.uint32, moved: np.uint32, bits: np.uint32) -> np.uint32:
    return np.uint32((word & ~moved) | ((word << bits) & moved))


@compiled
def _squeeze(words: Words, masks: Words, out: Words) -> None:
    """Pack the bits of each word that its mask selects, starting at bit 0."""
    for w in range(masks.size):
        mask = np.uint32(masks[w])
        word, gaps = np.uint32(words[w] & mask), np.uint32(~mask << _ONE)
        for step in range(5):
            moved, mask, gaps = _move(mask, gaps, np.uint32(1 << step))
            word = _down(word, moved, np.uint32(1 << step))
        out[w] = word


@compiled
def _spread(words: Words, masks: Words, out: Words) -> None:
    """Move the lowest bits of each word to the bits that its mask selects: the inverse of `_squeeze`."""
    for w in range(masks.size):
        mask = np.uint32(masks[w])
        moved_1, left, gaps = _move(mask, np.uint32(~mask << _ONE), np.uint32(1))
        moved_2, left, gaps = _move(left, gaps, np.uint32(2))
        moved_4, left, gaps = _move(left, gaps, np.uint32(4))
        moved_8, left, gaps = _move(left, gaps, np.uint32(8))
        moved_16, left, gaps = _move(left, gaps, np.uint32(16))
        word = _up(_up(np.uint32(words[w]), moved_16, np.uint32(16)), moved_8, np.uint32(8))
        word = _up(_up(_up(word, moved_4, np.uint32(4)), moved_2, np.uint32(2)), moved_1, np.uint32(1))
        out[w] = word & mask


@compiled
def gather_bits(index: Words, mask: Words, out: Words) -> None:
    """Pass over words whose mask is 0."""
    numbers, room = np.empty(_SEVERAL + ROOM, np.int64), np.empty((3, _SEVERAL), np.uint32)
    pending, filled, at = np.uint64(0), np.uint64(0), 0  # bits not yet written, and their number
    for start in range(0, mask.size, _SEVERAL):
        count = used_numbers(mask[start : start + _SEVERAL], numbers)
        words, masks, squeezed = room[0, :count], room[1, :count], room[2, :count]
        for i in range(np.uint64(count)):
            words[i] = index[np.uint64(start + numbers[i])]
            masks[i] = mask[np.uint64(start + numbers[i])]
        _squeeze(words, masks, squeezed)
        for i in range(np.uint64(count)):
            pending |= np.uint64(squeezed[i]) << filled
            filled += np.uint64(ones(masks[i]))
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
    """Pass over words whose mask is 0. Read the bits of the others without a branch, from two words each."""
    numbers, room = np.empty(_SEVERAL + ROOM, np.int64), np.empty((3, _SEVERAL), np.uint32)
    at, last = np.uint64(0), np.uint64(max(bits.size - 1, 0))
    for start in range(0, mask.size, _SEVERAL):
        own = out[start : start + _SEVERAL]
        count = used_numbers(mask[start : start + _SEVERAL], numbers)
        wanted, masks, spread = room[0, :count], room[1, :count], room[2, :count]
        for i in range(np.uint64(count)):
            masks[i] = mask[np.uint64(start + numbers[i])]
            lower = at >> _S5
            window = np.uint64(bits[lower]) | (np.uint64(bits[min(lower + np.uint64(1), last)]) << _S32)
            wanted[i] = np.uint32(window >> (at & _LOW5))
            at += np.uint64(ones(masks[i]))
        _spread(wanted, masks, spread)
        own[:] = _ZERO
        for i in range(np.uint64(count)):
            own[np.uint64(numbers[i])] = spread[i]
