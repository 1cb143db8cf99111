"""Peel any layout of candidates in parallel rounds, without values, and count left-over and rounds.

It shares no code with the codec's peeling, which may use another order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import SUB_TABLES, SketchLayout
from peelsum.codec.cpu.words import compiled
from peelsum.codec.reference.sketch import places

#: Candidates whose cells are computed at once: NumPy needs a few hundred bytes for each.
_AT_A_TIME = 2**20
_Cells = NDArray[np.int64] | NDArray[np.int32]


class Peeled(NamedTuple):
    """The result of peeling."""

    left: int
    """Number of left-over candidates."""
    rounds: int
    """Number of rounds that recovered a candidate."""


def peel(places: _Cells, cells: int) -> Peeled:
    """Peel candidates in cells places[k, 3], numbered 0 to `cells` - 1; a candidate may repeat a cell."""
    load = np.zeros(cells, np.uint32)
    return Peeled(*_peel(places, load, np.arange(places.shape[0])))


def peel_sketch(layout: SketchLayout, positions: NDArray[np.int64]) -> Peeled:
    """Run `peel` on the candidates of a sketch of the codec."""
    cells = np.empty((positions.size, SUB_TABLES), np.int64)
    for start in range(0, positions.size, _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        cells[part], _ = places(layout, positions[part])
    return peel(cells, layout.cells)


@compiled
def _peel(places: _Cells, load: NDArray[np.uint32], left: NDArray[np.int64]) -> Any:
    for k in range(places.shape[0]):
        for j in range(places.shape[1]):
            load[places[k, j]] += 1
    count, rounds = left.size, 0
    while True:
        # Find all pure cells before any is emptied, as parallel threads would.
        kept, peeled = 0, 0
        for i in range(count):
            k = left[i]
            pure = False
            for j in range(places.shape[1]):
                pure |= load[places[k, j]] == 1
            if pure:
                left[i] = ~k
                peeled += 1
        if peeled == 0:
            return count, rounds
        for i in range(count):
            k = left[i]
            if k >= 0:
                left[kept] = k
                kept += 1
                continue
            for j in range(places.shape[1]):
                load[places[~k, j]] -= 1
        count, rounds = kept, rounds + 1
