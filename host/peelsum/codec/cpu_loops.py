"""Loops over numbers and sketches for `peelsum.codec.cpu`, compiled by Numba and cached on disk.

A public loop does what the kernel of the same name does, but takes the scale as a factor. Loops with `begin`
and `end` work on that slice. They release the GIL. NumPy scalars keep widths that Numba would widen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.cpu_index_loops import (
    BLOCK,
    Numbers,
    Words,
    compiled,
    count,
    lowest,
    magnitude,
    mixed,
    pack,
)
from peelsum.codec.cpu_prefetch import prefetch
from peelsum.codec.layout import SUB_TABLES

#: If more than one element in 16 is non-zero, prefetching every cache line of the next block's rows pays off.
_MANY = 16
_LINE = 16  # words of a cache line
_ZERO, _ONE = np.uint32(0), np.uint32(1)
_S31, _S32 = np.uint64(31), np.uint64(32)
_LOW31 = np.uint64(0x7FFFFFFF)

_Integers = NDArray[np.int32]
_Floats = NDArray[np.float32]
#: A block's place in one sub-table: the first cell of its row, its rotation, and its sign (1 or 2**32 - 1).
_Row = tuple[int, int, np.uint32]


@compiled
def quantize(
    values: _Floats, factor: float, low_bits: int, out: _Integers, begin: int, end: int
) -> np.uint32:
    largest = _ZERO
    for start in range(begin, end, BLOCK):
        stop = min(start + BLOCK, end)
        block = values[start:stop]
        largest = max(largest, magnitude(block.view(np.uint32)))
        if low_bits:
            _split(block, factor, low_bits, out[0, start:stop], out[1, start:stop])
        else:
            _round(block, factor, out[0, start:stop])
    return largest


@compiled
def _round(values: _Floats, factor: float, out: _Integers) -> None:
    for i in range(values.size):
        out[i] = np.int32(np.rint(np.float64(values[i]) * factor))


@compiled
def _split(values: _Floats, factor: float, low_bits: int, upper: _Integers, lower: _Integers) -> None:
    for i in range(values.size):
        number = np.int64(np.rint(np.float64(values[i]) * factor))
        upper[i] = np.int32(number >> low_bits)
        lower[i] = np.int32(np.uint32(number & ((1 << low_bits) - 1)))


@compiled
def quantize_at(
    values: _Floats,
    positions: Numbers,
    factor: float,
    low_bits: int,
    out: _Integers,
    begin: int,
    end: int,
) -> None:
    gathered = np.empty(BLOCK, np.float32)
    for start in range(begin, end, BLOCK):
        where = positions[start : min(start + BLOCK, end)]
        for k in range(where.size):
            gathered[k] = values[where[k]]
        quantize(gathered, factor, low_bits, out[:, start:], 0, where.size)


@compiled
def _floats(
    quantized: _Integers, factor: float, low_bits: int, divisor: float, out: _Floats, begin: int
) -> None:
    """Dequantize the numbers from `begin` on into out[n]."""
    upper, lower = quantized[0, begin:], quantized[-1, begin:]
    if low_bits:
        for i in range(out.size):
            number = (np.int64(upper[i]) << low_bits) + np.int64(np.uint32(lower[i]))
            out[i] = np.float32(np.float64(number) * factor / divisor)
    else:
        for i in range(out.size):
            out[i] = np.float32(np.float64(upper[i]) * factor / divisor)


@compiled
def dequantize(
    quantized: _Integers, factor: float, low_bits: int, divisor: float, out: _Floats, begin: int, end: int
) -> None:
    _floats(quantized, factor, low_bits, divisor, out[begin:end], begin)


@compiled
def dequantize_at(
    quantized: _Integers,
    positions: Numbers,
    factor: float,
    low_bits: int,
    divisor: float,
    out: _Floats,
    begin: int,
    end: int,
) -> None:
    floats = np.empty(BLOCK, np.float32)
    for start in range(begin, end, BLOCK):
        where = positions[start : min(start + BLOCK, end)]
        _floats(quantized, factor, low_bits, divisor, floats[: where.size], start)
        for k in range(where.size):
            out[where[k]] = floats[k]


@compiled
def _row_of(block: int, sub_table: int, lanes: int, rows: int, seed: np.uint64) -> _Row:
    value = mixed(np.uint64(SUB_TABLES * block + sub_table), seed)
    row = ((value >> _S32) * np.uint64(rows)) >> _S32
    rotation = ((value & _LOW31) * np.uint64(lanes)) >> _S31
    sign = np.uint32(0xFFFFFFFF) if (value >> _S31) & np.uint64(1) else _ONE
    return (sub_table * rows + int(row)) * lanes, int(rotation), sign


@compiled
def rows_of(block: int, lanes: int, rows: int, seed: np.uint64) -> tuple[_Row, _Row, _Row]:
    """Return the block's place in each sub-table.

    Callers reuse it for all elements of a block, because mixing costs more than adding.
    """
    return (
        _row_of(block, 0, lanes, rows, seed),
        _row_of(block, 1, lanes, rows, seed),
        _row_of(block, 2, lanes, rows, seed),
    )


@compiled
def cell_of(row: _Row, lane: int, lanes: int) -> int:
    """Return the cell of a block's lane in its row."""
    rotated = lane + row[1]
    return row[0] + (rotated - lanes if rotated >= lanes else rotated)


