"""Loops for `benchmarks.rivals.lhc`, compiled by Numba: one pass over all elements each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.arrays import Numbers, Words
from peelsum.codec.cpu.vectors import used_bits
from peelsum.codec.cpu.words import compiled, lowest, mixed

Bytes = NDArray[np.uint8]
_MAGNITUDE_MASK = np.uint32(0x7FFFFFFF)
_ZERO, _ONE, _15 = np.uint32(0), np.uint32(1), np.uint32(15)
_ONES = np.uint32(0x11111111)
_NONE, _HALF, _LOW = np.uint8(0), np.uint8(4), np.uint8(15)
_S1, _S2 = np.uint32(1), np.uint32(2)
_S31, _S32 = np.uint64(31), np.uint64(32)

_Floats = NDArray[np.float32]


@compiled
def index(bits: Words, out: Words) -> None:
    """Write four bits for each element: 1 for a non-zero, else 0, so that workers' indices can be added.

    bits: the values' bit patterns. If 8 does not divide their number, the last word of `out` must be 0.
    """
    whole = bits.size // 8
    for w in range(whole):
        word = _ZERO
        for e in range(8):
            used = np.uint32((bits[8 * w + e] & _MAGNITUDE_MASK) != _ZERO)
            word |= used << np.uint32(4 * e)
        out[w] = word
    for i in range(8 * whole, bits.size):
        used = np.uint32((bits[i] & _MAGNITUDE_MASK) != _ZERO)
        out[whole] |= used << np.uint32(4 * (i & 7))


@compiled
def bitmap(bits: Words, out: Words) -> None:
    """Write one bit for each element instead of four."""
    whole = bits.size // 32
    for w in range(np.uint64(whole)):
        out[w] = used_bits(bits, np.uint64(32) * w, _MAGNITUDE_MASK)
    for i in range(32 * whole, bits.size):
        out[whole] |= np.uint32((bits[i] & _MAGNITUDE_MASK) != _ZERO) << np.uint32(i & 31)


@compiled
def _row_of(block: int, j: int, rows: int, seed: np.uint64) -> Any:
    """Return the block's j-th row, and whether its sign there is negative."""
    value = mixed(np.uint64(3 * block + j), seed)
    row = ((value >> _S32) * np.uint64(rows)) >> _S32
    return int(row), ((value >> _S31) & np.uint64(1)) != np.uint64(0)


@compiled
def place(lanes: int, rows: int, seed: np.uint64, positions: Numbers, places: Numbers) -> None:
    for k in range(positions.size):
        block, lane = positions[k] // lanes, positions[k] % lanes
        for j in range(3):
            row, _ = _row_of(block, j, rows, seed)
            places[k, j] = row * lanes + lane


