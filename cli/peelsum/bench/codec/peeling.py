"""Count the rounds and the left-over of peeling candidates in parallel rounds, for any layout of cells.

There are no values, and no code is shared with the codec's peeling, which may use another order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import SUB_TABLES, SketchLayout
from peelsum.codec.cpu.words import compiled
from peelsum.codec.reference.sketch import places

#: Candidates whose cells are computed at once, because NumPy needs a few hundred bytes for each.
_BATCH = 2**20
_Cells = NDArray[np.int64] | NDArray[np.int32]


class Peeled(NamedTuple):
    """The result of peeling."""

    left_over: int
    """Number of left-over candidates."""
    rounds: int
    """Number of rounds that recovered a candidate."""


def peel(places: _Cells, cells: int) -> Peeled:
    """Peel k candidates; `places`, int[k, 3], has the cells of each, from 0 to `cells` - 1."""
    load = np.zeros(cells, np.uint32)
    return Peeled(*_peel(places, load, np.arange(places.shape[0])))


def peel_sketch(layout: SketchLayout, positions: NDArray[np.int64]) -> Peeled:
    """Run `peel` on the candidates at `positions`, int64[k], of one of the codec's sketches."""
    cells = np.empty((positions.size, SUB_TABLES), np.int64)
    for start in range(0, positions.size, _BATCH):
        part = slice(start, start + _BATCH)
        cells[part], _ = places(layout, positions[part])
    return peel(cells, layout.cells)


@compiled
def _peel(places: _Cells, load: NDArray[np.uint32], unpeeled: NDArray[np.int64]) -> Any:
    """Return the numbers of left-over candidates and of rounds.

    load: zeros; then the candidates of each cell. unpeeled: the candidates, 0 to k - 1; it is overwritten.
    """
    for k in range(places.shape[0]):
        for j in range(places.shape[1]):
            load[places[k, j]] += 1
    count, rounds = unpeeled.size, 0
    while True:
        # Find all pure cells before any is emptied, as parallel threads would.
        peeled = 0
        for i in range(count):
            k = unpeeled[i]
            pure = False
            for j in range(places.shape[1]):
                pure |= load[places[k, j]] == 1
            if pure:
                unpeeled[i] = ~k
                peeled += 1
        if peeled == 0:
            return count, rounds
        remaining = 0
        for i in range(count):
            k = unpeeled[i]
            if k >= 0:
                unpeeled[remaining] = k
                remaining += 1
                continue
            for j in range(places.shape[1]):
                load[places[~k, j]] -= 1
        count, rounds = remaining, rounds + 1