@compiled
def sketch_encode(
    lanes: int, rows: int, seed: np.uint64, positions: Numbers, values: Words, out: Words
) -> None:
    """Encode into `out`, which must be zero."""
    start, placed = -lanes, rows_of(0, lanes, rows, seed)
    for k in range(positions.size):
        if positions[k] - start >= lanes:
            block = positions[k] // lanes
            start, placed = block * lanes, rows_of(block, lanes, rows, seed)
        for j in range(SUB_TABLES):
            cell = cell_of(placed[j], positions[k] - start, lanes)
            out[cell] = np.uint32(out[cell] + np.uint32(placed[j][2] * values[k]))


@compiled
def index_sketch(
    lanes: int,
    rows: int,
    seed: np.uint64,
    first: int,
    values: _Floats,
    factor: float,
    low_bits: int,
    index: Words,
    sketch: Words,
) -> np.uint32:
    """Write the index and add the sketch to sketch[limbs, cells]; return the magnitude."""
    largest, flags = _ZERO, np.empty(BLOCK, np.uint8)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        words = index[start // 32 : start // 32 + (block.size + 31) // 32]
        largest = max(largest, pack(block.view(np.uint32), flags, words))
        _add(lanes, rows, seed, first + start, block, words, factor, low_bits, sketch)
    return largest


@compiled
def _fetch(placed: tuple[_Row, _Row, _Row], lanes: int, sketch: Words) -> None:
    """Prefetch a block's rows."""
    for row, _, _ in placed:
        for cell in range(row, row + lanes, _LINE):
            prefetch(sketch, np.uint64(cell))


@compiled
def _add(
    lanes: int,
    rows: int,
    seed: np.uint64,
    first: int,
    values: _Floats,
    index: Words,
    factor: float,
    low_bits: int,
    sketch: Words,
) -> None:
    """Add the quantized non-zeros of values[n], elements from `first` on, to sketch[limbs, cells]."""
    start, placed = -lanes, rows_of(0, lanes, rows, seed)
    low = (np.int64(1) << low_bits) - 1
    many = count(index, values.size) * _MANY > values.size
    for w in range(index.size):
        word = index[w]
        while word != _ZERO:
            i = 32 * w + int(lowest(word))
            word = np.uint32(word & np.uint32(word - _ONE))
            number = np.int64(np.rint(np.float64(values[i]) * factor))
            if first + i - start >= lanes:
                block = (first + i) // lanes
                start, placed = block * lanes, rows_of(block, lanes, rows, seed)
                if many:
                    _fetch(rows_of(block + 1, lanes, rows, seed), lanes, sketch[0])
            for j in range(SUB_TABLES):
                cell = cell_of(placed[j], first + i - start, lanes)
                sketch[0, cell] += np.uint32(placed[j][2] * np.uint32(number >> low_bits))
                if low_bits:
                    sketch[1, cell] += np.uint32(placed[j][2] * np.uint32(number & low))
