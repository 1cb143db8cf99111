"""Sketches on all cores, encoded and peeled by loops that Numba compiles.

A candidate's places are one 64-bit word: for each sub-table 16 bits, twice the cell's number, plus 1 if the
sign is negative; above them a bit that says that it waits to be peeled. Numbers are sorted by segment, and a
segment is peeled while its cells are in a core's second-level cache. Numbers are computed in batches without
a branch, so the compiler vectorizes them. With several segments, each candidate is hashed twice, for its
segment and for its places: keeping the hashes would need new memory, which takes longer.

During peeling a cell is one 64-bit word, too: its value in the upper half, then 16 bits that count its
candidates, and 16 that hold the exclusive or of their numbers. So a cell with one candidate names it, and
peeling follows a queue of such cells. Unsigned indices save Numba the check for negative ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.buffers import frozen
from peelsum.codec.arrays import Integers, Numbers, Words
from peelsum.codec.cpu.words import compiled, mixed
from peelsum.codec.layout import (
    CELL_BITS,
    DRAWN_BITS,
    MOST_CANDIDATES,
    SEGMENT_BIT,
    SUB_TABLES,
    SketchLayout,
)
from peelsum.codec.threads import each

#: Peeling a candidate takes at least as long as a pass over this many elements: 13 ns or more.
_ELEMENTS_OF_A_CANDIDATE = 16
_NO_WORDS = np.empty(0, np.uint32)
_NO_WORDS.setflags(write=False)
_BATCH = 128  # candidates whose places are computed at once
_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_S16, _S32 = np.uint64(16), np.uint64(32)
_CELL = np.uint64(0x7FFF)
_NUMBER, _ONE_MORE, _VALUE = np.uint64(0xFFFF), np.uint64(1 << 16), np.uint64(0xFFFFFFFF << 32)
#: The bit of places of a candidate that is not peeled.
_WAITING = np.uint64(1 << 48)
_DRAWN = np.uint64((1 << DRAWN_BITS) - 1)
_DRAWN_BITS, _CELL_BITS, _SEGMENT_BIT = np.uint64(DRAWN_BITS), np.uint64(CELL_BITS), np.uint64(SEGMENT_BIT)

_Places = NDArray[np.uint64]
_Owners = NDArray[np.uint16]


class CpuSketch:
    """The operations of `Device` on sketches."""

    def sketch_encode(self, layout: SketchLayout, positions: Numbers, values: Integers, out: Words) -> None:
        """See `Device.sketch_encode`."""
        out[:] = 0
        places, numbers, _, begins = _dealt(layout, frozen(positions), frozen(values.view(np.uint32)))
        _add(places, numbers, layout.width, layout.segments, begins, out)

    def sketch_decode(
        self, layout: SketchLayout, sketch: Words, positions: Numbers, out: Integers
    ) -> Numbers:
        """See `Device.sketch_decode`."""
        where, sketch, size = frozen(positions), frozen(sketch), layout.segment_cells
        places, _, owners, begins = _dealt(layout, where)
        bounds = begins.tolist()

        def work(first: int, last: int) -> int:
            cells, queue, peeled = buffers.empty(size, np.uint64), buffers.empty(size + 1, np.uint32), 0
            for s in range(first, last):
                part, own = places[bounds[s] : bounds[s + 1]], sketch[s * size : (s + 1) * size]
                if part.size <= MOST_CANDIDATES:
                    peeled += _peel(part, own, layout.width, cells, queue)
            return peeled

        peeled = sum(each(layout.segments, work, _ELEMENTS_OF_A_CANDIDATE * where.size))
        _collect(owners, begins, places, out.view(np.uint32))
        if peeled == where.size:
            return np.empty(0, np.int64)
        left = np.flatnonzero(places >= _WAITING)
        return left if layout.segments == 1 else np.sort(np.argsort(owners, kind="stable")[left])


def _dealt(
    layout: SketchLayout, positions: Numbers, values: Words = _NO_WORDS
) -> tuple[_Places, Words, _Owners, Numbers]:
    """Return the candidates' places and values by segment, their segments, and where each segment begins."""
    count, segments, seed = positions.size, layout.segments, np.uint64(layout.seed)
    owners, begins, dealt = np.empty(0, np.uint16), np.array([0, count]), np.empty(0, np.uint32)
    if segments > 1:
        owners, begins = buffers.empty(count, np.uint16), buffers.empty(segments + 1, np.int64)
        dealt = buffers.empty(values.size, np.uint32)
        _own(positions, segments, seed, owners, begins)
    places = buffers.empty(count, np.uint64)
    _deal(positions, values, layout.width, segments, seed, begins, places, dealt)
    return places, values if segments == 1 else frozen(dealt), owners, begins


