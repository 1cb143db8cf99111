"""Loops over numbers and sketches for `peelsum.codec.cpu`, compiled by Numba and cached on disk.

A public loop does what the kernel of the same name does, but takes the scale as a factor. Loops with `begin`
and `end` work on that slice. They release the GIL. NumPy scalars keep widths that Numba would widen.

Inner loops index by np.uint64: a signed index might count from the end, and the test for that keeps a loop
from being vectorized. They take no slices of 32 elements: Numba counts the references to each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.cpu_index_loops import (
    BLOCK,
    Numbers,
    Words,
    compiled,
    mixed,
)
from peelsum.codec.layout import FIRST_GROUP, SUB_TABLES

_FEW = 256  # numbers that stay in the first-level cache
_ZERO, _ONE, _31, _32 = np.uint32(0), np.uint32(1), np.uint32(31), np.uint32(32)
_S31, _S32 = np.uint64(31), np.uint64(32)
_LOW31 = np.uint64(0x7FFFFFFF)
_FIRST_GROUP = np.uint64(FIRST_GROUP)

_Integers = NDArray[np.int32]
_Floats = NDArray[np.float32]
#: The factor of each block of 2**bits elements.
_Factors = NDArray[np.float64]
#: A block's place in one sub-table: the first cell of its row, its rotation, and its sign (1 or 2**32 - 1).
_Row = tuple[int, int, np.uint32]


@compiled
def quantize(values: _Floats, factors: _Factors, bits: int, out: _Integers, begin: int, end: int) -> None:
    size = min(1 << bits, BLOCK)
    for first in range(begin, end, size):
        last, factor = min(first + size, end), factors[first >> bits]
        for i in range(np.uint64(first), np.uint64(last)):
            out[i] = np.int32(np.rint(np.float64(values[i]) * factor))


@compiled
def quantize_at(
    values: _Floats,
    positions: Numbers,
    factors: _Factors,
    bits: int,
    out: _Integers,
    begin: int,
    end: int,
) -> None:
    """Round in a separate loop, which vectorizes."""
    scaled, shift = np.empty(_FEW, np.float64), np.uint64(bits)
    for start in range(begin, end, _FEW):
        first, count = np.uint64(start), np.uint64(min(start + _FEW, end) - start)
        for k in range(count):
            i = np.uint64(positions[first + k])
            scaled[k] = np.float64(values[i]) * factors[i >> shift]
        for k in range(count):
            out[first + k] = np.int32(np.rint(scaled[k]))


@compiled
def dequantize(
    quantized: _Integers,
    factors: _Factors,
    bits: int,
    divisor: float,
    out: _Floats,
    begin: int,
    end: int,
) -> None:
    size = min(1 << bits, BLOCK)
    for first in range(begin, end, size):
        last, factor = min(first + size, end), factors[first >> bits]
        for i in range(np.uint64(first), np.uint64(last)):
            out[i] = np.float32(np.float64(quantized[i]) * factor / divisor)


@compiled
def dequantize_at(
    quantized: _Integers,
    positions: Numbers,
    factors: _Factors,
    bits: int,
    divisor: float,
    out: _Floats,
    begin: int,
    end: int,
) -> None:
    """Divide in a loop of its own, which vectorizes."""
    scaled, floats = np.empty(_FEW, np.float64), np.empty(_FEW, np.float32)
    for start in range(begin, end, _FEW):
        stop = min(start + _FEW, end)
        where, numbers = positions[start:stop], quantized[start:stop]
        for k in range(where.size):
            factor = factors[np.uint64(where[k]) >> np.uint64(bits)]
            scaled[k] = np.float64(numbers[k]) * factor
        for k in range(where.size):
            floats[k] = np.float32(scaled[k] / divisor)
        for k in range(where.size):
            out[np.uint64(where[k])] = floats[k]


@compiled
def segment_of(block: int, dealt_to: int, seed: np.uint64) -> int:
    """Return the segment to which a block is dealt."""
    segments = np.uint64(dealt_to)
    group = np.uint64(block) // segments
    turn = ((mixed(_FIRST_GROUP + group, seed) & _LOW31) * segments) >> _S31
    segment = int(np.int64(np.uint64(block) - group * segments + turn))
    return segment - dealt_to if segment >= dealt_to else segment


@compiled
def _row_of(first: int, block: int, sub_table: int, lanes: int, rows: int, seed: np.uint64) -> _Row:
    value = mixed(np.uint64(SUB_TABLES * block + sub_table), seed)
    row = ((value >> _S32) * np.uint64(rows)) >> _S32
    rotation = ((value & _LOW31) * np.uint64(lanes)) >> _S31
    sign = np.uint32(0xFFFFFFFF) if (value >> _S31) & np.uint64(1) else _ONE
    return first + (sub_table * rows + int(row)) * lanes, int(rotation), sign


@compiled
def rows_of(block: int, lanes: int, rows: int, dealt_to: int, seed: np.uint64) -> tuple[_Row, _Row, _Row]:
    """Return the block's place in each sub-table.

    Callers reuse it for all elements of a block, because mixing costs more than adding.
    """
    first = 0 if dealt_to == 1 else segment_of(block, dealt_to, seed) * (SUB_TABLES * rows * lanes)
    return (
        _row_of(first, block, 0, lanes, rows, seed),
        _row_of(first, block, 1, lanes, rows, seed),
        _row_of(first, block, 2, lanes, rows, seed),
    )


@compiled
def cell_of(row: _Row, lane: int, lanes: int) -> int:
    """Return the cell of a block's lane in its row."""
    rotated = lane + row[1]
    return row[0] + (rotated - lanes if rotated >= lanes else rotated)


@compiled
def sketch_encode(
    lanes: int, rows: int, dealt_to: int, seed: np.uint64, positions: Numbers, values: Words, out: Words
) -> None:
    """Encode into `out`, which must be zero."""
    start, placed = -lanes, rows_of(0, lanes, rows, dealt_to, seed)
    for k in range(np.uint64(positions.size)):
        lane = positions[k] - start
        if lane >= lanes:
            block = (start + lane) // lanes
            lane += start - block * lanes
            start, placed = block * lanes, rows_of(block, lanes, rows, dealt_to, seed)
        for j in range(SUB_TABLES):
            out[np.uint64(cell_of(placed[j], lane, lanes))] += np.uint32(placed[j][2] * values[k])