@compiled
def add(
    lanes: int,
    rows: int,
    seed: np.uint64,
    first: int,
    values: _Floats,
    factor: float,
    index: Words,
    index_bits: int,
    sketch: Words,
    counts: Bytes,
) -> None:
    """Add values to the sketch, and candidates to the counts; element `first` begins a block."""
    numbers, used = np.empty(lanes, np.uint32), np.empty(lanes, np.uint8)
    for start in range(0, values.size, lanes):
        block = values[start : start + lanes]
        _quantize(block, factor, numbers)
        part = index[start * index_bits // 32 : (start + lanes) * index_bits // 32].view(np.uint8)
        if index_bits == 1:
            _flags_of_bits(part, used)
        else:
            _flags(part, used)
        for j in range(3):
            row, negative = _row_of((first + start) // lanes, j, rows, seed)
            _add_row(numbers[: block.size], negative, sketch[row * lanes :])
            _count_row(used[: block.size], counts[row * lanes :])


@compiled
def _quantize(values: _Floats, factor: float, out: Words) -> None:
    for i in range(values.size):
        out[i] = np.uint32(np.int32(np.rint(np.float64(values[i]) * factor)))


@compiled
def _flags(index: Bytes, out: Bytes) -> None:
    """Write a byte for each four bits of an index: whether they are not 0."""
    for i in range(index.size):
        out[2 * i] = (index[i] & _LOW) != _NONE
        out[2 * i + 1] = (index[i] >> _HALF) != _NONE


@compiled
def _flags_of_bits(index: Bytes, out: Bytes) -> None:
    """Write a byte for each bit of an index."""
    for i in range(index.size):
        for e in range(8):
            out[8 * i + e] = (index[i] >> np.uint8(e)) & np.uint8(1)


@compiled
def _add_row(numbers: Words, negative: bool, row: Words) -> None:
    if negative:
        for i in range(numbers.size):
            row[i] -= numbers[i]
    else:
        for i in range(numbers.size):
            row[i] += numbers[i]


@compiled
def _count_row(used: Bytes, row: Bytes) -> None:
    for i in range(used.size):
        row[i] += used[i]


@compiled
def peel(
    lanes: int,
    rows: int,
    seed: np.uint64,
    low: int,
    high: int,
    sketch: Words,
    counts: Bytes,
    index: Words,
    index_bits: int,
    factor: float,
    out: _Floats,
) -> int:
    """Peel lanes `low` to `high` of all blocks until a round recovers nothing.

    Both begin a word of the index. Clear the bits of recovered elements in the index. Return the number of
    left-over candidates.
    """
    before, unpeeled = -1, -2
    while unpeeled != before:
        before, unpeeled = unpeeled, 0
        for start in range(0, 32 // index_bits * index.size, lanes):
            words = index[(start + low) * index_bits // 32 : (start + high) * index_bits // 32]
            unpeeled += _peel_block(
                lanes, rows, seed, start, low, words, index_bits, sketch, counts, factor, out
            )
    return unpeeled


@compiled
def _peel_block(
    lanes: int,
    rows: int,
    seed: np.uint64,
    start: int,
    low: int,
    words: Words,
    index_bits: int,
    sketch: Words,
    counts: Bytes,
    factor: float,
    out: _Floats,
) -> int:
    """Run one round over a block's lanes; return the number of candidates that remain."""
    unpeeled = 0
    four = index_bits == 4
    shift, mask = (_S2, _15) if four else (_ZERO, _ONE)
    elements = 32 // index_bits
    row_0, negative_0 = _row_of(start // lanes, 0, rows, seed)
    row_1, negative_1 = _row_of(start // lanes, 1, rows, seed)
    row_2, negative_2 = _row_of(start // lanes, 2, rows, seed)
    for w in range(words.size):
        word = words[w]
        if word == _ZERO:
            continue
        used = word
        if four:
            pairs = np.uint32(word | (word >> _S1))
            used = np.uint32((pairs | (pairs >> _S2)) & _ONES)
        while used != _ZERO:
            bit = lowest(used)
            used = np.uint32(used & np.uint32(used - _ONE))
            lane = low + elements * w + int(bit >> shift)
            # Unsigned indices save Numba the check for negative ones.
            cell_0 = np.uint64(row_0 * lanes + lane)
            cell_1 = np.uint64(row_1 * lanes + lane)
            cell_2 = np.uint64(row_2 * lanes + lane)
            if counts[cell_0] == 1:
                value = np.uint32(-sketch[cell_0]) if negative_0 else sketch[cell_0]
            elif counts[cell_1] == 1:
                value = np.uint32(-sketch[cell_1]) if negative_1 else sketch[cell_1]
            elif counts[cell_2] == 1:
                value = np.uint32(-sketch[cell_2]) if negative_2 else sketch[cell_2]
            else:
                unpeeled += 1
                continue
            out[np.uint64(start + lane)] = np.float32(np.float64(np.int32(value)) * factor)
            sketch[cell_0] -= np.uint32(-value) if negative_0 else value
            sketch[cell_1] -= np.uint32(-value) if negative_1 else value
            sketch[cell_2] -= np.uint32(-value) if negative_2 else value
            counts[cell_0] -= np.uint8(1)
            counts[cell_1] -= np.uint8(1)
            counts[cell_2] -= np.uint8(1)
            words[w] = np.uint32(words[w] & np.uint32(~(mask << bit)))
    return unpeeled
