"""Loops over bitmaps and Bloom filters for `peelsum.codec.cpu`, compiled by Numba at their first call.

Public ones do what the kernel of the same name does. They allocate nothing and release the GIL. NumPy scalars
fix the widths that Numba would widen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from peelsum.codec.index import MIXES_PER_WORD
from peelsum.codec.layout import MIX_FIRST, MIX_SECOND, MIX_STEP

_BLOCK = 8192  # elements; a multiple of 32, and 32 KiB
_MAGNITUDE_MASK = np.uint32(0x7FFFFFFF)
_FULL = np.uint32(0xFFFFFFFF)
_ZERO, _ONE, _31 = np.uint32(0), np.uint32(1), np.uint32(31)
_STEP, _FIRST, _SECOND = np.uint64(MIX_STEP), np.uint64(MIX_FIRST), np.uint64(MIX_SECOND)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)

Words = NDArray[np.uint32]
Numbers = NDArray[np.int64]
_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F) -> _F:
    """`function` through Numba. Says to a type checker, as Numba does not, that the signature stays."""
    return cast(_F, njit(cache=True, nogil=True)(function))


@compiled
def mixed(counter: np.uint64, seed: np.uint64) -> np.uint64:
    """`peelsum.codec.layout.mix` of counter * MIX_STEP + seed, modulo 2**64."""
    value = counter * _STEP + seed
    value = (value ^ (value >> _S30)) * _FIRST
    value = (value ^ (value >> _S27)) * _SECOND
    return value ^ (value >> _S31)


@compiled
def magnitude(bits: Words) -> np.uint32:
    largest = np.uint32(0)
    for i in range(bits.size):
        largest = max(largest, np.uint32(bits[i] & _MAGNITUDE_MASK))
    return largest


@compiled
def index(bits: Words, out: Words) -> np.uint32:
    """Largest magnitude and bitmap, a cache's worth at a time: in one loop they would not vectorise."""
    largest = np.uint32(0)
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK]
        largest = max(largest, magnitude(block))
        pack(block, out[start // 32 :])
    return largest


@compiled
def pack(bits: Words, out: Words) -> None:
    """Bitmap of the floats that are not zero."""
    whole = bits.size // 32
    for w in range(whole):
        word = np.uint32(0)
        for j in range(32):
            word |= np.uint32(min(np.uint32(bits[32 * w + j] & _MAGNITUDE_MASK), _ONE) << np.uint32(j))
        out[w] = word
    if 32 * whole < bits.size:
        word = np.uint32(0)
        for j in range(bits.size - 32 * whole):
            word |= np.uint32(min(np.uint32(bits[32 * whole + j] & _MAGNITUDE_MASK), _ONE) << np.uint32(j))
        out[whole] = word


@compiled
def ones(word: np.uint32) -> np.uint32:
    """Set bits of a uint32; LLVM knows this idiom and emits the processor's instruction."""
    word = np.uint32(word - ((word >> _ONE) & np.uint32(0x55555555)))
    word = np.uint32((word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333)))
    word = np.uint32((word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F))
    return np.uint32(np.uint32(word * np.uint32(0x01010101)) >> np.uint32(24))


@compiled
def lowest(word: np.uint32) -> np.uint32:
    """Number of the lowest set bit of a word that is not 0."""
    return ones(np.uint32(np.uint32(word ^ np.uint32(word & np.uint32(word - _ONE))) - _ONE))


@compiled
def valid(index: Words, w: int, elements: int) -> np.uint32:
    """Word w of a bitmap without bits past `elements`."""
    if 32 * w + 32 <= elements:
        return np.uint32(index[w])
    return np.uint32(index[w] & np.uint32((1 << max(elements - 32 * w, 0)) - 1))


@compiled
def count(index: Words, elements: int) -> int:
    count = 0
    for w in range(index.size):
        count += int(ones(valid(index, w, elements)))
    return count


@compiled
def positions(index: Words, elements: int, first: int, out: Numbers) -> None:
    k = 0
    for w in range(index.size):
        word = valid(index, w, elements)
        while word != _ZERO:
            out[k] = first + 32 * w + np.int64(lowest(word))
            word = np.uint32(word & np.uint32(word - _ONE))
            k += 1


@compiled
def _squeezed(word: np.uint32) -> np.uint32:
    """Bits 0, 2, 4, ... of a word, side by side."""
    word &= np.uint32(0x55555555)
    word = np.uint32((word | (word >> _ONE)) & np.uint32(0x33333333))
    word = np.uint32((word | (word >> np.uint32(2))) & np.uint32(0x0F0F0F0F))
    word = np.uint32((word | (word >> np.uint32(4))) & np.uint32(0x00FF00FF))
    return np.uint32((word | (word >> np.uint32(8))) & np.uint32(0x0000FFFF))


@compiled
def _doubled(word: np.uint32) -> np.uint32:
    """Bits 0 to 15 of a word, each twice."""
    word &= np.uint32(0x0000FFFF)
    word = np.uint32((word | (word << np.uint32(8))) & np.uint32(0x00FF00FF))
    word = np.uint32((word | (word << np.uint32(4))) & np.uint32(0x0F0F0F0F))
    word = np.uint32((word | (word << np.uint32(2))) & np.uint32(0x33333333))
    word = np.uint32((word | (word << _ONE)) & np.uint32(0x55555555))
    return np.uint32(word | np.uint32(word << _ONE))


@compiled
def block_encode(index: Words, elements: int, block: int, out: Words) -> None:
    out[:] = _ZERO
    for w in range(index.size):
        word, width = valid(index, w, elements), 1
        if word == _ZERO:
            continue
        while width < min(block, 32):
            word, width = _squeezed(np.uint32(word | (word >> _ONE))), 2 * width
        number = 32 * w // block
        out[number // 32] |= word << np.uint32(number % 32)


@compiled
def block_decode(blocks: Words, elements: int, block: int, out: Words) -> None:
    width = min(block, 32)
    mask = np.uint32((np.int64(1) << (32 // width)) - 1)
    for w in range(out.size):
        number = 32 * w // block
        word, wide = np.uint32((blocks[number // 32] >> np.uint32(number % 32)) & mask), 1
        while wide < width:
            word, wide = _doubled(word), 2 * wide
        out[w] = word
        out[w] = valid(out, w, elements)


@compiled
def _bloom_place(word: int, j: int, rows: int, seed: np.uint64) -> tuple[np.int64, np.uint32]:
    """Row in the filter and rotation of word number `word` in sub-table j."""
    value = mixed(np.uint64(MIXES_PER_WORD * word + j // 2), seed)
    half = np.uint32(value >> _S32) if j & 1 else np.uint32(value)
    return j * rows + np.int64((np.uint64(half) * np.uint64(rows)) >> _S32), np.uint32(half & _31)


@compiled
def _rotated(word: np.uint32, left: np.uint32) -> np.uint32:
    return np.uint32(np.uint32(word << left) | np.uint32(word >> np.uint32((np.uint32(32) - left) & _31)))


@compiled
def bloom_encode(hashes: int, rows: int, seed: np.uint64, first_word: int, index: Words, out: Words) -> None:
    out[:] = _ZERO
    for w in range(index.size):
        word = index[w]
        if word == _ZERO:
            continue
        for j in range(hashes):
            row, rotation = _bloom_place(first_word + w, j, rows, seed)
            out[row] |= _rotated(word, rotation)


@compiled
def bloom_decode(
    hashes: int, rows: int, seed: np.uint64, first_word: int, words: Words, elements: int, out: Words
) -> None:
    for w in range(out.size):
        passed = _FULL
        for j in range(hashes):
            row, rotation = _bloom_place(first_word + w, j, rows, seed)
            passed &= _rotated(words[row], np.uint32((np.uint32(32) - rotation) & _31))
            if passed == _ZERO:
                break
        out[w] = passed
        out[w] = valid(out, w, elements)


@compiled
def gather_bits(index: Words, mask: Words, out: Words) -> None:
    word, filled, at = np.uint32(0), np.uint32(0), 0
    for w in range(mask.size):
        left = mask[w]
        while left != _ZERO:
            word |= np.uint32((index[w] >> lowest(left)) & _ONE) << filled
            left = np.uint32(left & np.uint32(left - _ONE))
            filled = np.uint32(filled + _ONE)
            if filled == np.uint32(32):
                out[at] = word
                word, filled, at = np.uint32(0), np.uint32(0), at + 1
    if filled:
        out[at] = word


@compiled
def scatter_bits(bits: Words, mask: Words, out: Words) -> None:
    t = 0
    for w in range(mask.size):
        left, word = mask[w], np.uint32(0)
        while left != _ZERO:
            word |= np.uint32((bits[t >> 5] >> np.uint32(t & 31)) & _ONE) << lowest(left)
            left = np.uint32(left & np.uint32(left - _ONE))
            t += 1
        out[w] = word
