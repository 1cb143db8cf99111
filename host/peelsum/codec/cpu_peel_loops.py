"""Loops that peel sketches for `peelsum.codec.cpu`, compiled by Numba and cached on disk.

During peeling a cell is one 64-bit word: its value in the upper half, the number of its candidates in the
lower. A candidate's three cells lie far apart, so the loops prefetch them: cache misses would otherwise take
most of the time. Unsigned indices save Numba the check for negative ones.

Of several limbs only the first is peeled. The order is recorded, and repeated for the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.cpu_index_loops import Numbers, Words, compiled
from peelsum.codec.cpu_loops import cell_of, rows_of, segment_of
from peelsum.codec.cpu_prefetch import prefetch
from peelsum.codec.layout import SUB_TABLES

#: Distance, in candidates, between prefetching a cell and using it.
_AHEAD = 32
_ZERO, _ONE, _TWO, _THREE, _S32 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(32)
_POSITIVE = np.uint32(1)
#: A table, because LLVM turns a mask that is computed from a condition back into a branch.
_NONE_OR_ALL = np.array([0, 2**64 - 1], np.uint64)

_Cells = NDArray[np.uint64]
_Narrow = NDArray[np.uint32] | NDArray[np.uint64]
#: Three consecutive entries per candidate: twice the cell's number, plus 1 if the sign is negative.
Places = _Narrow


@compiled
def load(
    lanes: int,
    rows: int,
    seed: np.uint64,
    positions: Numbers,
    sketch: Words,
    places: Places,
    cells: _Cells,
    left: _Narrow,
) -> None:
    """Fill cells[n] of a segment for peeling, record places, and write all its candidates into `left`."""
    for c in range(sketch.size):
        cells[c] = np.uint64(sketch[c]) << _S32
    start, placed = -lanes, rows_of(0, lanes, rows, 1, seed)
    for k in range(positions.size):
        left[k] = k
        if positions[k] - start >= lanes:
            block = positions[k] // lanes
            start, placed = block * lanes, rows_of(block, lanes, rows, 1, seed)
        for j in range(SUB_TABLES):
            cell = np.uint64(cell_of(placed[j], positions[k] - start, lanes))
            prefetch(cells, cell)
            places[SUB_TABLES * k + j] = (cell << _ONE) | np.uint64(placed[j][2] != _POSITIVE)
        if k >= _AHEAD:
            _count(places, k - _AHEAD, cells)
    for k in range(max(positions.size - _AHEAD, 0), positions.size):
        _count(places, k, cells)


@compiled
def _count(places: Places, k: int, cells: _Cells) -> None:
    for j in range(SUB_TABLES):
        cells[np.uint64(places[SUB_TABLES * k + j]) >> _ONE] += _ONE


@compiled
def sweep(places: Places, cells: _Cells, left: _Narrow, count: int, out: Words, peeled: _Narrow) -> int:
    """Peel, in ascending order, every candidate of left[:count] that is in a pure cell when its turn comes.

    The others move to the front of `left`, still ascending, and get 0 in `out`. Return their number. The
    pure cells go into `peeled`, as indices of `places`, in the order of peeling, unless it is empty.
    It has room for one more.
    Neighbouring candidates have neighbouring cells, so a sweep hits the cache more often than a queue of pure
    cells would. Which candidates are peeled is unpredictable, so the loop does not branch on it: a candidate
    that is not peeled subtracts 0.
    """
    kept = np.uint64(0)
    for i in range(count):
        k, ahead = np.uint64(left[i]), np.uint64(left[min(i + _AHEAD, count - 1)])
        for j in range(SUB_TABLES):
            prefetch(cells, np.uint64(places[_place(ahead, j)]) >> _ONE)
        place_0, place_1, place_2 = (
            np.uint64(places[_place(k, 0)]),
            np.uint64(places[_place(k, 1)]),
            np.uint64(places[_place(k, 2)]),
        )
        cell_0, cell_1, cell_2 = cells[place_0 >> _ONE], cells[place_1 >> _ONE], cells[place_2 >> _ONE]
        pure_0, pure_1, pure_2 = _pure(cell_0), _pure(cell_1), _pure(cell_2)
        pure = np.uint64(pure_0 | pure_1 | pure_2)
        cell = cell_0 if pure_0 else (cell_1 if pure_1 else cell_2)
        place = place_0 if pure_0 else (place_1 if pure_1 else place_2)
        value = _signed(cell - _ONE, place) & _NONE_OR_ALL[pure]
        out[k] = np.uint32(value >> _S32)
        cells[place_0 >> _ONE] = cell_0 - pure - _signed(value, place_0)
        cells[place_1 >> _ONE] = cell_1 - pure - _signed(value, place_1)
        cells[place_2 >> _ONE] = cell_2 - pure - _signed(value, place_2)
        if peeled.size:
            sub_table = _ZERO if pure_0 else (_ONE if pure_1 else _TWO)
            peeled[np.uint64(i) - kept] = _place(k, 0) + sub_table
        left[kept] = k
        kept += _ONE - pure
    return int(kept)


@compiled
def repeat(places: Places, sketch: Words, peeled: _Narrow, out: Words) -> None:
    """Peel another limb's sketch[n], which is overwritten, in the order of `peeled`."""
    for i in range(peeled.size):
        ahead = np.uint64(peeled[min(i + _AHEAD, peeled.size - 1)]) // _THREE
        for j in range(SUB_TABLES):
            prefetch(sketch, np.uint64(places[_place(ahead, j)]) >> _ONE)
        at = np.uint64(peeled[i])
        k, place = at // _THREE, np.uint64(places[at])
        value = _signed(np.uint64(sketch[place >> _ONE]) << _S32, place)
        out[k] = np.uint32(value >> _S32)
        for j in range(SUB_TABLES):
            place = np.uint64(places[_place(k, j)])
            sketch[place >> _ONE] -= np.uint32(_signed(value, place) >> _S32)


