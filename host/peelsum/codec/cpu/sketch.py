"""Sketches on all cores, encoded and peeled by loops that Numba compiles.

A candidate's cells are packed into a 64-bit word, its `places`: for each sub-table 16 bits, twice the cell's
number, plus 1 if the sign is negative; above them a bit that is set until the candidate is peeled. Candidates
are grouped by segment, and a segment is peeled while its cells are in a core's second-level cache. Places are
computed in batches without a branch, so the compiler vectorizes them. With several segments, each candidate
is hashed twice, for its segment and for its places: keeping the hashes would need new memory, which takes
longer.

During peeling a cell is one 64-bit word, too: its value in the upper half, then 16 bits that count its
candidates, and 16 that hold the exclusive or of the candidates' numbers. So a pure cell, with one candidate,
names it, and peeling follows a queue of pure cells. Unsigned indices save Numba the check for negative ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.arrays import Cells, Integers, Numbers, Words
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
_ELEMENTS_PER_CANDIDATE = 16
_NO_WORDS = np.empty(0, np.uint32)
#: The cells of a sketch of up to so many segments stay in a processor's caches.
_CACHED_SEGMENTS = 32
_BATCH = 128  # candidates whose places are computed at once
_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_S16, _S32 = np.uint64(16), np.uint64(32)
_CELL = np.uint64(0x7FFF)
_NUMBER, _ONE_MORE, _VALUE = np.uint64(0xFFFF), np.uint64(1 << 16), np.uint64(0xFFFFFFFF << 32)
#: The bit of the places of a candidate that is not peeled yet.
_UNPEELED = np.uint64(1 << 48)
_DRAWN = np.uint64((1 << DRAWN_BITS) - 1)
_DRAWN_BITS, _CELL_BITS, _SEGMENT_BIT = np.uint64(DRAWN_BITS), np.uint64(CELL_BITS), np.uint64(SEGMENT_BIT)

_Places = NDArray[np.uint64]
_SegmentIds = NDArray[np.uint16]


class CpuSketch:
    """The operations of `CodecDevice` on sketches, see there."""

    def sketch_encode(self, layout: SketchLayout, positions: Numbers, values: Integers, out: Cells) -> None:
        """Write the sketch of values[k] at positions[k] into out[layout.cells].

        A cell is a sum modulo 2**32, so the sketch is linear in the values.
        """
        out[:] = 0
        encode_sketch(layout, positions, values, out)

    def sketch_decode(
        self, layout: SketchLayout, sketch: Cells, positions: Numbers, out: Integers
    ) -> Numbers:
        """Peel: write the values of the candidates positions[k] into out[k]; return the unpeeled candidates.

        `sketch` is uint32[layout.cells]. The unpeeled candidates, the left-over, are indices into
        `positions`, int64[m], ascending: the 2-core, and every candidate of a segment that has more than
        MOST_CANDIDATES. Their `out` is 0. They depend only on layout and positions, so they are the same on
        every worker. The candidates must include every element that any worker encoded.
        """
        size, words = len(sketch) // layout.segments, sketch.view(np.uint32)
        places, _, segment_ids, begins = _group_by_segment(layout, positions)
        bounds = begins.tolist()

        def work(first: int, last: int) -> int:
            cells, queue, peeled = np.empty(size, np.uint64), np.empty(size + 1, np.uint32), 0
            for s in range(first, last):
                candidates, segment = places[bounds[s] : bounds[s + 1]], words[s * size : (s + 1) * size]
                if candidates.size <= MOST_CANDIDATES:
                    peeled += _peel(candidates, segment, layout.width, cells, queue)
            return peeled

        peeled = work(0, 1) if layout.segments == 1 else 0
        if layout.segments > 1:
            peeled = sum(each(layout.segments, work, _ELEMENTS_PER_CANDIDATE * positions.size))
        _collect_values(segment_ids, begins, places, out.view(np.uint32))
        if peeled == positions.size:
            return np.empty(0, np.int64)
        unpeeled = np.flatnonzero(places >= _UNPEELED)  # a peeled candidate has its value instead
        if layout.segments == 1:
            return unpeeled
        order = np.argsort(segment_ids, kind="stable")  # candidates, in the order of `places`
        return np.sort(order[unpeeled])


def encode_sketch(layout: SketchLayout, positions: Numbers, values: Integers, out: Cells) -> None:
    """Add values[k] at positions[k] to a sketch."""
    words, cells = values.view(np.uint32), out.view(np.uint32)
    if layout.segments <= _CACHED_SEGMENTS:
        _add_ungrouped(positions, words, layout.width, layout.segments, np.uint64(layout.seed), cells)
        return
    places, grouped, _, begins = _group_by_segment(layout, positions, words)
    for s in range(layout.segments):
        part, first = slice(begins[s], begins[s + 1]), s * layout.segment_cells
        _add_values(places[part], grouped[part], layout.width, cells[first:])


def _group_by_segment(
    layout: SketchLayout, positions: Numbers, values: Words = _NO_WORDS
) -> tuple[_Places, Words, _SegmentIds, Numbers]:
    """Return the candidates' places and values grouped by segment, their segments, and each group's begin."""
    count, segments, seed = positions.size, layout.segments, np.uint64(layout.seed)
    segment_ids, begins, grouped = np.empty(0, np.uint16), np.array([0, count]), np.empty(0, np.uint32)
    if segments > 1:
        segment_ids, begins = np.empty(count, np.uint16), np.empty(segments + 1, np.int64)
        grouped = np.empty(values.size, np.uint32)
        _write_segments(positions, segments, seed, segment_ids, begins)
    places = np.empty(count, np.uint64)
    _write_grouped(positions, values, layout.width, segments, seed, begins, places, grouped)
    return places, values if segments == 1 else grouped, segment_ids, begins


@compiled
def _write_places(
    positions: Numbers,
    first: int,
    width: int,
    segments: int,
    seed: np.uint64,
    places: _Places,
    segment_ids: _SegmentIds,
) -> None:
    """Write the places and segments of candidates from positions[first] on, as many as fit into `places`."""
    cells, last = np.uint64(width), np.uint64(segments - 1)
    for k in range(np.uint64(places.size)):
        drawn, packed = mixed(np.uint64(positions[np.uint64(first) + k]), seed), _UNPEELED
        for j in range(SUB_TABLES):
            part = (drawn >> (np.uint64(j) * _DRAWN_BITS)) & _DRAWN
            cell = ((part >> _ONE) * cells) >> _CELL_BITS
            packed |= ((cell << _ONE) | (part & _ONE)) << (np.uint64(j) * _S16)
        places[k] = packed
        segment_ids[k] = np.uint16((drawn >> _SEGMENT_BIT) & last)


@compiled
def _write_segments(
    positions: Numbers, segments: int, seed: np.uint64, segment_ids: _SegmentIds, begins: Numbers
) -> None:
    """Write the candidates' segments, and where each segment's candidates begin: begins[segments + 1]."""
    last = np.uint64(segments - 1)
    for k in range(np.uint64(positions.size)):
        segment_ids[k] = np.uint16((mixed(np.uint64(positions[k]), seed) >> _SEGMENT_BIT) & last)
    begins[:] = 0
    for k in range(np.uint64(segment_ids.size)):
        begins[np.uint64(segment_ids[k]) + _ONE] += 1
    for s in range(1, begins.size):
        begins[s] += begins[s - 1]


@compiled
def _write_grouped(
    positions: Numbers,
    values: Words,
    width: int,
    segments: int,
    seed: np.uint64,
    begins: Numbers,
    places: _Places,
    grouped: Words,
) -> None:
    """Write the candidates' places, grouped by segment; also their values, unless `values` is empty."""
    at, segment_ids, batch = begins.copy(), np.empty(_BATCH, np.uint16), np.empty(_BATCH, np.uint64)
    for first in range(0, positions.size, _BATCH):
        count = min(_BATCH, positions.size - first)
        if segments == 1:
            _write_places(positions, first, width, 1, seed, places[first : first + count], segment_ids)
            continue
        _write_places(positions, first, width, segments, seed, batch[:count], segment_ids)
        for k in range(np.uint64(count)):
            segment = np.uint64(segment_ids[k])
            here = np.uint64(at[segment])
            places[here] = batch[k]
            if values.size:
                grouped[here] = values[np.uint64(first) + k]
            at[segment] += 1


