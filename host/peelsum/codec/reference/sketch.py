"""The sketch in NumPy: encoding, and peeling round by round."""

from __future__ import annotations

import numpy as np

from peelsum.codec.arrays import Cells, Integers, Numbers, Words
from peelsum.codec.layout import (
    CELL_BITS,
    DRAWN_BITS,
    MOST_CANDIDATES,
    SEGMENT_BIT,
    SUB_TABLES,
    SketchLayout,
)
from peelsum.codec.reference.index import mixed


class ReferenceSketch:
    """The operations of `CodecDevice` on sketches."""

    def sketch_encode(self, layout: SketchLayout, positions: Numbers, values: Integers, out: Cells) -> None:
        """Write the sketch of values[k] at positions[k]."""
        cells, signs = places(layout, positions)
        out[:] = 0
        np.add.at(out.view(np.uint32), cells, signs * values.view(np.uint32)[:, np.newaxis])

    def sketch_decode(
        self, layout: SketchLayout, sketch: Cells, positions: Numbers, out: Integers
    ) -> Numbers:
        """Peel a sketch: write the candidates' values into `out`; return the indices of the unpeeled ones."""
        cells, signs = places(layout, positions)
        remaining = sketch.view(np.uint32).copy()
        numbers = out.view(np.uint32)
        load = np.zeros(layout.cells, np.uint32)
        np.add.at(load, cells, np.uint32(1))
        out[:] = 0
        segments = cells[:, 0] // layout.segment_cells
        crowded = np.bincount(segments, minlength=layout.segments)[segments] > MOST_CANDIDATES
        waiting, skipped = np.flatnonzero(~crowded), np.flatnonzero(crowded)
        while True:
            pure = load[cells[waiting]] == 1
            peelable = pure.any(axis=1)
            if not peelable.any():
                return np.sort(np.concatenate([waiting, skipped]))
            peeled, sub_table = waiting[peelable], pure[peelable].argmax(axis=1)
            numbers[peeled] = signs[peeled, sub_table] * remaining[cells[peeled, sub_table]]
            np.subtract.at(remaining, cells[peeled], signs[peeled] * numbers[peeled, np.newaxis])
            np.subtract.at(load, cells[peeled], np.uint32(1))
            waiting = waiting[~peelable]


def places(layout: SketchLayout, positions: Numbers) -> tuple[Numbers, Words]:
    """Return the candidates' cells int64[k, SUB_TABLES] and signs uint32[k, SUB_TABLES] (1 or 2**32 - 1)."""
    sub_table = np.arange(SUB_TABLES)
    drawn = mixed(positions.astype(np.uint64), layout.seed)[:, np.newaxis]
    part = drawn >> (DRAWN_BITS * sub_table).astype(np.uint64) & np.uint64(2**DRAWN_BITS - 1)
    cell = (part >> np.uint64(1)) * np.uint64(layout.width) >> np.uint64(CELL_BITS)
    segment = drawn >> np.uint64(SEGMENT_BIT) & np.uint64(layout.segments - 1)
    cells = (segment * np.uint64(SUB_TABLES) + sub_table.astype(np.uint64)) * np.uint64(layout.width) + cell
    negative = (part & np.uint64(1)).astype(np.bool_)
    return cells.astype(np.int64), np.where(negative, np.uint32(0xFFFFFFFF), np.uint32(1))