@compiled
def deal(
    lanes: int, dealt_to: int, seed: np.uint64, positions: Numbers, begins: Numbers, out: Numbers
) -> None:
    """Write positions by segment into out[k], and where each segment begins into begins[dealt_to + 1]."""
    begins[:] = 0
    first = 0
    while first < positions.size:
        segment, end = _run(lanes, dealt_to, seed, positions, first)
        begins[segment + 1] += end - first
        first = end
    for s in range(dealt_to):
        begins[s + 1] += begins[s]
    at, first = begins.copy(), 0
    while first < positions.size:
        segment, end = _run(lanes, dealt_to, seed, positions, first)
        for k in range(end - first):
            out[np.uint64(at[segment] + k)] = positions[np.uint64(first + k)]
        at[segment] += end - first
        first = end


@compiled
def collect(
    lanes: int,
    dealt_to: int,
    seed: np.uint64,
    positions: Numbers,
    begins: Numbers,
    values: Words,
    out: Words,
) -> None:
    """Write into out[k] the values that belong to positions[k], from values[k], which are by segment."""
    at, first = begins.copy(), 0
    while first < positions.size:
        segment, end = _run(lanes, dealt_to, seed, positions, first)
        for k in range(end - first):
            out[np.uint64(first + k)] = values[np.uint64(at[segment] + k)]
        at[segment] += end - first
        first = end


@compiled
def _run(lanes: int, dealt_to: int, seed: np.uint64, positions: Numbers, first: int) -> tuple[int, int]:
    """Return the segment of positions[first], and the end of those in the same block."""
    block, k = np.uint64(positions[first]) // np.uint64(lanes), np.uint64(first)
    end = np.int64((block + np.uint64(1)) * np.uint64(lanes))
    while k < positions.size and positions[k] < end:
        k += _ONE
    return segment_of(int(np.int64(block)), dealt_to, seed), int(np.int64(k))


@compiled
def _place(k: np.uint64, j: int) -> np.uint64:
    return np.uint64(SUB_TABLES) * k + np.uint64(j)


@compiled
def _pure(cell: np.uint64) -> bool:
    return bool(np.uint32(cell) == np.uint32(1))


@compiled
def _signed(value: np.uint64, place: np.uint64) -> np.uint64:
    """Return `value` with the sign of `place`; the value is in the upper 32 bits, above zeros."""
    negative = _ZERO - (place & _ONE)
    return np.uint64((value ^ negative) - negative)