@compiled
def _add_values(places: _Places, values: Words, width: int, out: Words) -> None:
    """Add values, given with their places, to a segment of the sketch."""
    for k in range(np.uint64(places.size)):
        _add_value(places[k], np.uint64(values[k]), width, _ZERO, out)


@compiled
def _add_value(places: np.uint64, value: np.uint64, width: int, begin: np.uint64, out: Words) -> None:
    """Add a value to its cells of a segment, which begins at out[begin]."""
    for j in range(SUB_TABLES):
        place = places >> (np.uint64(j) * _S16)
        out[begin + _cell(place, j, width)] += np.uint32(_signed(value, place))


@compiled
def _add_ungrouped(
    positions: Numbers, values: Words, width: int, segments: int, seed: np.uint64, out: Words
) -> None:
    """Add values[k] at positions[k] to the sketch."""
    places, segment_ids = np.empty(_BATCH, np.uint64), np.empty(_BATCH, np.uint16)
    for first in range(0, positions.size, _BATCH):
        count = min(_BATCH, positions.size - first)
        _write_places(positions, first, width, segments, seed, places[:count], segment_ids)
        for k in range(np.uint64(count)):
            begin = np.uint64(segment_ids[k]) * np.uint64(SUB_TABLES * width)
            _add_value(places[k], np.uint64(values[np.uint64(first) + k]), width, begin, out)


