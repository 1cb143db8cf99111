"""Loops that peel sketches for `peelsum.codec.cpu`, compiled by Numba and cached on disk.

During peeling a cell is one 64-bit word: its value in the upper half, the number of its candidates in the
lower. A candidate's three cells lie far apart, so the loops prefetch them: cache misses would otherwise take
most of the time. Unsigned indices save Numba the check for negative ones.
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
_FAR = np.uint64(_AHEAD)
_BATCH = 64  # candidates
_ZERO, _ONE, _TWO, _THREE, _S32 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(32)
_POSITIVE = np.uint32(1)

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
def sweep(places: Places, cells: _Cells, left: _Narrow, count: int, out: Words) -> int:
    """Peel, in ascending order, every candidate of left[:count] that is in a pure cell when its batch comes.

    The others move to the front of `left`, still ascending. Return their number.
    Neighbouring candidates have neighbouring cells, so a sweep hits the cache more often than a queue of pure
    cells would. It looks for pure cells in a batch of candidates, and then peels those. This is safe, because
    peeling one candidate leaves another's pure cell pure. Which cells are pure is unpredictable, so the
    search does not branch on it.
    """
    kept, found = _ZERO, np.empty(_BATCH, places.dtype)
    for start in range(0, count, _BATCH):
        pure, begin, end = _ZERO, np.uint64(start), np.uint64(min(start + _BATCH, count))
        for i in range(begin, end):
            k, ahead = np.uint64(left[i]), np.uint64(left[min(i + _FAR, np.uint64(count - 1))])
            for j in range(SUB_TABLES):
                prefetch(cells, np.uint64(places[_place(ahead, j)]) >> _ONE)
            sub_table = _pure_one(places, k, cells)
            found[pure] = _place(k, 0) + sub_table
            is_pure = np.uint64(sub_table != _THREE)
            left[kept] = k
            pure += is_pure
            kept += _ONE - is_pure
        for i in range(pure):
            _peel(places, np.uint64(found[i]), cells, out)
    return int(kept)


@compiled
def _pure_one(places: Places, k: np.uint64, cells: _Cells) -> np.uint64:
    """Return the first sub-table in which candidate k is in a pure cell, or 3."""
    pure_0 = _pure(cells[np.uint64(places[_place(k, 0)]) >> _ONE])
    pure_1 = _pure(cells[np.uint64(places[_place(k, 1)]) >> _ONE])
    pure_2 = _pure(cells[np.uint64(places[_place(k, 2)]) >> _ONE])
    return np.uint64(_ZERO if pure_0 else (_ONE if pure_1 else (_TWO if pure_2 else _THREE)))


@compiled
def _peel(places: Places, at: np.uint64, cells: _Cells, out: Words) -> None:
    """Write the value of the candidate in a pure cell, and subtract it from its cells."""
    k, place = at // _THREE, np.uint64(places[at])
    value = _signed(cells[place >> _ONE] - _ONE, place)
    out[k] = np.uint32(value >> _S32)
    for j in range(SUB_TABLES):
        place = np.uint64(places[_place(k, j)])
        cells[place >> _ONE] -= _ONE + _signed(value, place)


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
