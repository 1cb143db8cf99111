"""Loops that encode and peel sketches for `peelsum.codec.cpu`, compiled by Numba and cached on disk.

A candidate's places are one 64-bit word: for each sub-table 16 bits, twice the cell's number, plus 1 if the
sign is negative; above them a bit that is cleared when the candidate is peeled. Candidates are sorted by
segment, and a segment is encoded or peeled while its cells are in a core's second-level cache.

During peeling a cell is one 64-bit word, too: its value in the upper half, then 16 bits that count its
candidates, and 16 that hold the exclusive or of their numbers. So a cell with one candidate names it, and
peeling follows a queue of such cells. Unsigned indices save Numba the check for negative ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.cpu_index_loops import Numbers, Words, compiled, mixed
from peelsum.codec.layout import CELL_BITS, DRAWN_BITS, SEGMENT_BIT, SUB_TABLES

_ZERO, _ONE, _TWO, _THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
_S16, _S32 = np.uint64(16), np.uint64(32)
_CELL = np.uint64(0x7FFF)
_NUMBER, _ONE_MORE, _VALUE = np.uint64(0xFFFF), np.uint64(1 << 16), np.uint64(0xFFFFFFFF << 32)
_WAITING = np.uint64(1 << 48)
_DRAWN = np.uint64((1 << DRAWN_BITS) - 1)
_DRAWN_BITS, _CELL_BITS, _SEGMENT_BIT = np.uint64(DRAWN_BITS), np.uint64(CELL_BITS), np.uint64(SEGMENT_BIT)

_Places = NDArray[np.uint64]
_Owners = NDArray[np.uint16]


@compiled
def place(
    positions: Numbers, width: int, segments: int, seed: np.uint64, places: _Places, owners: _Owners
) -> None:
    """Write the candidates' places and segments. It does not branch, and so is vectorized."""
    wide, last = np.uint64(width), np.uint64(segments - 1)
    for k in range(np.uint64(positions.size)):
        drawn, packed = mixed(np.uint64(positions[k]), seed), _WAITING
        for j in range(SUB_TABLES):
            part = (drawn >> (np.uint64(j) * _DRAWN_BITS)) & _DRAWN
            cell = ((part >> _ONE) * wide) >> _CELL_BITS
            packed |= ((cell << _ONE) | (part & _ONE)) << (np.uint64(j) * _S16)
        places[k] = packed
        owners[k] = np.uint16((drawn >> _SEGMENT_BIT) & last)


@compiled
def begin_segments(owners: _Owners, begins: Numbers) -> None:
    """Write where the candidates of each segment begin, of all sorted by segment: begins[segments + 1]."""
    begins[:] = 0
    for k in range(np.uint64(owners.size)):
        begins[np.uint64(owners[k]) + _ONE] += 1
    for s in range(1, begins.size):
        begins[s] += begins[s - 1]


@compiled
def deal(owners: _Owners, begins: Numbers, given: NDArray[Any], out: NDArray[Any]) -> None:
    """Sort given[k] by segment."""
    at = begins.copy()
    for k in range(np.uint64(owners.size)):
        segment = np.uint64(owners[k])
        out[np.uint64(at[segment])] = given[k]
        at[segment] += 1


@compiled
def collect(owners: _Owners, begins: Numbers, given: Words, out: Words) -> None:
    """Do the reverse of `deal`."""
    at = begins.copy()
    for k in range(np.uint64(owners.size)):
        segment = np.uint64(owners[k])
        out[k] = given[np.uint64(at[segment])]
        at[segment] += 1


@compiled
def encode(places: _Places, values: Words, width: int, out: Words) -> None:
    """Add values[k] to the cells of a segment."""
    for k in range(np.uint64(places.size)):
        value = np.uint64(values[k])
        for j in range(SUB_TABLES):
            place = places[k] >> (np.uint64(j) * _S16)
            out[_cell(place, j, width)] += np.uint32(_signed(value, place))


@compiled
def peel(places: _Places, sketch: Words, width: int, cells: _Places, queue: Words, out: Words) -> int:
    """Peel a segment's candidates; clear the places of the peeled ones, and return their number.

    `cells` is for the segment's cells, and `queue` for one more. Every cell enters the queue at most once,
    because it loses candidates and gains none. Whether it enters is unpredictable, so nothing branches on it.
    """
    for c in range(np.uint64(sketch.size)):
        cells[c] = np.uint64(sketch[c]) << _S32
    for k in range(np.uint64(places.size)):
        out[k] = 0
        for j in range(SUB_TABLES):
            cell = _cell(places[k] >> (np.uint64(j) * _S16), j, width)
            cells[cell] = (cells[cell] ^ k) + _ONE_MORE
    end = _ZERO
    for c in range(np.uint64(sketch.size)):
        queue[end] = c
        end += np.uint64(_pure(cells[c]))
    head, peeled = _ZERO, 0
    while head < end:
        pure = np.uint64(queue[head])
        head += _ONE
        held = cells[pure]
        if not _pure(held):
            continue
        k = held & _NUMBER
        own = places[k]
        sub_table = np.uint64(pure >= np.uint64(width)) + np.uint64(pure >= _TWO * np.uint64(width))
        value = _signed(held & _VALUE, own >> (sub_table * _S16))
        out[k] = np.uint32(value >> _S32)
        places[k] = _ZERO
        peeled += 1
        for j in range(SUB_TABLES):
            place = own >> (np.uint64(j) * _S16)
            cell = _cell(place, j, width)
            rest = (cells[cell] ^ k) - (_ONE_MORE + _signed(value, place))
            cells[cell] = rest
            queue[end] = cell
            end += np.uint64(_pure(rest))
    return peeled


@compiled
def _cell(place: np.uint64, j: int, width: int) -> np.uint64:
    return np.uint64(j) * np.uint64(width) + ((place >> _ONE) & _CELL)


@compiled
def _pure(cell: np.uint64) -> bool:
    return bool((np.uint32(cell) >> np.uint32(16)) == np.uint32(1))


@compiled
def _signed(value: np.uint64, place: np.uint64) -> np.uint64:
    """Return `value` with the sign of `place`; in 64 bits, so that the low or the high 32 count."""
    negative = _ZERO - (place & _ONE)
    return np.uint64((value ^ negative) - negative)
