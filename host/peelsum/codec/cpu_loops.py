"""The loops of `peelsum.codec.cpu`, compiled by Numba at their first call and cached on disk.

Public ones do what the kernel of the same name does, with the scale as a factor. They allocate nothing and
release the GIL. NumPy scalars fix the widths that Numba would widen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from peelsum.codec.layout import MIX_FIRST, MIX_SECOND, MIX_STEP, SUB_TABLES

VALUE, LOAD = 0, 1  # columns of `cells`
_BLOCK = 8192  # elements; a multiple of 32, and 32 KiB
_MAGNITUDE_MASK = np.uint32(0x7FFFFFFF)
_ONE = np.uint32(1)
_STEP, _FIRST, _SECOND = np.uint64(MIX_STEP), np.uint64(MIX_FIRST), np.uint64(MIX_SECOND)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW31 = np.uint64(0x7FFFFFFF)

_Words = NDArray[np.uint32]
_Integers = NDArray[np.int32]
_Floats = NDArray[np.float32]
_Numbers = NDArray[np.int64]
_Places = NDArray[np.int32] | NDArray[np.int64]
_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F) -> _F:
    """`function` through Numba. Says to a type checker, as Numba does not, that the signature stays."""
    return cast(_F, njit(cache=True, nogil=True)(function))


@compiled
def magnitude(bits: _Words) -> np.uint32:
    largest = np.uint32(0)
    for i in range(bits.size):
        largest = max(largest, np.uint32(bits[i] & _MAGNITUDE_MASK))
    return largest


@compiled
def index(bits: _Words, out: _Words) -> np.uint32:
    """Largest magnitude and bitmap, a cache's worth at a time: in one loop they would not vectorise."""
    largest = np.uint32(0)
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK]
        largest = max(largest, magnitude(block))
        _pack(block, out[start // 32 :])
    return largest


@compiled
def _pack(bits: _Words, out: _Words) -> None:
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
def _ones(word: np.uint32) -> np.uint32:
    """Set bits of a uint32; LLVM knows this idiom and emits the processor's instruction."""
    word = np.uint32(word - ((word >> _ONE) & np.uint32(0x55555555)))
    word = np.uint32((word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333)))
    word = np.uint32((word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F))
    return np.uint32(np.uint32(word * np.uint32(0x01010101)) >> np.uint32(24))


@compiled
def _valid(index: _Words, w: int, elements: int) -> np.uint32:
    """Word w of a bitmap without bits past `elements`."""
    if 32 * w + 32 <= elements:
        return np.uint32(index[w])
    return np.uint32(index[w] & np.uint32((1 << max(elements - 32 * w, 0)) - 1))


@compiled
def count(index: _Words, elements: int) -> int:
    count = 0
    for w in range(index.size):
        count += int(_ones(_valid(index, w, elements)))
    return count


@compiled
def positions(index: _Words, elements: int, out: _Numbers) -> None:
    k = 0
    for w in range(index.size):
        word = _valid(index, w, elements)
        while word != 0:
            rest = np.uint32(word & np.uint32(word - _ONE))
            out[k] = 32 * w + np.int64(_ones(np.uint32(np.uint32(word ^ rest) - _ONE)))
            word = rest
            k += 1


@compiled
def quantize(values: _Floats, factor: float, out: _Integers) -> None:
    for i in range(values.size):
        out[i] = np.int32(np.rint(np.float64(values[i]) * factor))


@compiled
def quantize_at(values: _Floats, positions: _Numbers, factor: float, out: _Integers) -> None:
    for k in range(positions.size):
        out[k] = np.int32(np.rint(np.float64(values[positions[k]]) * factor))


@compiled
def dequantize(quantized: _Integers, factor: float, divisor: float, out: _Floats) -> None:
    for i in range(quantized.size):
        out[i] = np.float32(np.float64(quantized[i]) * factor / divisor)


@compiled
def dequantize_at(
    quantized: _Integers, positions: _Numbers, factor: float, divisor: float, out: _Floats
) -> None:
    for k in range(positions.size):
        out[positions[k]] = np.float32(np.float64(quantized[k]) * factor / divisor)


@compiled
def _place(
    block: int, lane: int, sub_table: int, lanes: int, rows: int, seed: np.uint64
) -> tuple[np.int64, np.uint32]:
    """Cell and sign (1 or 2**32 - 1) of an element in one sub-table."""
    value = np.uint64(SUB_TABLES * block + sub_table) * _STEP + seed
    value = (value ^ (value >> _S30)) * _FIRST
    value = (value ^ (value >> _S27)) * _SECOND
    value = value ^ (value >> _S31)
    row = ((value >> _S32) * np.uint64(rows)) >> _S32
    rotation = ((value & _LOW31) * np.uint64(lanes)) >> _S31
    rotated = lane + np.int64(rotation)
    if rotated >= lanes:
        rotated -= lanes
    sign = np.uint32(0xFFFFFFFF) if (value >> _S31) & np.uint64(1) else _ONE
    return (sub_table * rows + np.int64(row)) * lanes + rotated, sign


@compiled
def sketch_encode(
    lanes: int, rows: int, seed: np.uint64, positions: _Numbers, values: _Words, out: _Words
) -> None:
    out[:] = 0
    for k in range(positions.size):
        block = positions[k] // lanes
        lane = positions[k] - block * lanes
        for j in range(SUB_TABLES):
            cell, sign = _place(block, lane, j, lanes, rows, seed)
            out[cell] = np.uint32(out[cell] + np.uint32(sign * values[k]))


@compiled
def load(
    lanes: int,
    rows: int,
    seed: np.uint64,
    positions: _Numbers,
    sketch: _Words,
    places: _Places,
    cells: _Words,
) -> None:
    """Lay cells[n, 2] out for peeling, value beside number of candidates, and note each candidate's places.

    places[k, j] is twice the cell, plus 1 where the sign is negative.
    """
    for c in range(sketch.size):
        cells[c, VALUE] = sketch[c]
        cells[c, LOAD] = 0
    for k in range(positions.size):
        block = positions[k] // lanes
        lane = positions[k] - block * lanes
        for j in range(SUB_TABLES):
            cell, sign = _place(block, lane, j, lanes, rows, seed)
            places[k, j] = 2 * cell + (sign != _ONE)
            cells[cell, LOAD] += _ONE


@compiled
def sweep(places: _Places, cells: _Words, left: _Numbers, count: int, out: _Words) -> int:
    """Peel, in ascending order, every candidate of left[:count] that lies in a pure cell by its turn.

    The others move to the front of `left`, still ascending; returns how many. Neighbouring candidates have
    neighbouring cells, so sweeps find them in the cache where a queue of pure cells would not.
    """
    kept = 0
    for i in range(count):
        k = left[i]
        pure = -1
        for j in range(SUB_TABLES):
            if cells[places[k, j] >> 1, LOAD] == 1:
                pure = j
        if pure < 0:
            left[kept] = k
            kept += 1
            continue
        value = _signed(cells[places[k, pure] >> 1, VALUE], places[k, pure])
        out[k] = value
        for j in range(SUB_TABLES):
            cell = places[k, j] >> 1
            cells[cell, VALUE] -= _signed(value, places[k, j])
            cells[cell, LOAD] -= _ONE
    return kept


@compiled
def _signed(value: np.uint32, place: int) -> np.uint32:
    return np.uint32(-value) if place & 1 else value
