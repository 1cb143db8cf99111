"""Loops over the elements of a tensor that a bitmap selects, compiled by Numba and cached on disk.

They need no positions: AVX-512 packs and spreads 16 floats at a time, so `PACKS_FLOATS` must be true. A slice
of a tensor begins at element `begin`, a multiple of 32; its numbers begin at number `first`. A
block of scales has 32 elements or more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.cpu_index_loops import (
    ROOM,
    Numbers,
    Words,
    compiled,
    leaf,
    ones,
    used_numbers,
)
from peelsum.codec.cpu_prefetch import prefetch, prefetch_to_read
from peelsum.codec.cpu_vectors import pack_floats, scale_numbers, spread_floats

_TOGETHER = 128  # words of a bitmap, whose numbers stay in the caches
_MOST = 32 * (_TOGETHER + 1)  # their numbers, and room for what is written or read at once
#: How far ahead floats are prefetched, and floats in a cache line.
_AHEAD, _LINE = np.uint64(2048), np.uint64(16)
_LOW, _S16, _ONE = np.uint32(0xFFFF), np.uint32(16), np.uint32(1)
_0, _5, _16, _32 = np.uint64(0), np.uint64(5), np.uint64(16), np.uint64(32)

_Integers = NDArray[np.int32]
_Floats = NDArray[np.float32]
#: The factor of each block of 2**bits elements.
_Factors = NDArray[np.float64]


@leaf
def _pack_word(values: _Floats, at: np.uint64, word: np.uint32, out: _Floats, count: np.uint64) -> np.uint64:
    """Write those of values[at : at + 32] that a word selects to out[count:]; return the end of them.

    16 floats after the end may be overwritten.
    """
    lower, upper = np.uint32(word & _LOW), np.uint32(word >> _S16)
    pack_floats(values, at, lower, out, count)
    count += np.uint64(ones(lower))
    pack_floats(values, at + _16, upper, out, count)
    return np.uint64(count + np.uint64(ones(upper)))


@compiled
def gather(
    values: _Floats, index: Words, begin: int, factors: _Factors, bits: int, out: _Integers, first: int
) -> None:
    """Do what `Kernels.gather` does, from number `first` on."""
    room, k = np.empty(_TOGETHER + ROOM, np.int64), np.uint64(first)
    floats, scaled = np.empty(_MOST, np.float32), np.empty(_MOST, np.float64)
    whole = values.size // 32
    for start in range(0, whole, _TOGETHER):
        words = index[start : min(start + _TOGETHER, whole)]
        count = _pack(values[32 * start :], words, room[: used_numbers(words, room)], floats)
        _scale(floats, count, words, begin + 32 * start, factors, bits, scaled)
        for i in range(count):
            out[k + i] = np.int32(np.rint(scaled[i]))
        k += count
    for i in range(32 * whole, values.size):
        if (index[whole] >> np.uint32(i % 32)) & _ONE:
            factor = factors[(begin + 32 * whole) >> bits]
            out[k] = np.int32(np.rint(np.float64(values[i]) * factor))
            k += np.uint64(1)


@leaf
def _pack(values: _Floats, words: Words, used: Numbers, out: _Floats) -> np.uint64:
    """Write the selected floats of the words `used`; return how many there are."""
    count = _0
    for number in used:
        at = np.uint64(32 * number)
        prefetch_to_read(values, at + _AHEAD)
        prefetch_to_read(values, at + _AHEAD + _LINE)
        count = _pack_word(values, at, np.uint32(words[np.uint64(number)]), out, count)
    return count


@leaf
def _scale(
    numbers: NDArray[Any],
    count: np.uint64,
    words: Words,
    begin: int,
    factors: _Factors,
    bits: int,
    out: _Factors,
) -> None:
    """Multiply the numbers of all words' elements, `count` in all, by their blocks' factors."""
    if factors.size == 1:
        for i in range(_0, count, _16):
            scale_numbers(numbers, np.uint64(i), factors[0], out)
        return
    at, size = _0, (1 << bits) // 32
    for first in range(0, words.size, size):
        factor, end = factors[(begin + 32 * first) >> bits], at
        for w in range(np.uint64(first), np.uint64(min(first + size, words.size))):
            end += np.uint64(ones(words[w]))
        for i in range(at, end, _16):
            scale_numbers(numbers, np.uint64(i), factor, out)
        at = end


@compiled
def scatter(
    quantized: _Integers,
    index: Words,
    begin: int,
    factors: _Factors,
    bits: int,
    divisor: float,
    out: _Floats,
    first: int,
    clear: bool,
) -> None:
    """Words without a selected element become 0 if `clear`. If not, all that is not selected must be 0."""
    room, integers = np.empty(_TOGETHER + ROOM, np.int64), np.empty(_MOST, np.int32)
    floats, scaled = np.empty(_MOST, np.float32), np.empty(_MOST, np.float64)
    whole, k = out.size // 32, np.uint64(first)
    for start in range(0, whole, _TOGETHER):
        words, count = index[start : min(start + _TOGETHER, whole)], _0
        for w in range(words.size):
            count += np.uint64(ones(words[w]))
        for i in range(count):
            integers[i] = quantized[k + i]
        _scale(integers, count, words, begin + 32 * start, factors, bits, scaled)
        _divide(scaled, count, divisor, floats)
        if clear:
            out[32 * start : 32 * (start + words.size)] = 0.0
        _spread(floats, words, room[: used_numbers(words, room)], out[32 * start :])
        k += count
    for i in range(32 * whole, out.size):
        if (index[whole] >> np.uint32(i % 32)) & _ONE:
            factor = factors[(begin + 32 * whole) >> bits]
            out[i] = np.float32(np.float64(quantized[k]) * factor / divisor)
            k += np.uint64(1)
        elif clear:
            out[i] = 0.0


@leaf
def _divide(scaled: _Factors, count: np.uint64, divisor: float, out: _Floats) -> None:
    if divisor == 1.0:
        for i in range(count):
            out[i] = np.float32(scaled[i])
    else:
        for i in range(count):
            out[i] = np.float32(scaled[i] / divisor)


@leaf
def _spread(floats: _Floats, words: Words, used: Numbers, out: _Floats) -> None:
    """Write all elements of the words `used`, from their selected floats."""
    count = _0
    for number in used:
        word, at = np.uint32(words[np.uint64(number)]), np.uint64(32 * number)
        lower = np.uint32(word & _LOW)
        prefetch(out, at + _AHEAD)
        prefetch(out, at + _AHEAD + _LINE)
        spread_floats(floats, count, lower, out, at)
        count += np.uint64(ones(lower))
        spread_floats(floats, count, np.uint32(word >> _S16), out, at + _16)
        count += np.uint64(ones(np.uint32(word >> _S16)))