@compiled
def _place(
    positions: Numbers,
    first: int,
    width: int,
    segments: int,
    seed: np.uint64,
    places: _Places,
    owners: _Owners,
) -> None:
    """Write places and segments of the candidates from positions[first] on, as many as there is room for."""
    wide, last = np.uint64(width), np.uint64(segments - 1)
    for k in range(np.uint64(places.size)):
        drawn, packed = mixed(np.uint64(positions[np.uint64(first) + k]), seed), _WAITING
        for j in range(SUB_TABLES):
            part = (drawn >> (np.uint64(j) * _DRAWN_BITS)) & _DRAWN
            cell = ((part >> _ONE) * wide) >> _CELL_BITS
            packed |= ((cell << _ONE) | (part & _ONE)) << (np.uint64(j) * _S16)
        places[k] = packed
        owners[k] = np.uint16((drawn >> _SEGMENT_BIT) & last)


@compiled
def _own(positions: Numbers, segments: int, seed: np.uint64, owners: _Owners, begins: Numbers) -> None:
    """Write the candidates' segments, and where each segment begins, sorted: begins[segments + 1]."""
    last = np.uint64(segments - 1)
    for k in range(np.uint64(positions.size)):
        owners[k] = np.uint16((mixed(np.uint64(positions[k]), seed) >> _SEGMENT_BIT) & last)
    begins[:] = 0
    for k in range(np.uint64(owners.size)):
        begins[np.uint64(owners[k]) + _ONE] += 1
    for s in range(1, begins.size):
        begins[s] += begins[s - 1]


@compiled
def _deal(
    positions: Numbers,
    values: Words,
    width: int,
    segments: int,
    seed: np.uint64,
    begins: Numbers,
    places: _Places,
    dealt: Words,
) -> None:
    """Write the candidates' places, sorted by segment, and, if there are any, values[k] likewise."""
    at, owners, batch = begins.copy(), np.empty(_BATCH, np.uint16), np.empty(_BATCH, np.uint64)
    for first in range(0, positions.size, _BATCH):
        count = min(_BATCH, positions.size - first)
        if segments == 1:
            _place(positions, first, width, 1, seed, places[first : first + count], owners)
            continue
        _place(positions, first, width, segments, seed, batch[:count], owners)
        for k in range(np.uint64(count)):
            segment = np.uint64(owners[k])
            here = np.uint64(at[segment])
            places[here] = batch[k]
            if values.size:
                dealt[here] = values[np.uint64(first) + k]
            at[segment] += 1


@compiled
def _add(places: _Places, values: Words, width: int, segments: int, begins: Numbers, out: Words) -> None:
    """Add values, sorted by segment as their places are, to a sketch."""
    for s in range(segments):
        first = np.uint64(SUB_TABLES * width * s)
        for k in range(np.uint64(begins[s]), np.uint64(begins[s + 1])):
            value = np.uint64(values[k])
            for j in range(SUB_TABLES):
                place = places[k] >> (np.uint64(j) * _S16)
                out[first + _cell(place, j, width)] += np.uint32(_signed(value, place))


@compiled
def _collect(owners: _Owners, begins: Numbers, places: _Places, out: Words) -> None:
    """Write the peeled values in the order of the candidates; 0 for those that still wait."""
    at, several = begins.copy(), begins.size > 2
    for k in range(np.uint64(out.size)):
        here = np.uint64(k)
        if several:
            segment = np.uint64(owners[k])
            here = np.uint64(at[segment])
            at[segment] += 1
        found = places[here]
        out[k] = np.uint32(found) * np.uint32(found < _WAITING)


@compiled
def _peel(places: _Places, sketch: Words, width: int, cells: _Places, queue: Words) -> int:
    """Peel a segment's candidates; replace the places of the peeled ones by their values, and count them.

    `cells` is for the segment's cells, and `queue` for one more. Every cell enters the queue at most once,
    because it loses candidates and gains none. Whether it enters is unpredictable, so nothing branches on it.
    """
    for c in range(np.uint64(sketch.size)):
        cells[c] = np.uint64(sketch[c]) << _S32
    for k in range(np.uint64(places.size)):
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
        places[k] = value >> _S32
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