@compiled
def _collect_values(segment_ids: _SegmentIds, begins: Numbers, places: _Places, out: Words) -> None:
    """Write the peeled values in the order of the candidates, and 0 for unpeeled ones."""
    at, several = begins.copy(), begins.size > 2
    for k in range(np.uint64(out.size)):
        here = np.uint64(k)
        if several:
            segment = np.uint64(segment_ids[k])
            here = np.uint64(at[segment])
            at[segment] += 1
        value = places[here]
        out[k] = np.uint32(value) * np.uint32(value < _UNPEELED)


@compiled
def _peel(places: _Places, sketch: Words, width: int, cells: _Places, queue: Words) -> int:
    """Peel a segment's candidates: replace the places of the peeled ones by their values, and count them.

    `cells` and `queue` are working memory: for the segment's cells, and for one more. Every cell enters the
    queue at most once, because it loses candidates and gains none. Whether it enters is unpredictable, so
    nothing branches on it.
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
        packed = places[k]
        sub_table = np.uint64(pure >= np.uint64(width)) + np.uint64(pure >= _TWO * np.uint64(width))
        value = _signed(held & _VALUE, packed >> (sub_table * _S16))
        places[k] = value >> _S32
        peeled += 1
        for j in range(SUB_TABLES):
            place = packed >> (np.uint64(j) * _S16)
            cell = _cell(place, j, width)
            rest = (cells[cell] ^ k) - (_ONE_MORE + _signed(value, place))
            cells[cell] = rest
            queue[end] = cell
            end += np.uint64(_pure(rest))
    return peeled


@compiled
def _cell(place: np.uint64, j: int, width: int) -> np.uint64:
    """Return a candidate's cell in sub-table j of its segment, from the 16 bits of its places for it."""
    return np.uint64(j) * np.uint64(width) + ((place >> _ONE) & _CELL)


@compiled
def _pure(cell: np.uint64) -> bool:
    """Return whether a cell has exactly one candidate."""
    return bool((np.uint32(cell) >> np.uint32(16)) == np.uint32(1))


@compiled
def _signed(value: np.uint64, place: np.uint64) -> np.uint64:
    """Return `value`, negated if the sign of `place` is negative, in its low or its high 32 bits."""
    negative = _ZERO - (place & _ONE)
    return np.uint64((value ^ negative) - negative)
