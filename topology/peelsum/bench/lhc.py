"""LHC's published layout (arXiv 2402.07529), for comparison: our own code, in integers, on all cores.

Blocks of 1024 elements go to three rows of one table, each element to its own lane, with a sign per row;
neither a second table nor a rotation mixes lanes. The index is summed, four bits an element, so more than
LARGEST_FAN_IN workers overflow it. Every pass of encoding and every peel round goes over all elements. What
differs from the published program: values are int32, so that sums are exact; the hash is this codec's; the
pass over elements peels in place. Cores share blocks to encode, and lanes, which never meet, to peel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.bench import lhc_loops as loops
from peelsum.bench.peeling import Peeled, peel
from peelsum.codec import FixedPoint
from peelsum.codec.threads import each

#: Elements of a block, and cells of a row.
LHC_LANES = 1024
#: Workers whose four-bit counts still fit four bits.
LARGEST_FAN_IN = 15
#: Lanes are divided between cores by so many: two words of the index, a whole number of cache lines of cells.
_STRIP = 16
_INDEX_BITS = 4
_ROWS_STEP = 1.05


@dataclass(frozen=True)
class LhcLayout:
    """One table of `rows` rows of `lanes` cells for tensors of n elements; `lanes`: a power of 2, 16 to 8192.

    The index is uint32[index_words(n)], four bits an element in whole blocks; the sketch uint32[cells].
    """

    rows: int
    seed: int = 0
    lanes: int = LHC_LANES

    @property
    def cells(self) -> int:
        """Cells of the table."""
        return self.rows * self.lanes

    def index_words(self, elements: int) -> int:
        """Words of the index of so many elements, filled up to whole blocks."""
        return -(-elements // self.lanes) * self.lanes * _INDEX_BITS // 32

    def words(self, elements: int) -> int:
        """Words that a worker sends of so many elements."""
        return -(-elements * _INDEX_BITS // 32) + self.cells

    def index(self, values: NDArray[np.float32]) -> NDArray[np.uint32]:
        """1 in the four bits of every non-zero: to be added over workers."""
        out = np.empty(self.index_words(values.size), np.uint32)
        out[values.size // 8 :] = 0
        bits = values.view(np.uint32)
        each(values.size, lambda a, b: loops.index(bits[a:b], out[a // 8 :]))
        return out

    def encode(
        self, values: NDArray[np.float32], fixed: FixedPoint, index: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """The sketch, to be added over workers, and by the summed `index` each cell's count, modulo 2**8."""
        factor = np.ldexp(1.0, fixed.scale)

        def work(begin: int, end: int) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
            sketch, counts = np.zeros(self.cells, np.uint32), np.zeros(self.cells, np.uint8)
            part = values[begin:end]
            loops.add(*self._arguments, begin, part, factor, index[begin // 8 :], sketch, counts)
            return sketch, counts

        (sketch, counts), *others = each(values.size, work)
        for other_sketch, other_counts in others:
            sketch += other_sketch
            counts += other_counts
        return sketch, counts

    def decode(
        self,
        sketch: NDArray[np.uint32],
        counts: NDArray[np.uint8],
        index: NDArray[np.uint32],
        fixed: FixedPoint,
        elements: int,
    ) -> tuple[NDArray[np.float32], int]:
        """Peel; returns float32[elements] and how many non-zeros are left over. Arguments are used up."""
        out = np.zeros(elements, np.float32)
        factor = np.ldexp(1.0, -fixed.scale)

        def work(begin: int, end: int) -> int:
            low, high = self._strip(begin, elements), self._strip(end, elements)
            return int(loops.peel(*self._arguments, low, high, sketch, counts, index, factor, out))

        return out, sum(each(elements, work))

    def peeled(self, positions: NDArray[np.int64]) -> Peeled:
        """What peeling these candidates comes to, without values."""
        places = np.empty((positions.size, 3), np.int64)
        loops.place(*self._arguments, positions, places)
        return peel(places, self.cells)

    def heaviest_lane(self, positions: NDArray[np.int64]) -> int:
        """Most candidates in a lane: fewer rows cannot recover them."""
        return int(np.bincount(positions % self.lanes, minlength=1).max())

    @property
    def _arguments(self) -> tuple[int, int, np.uint64]:
        return self.lanes, self.rows, np.uint64(self.seed)

    def _strip(self, element: int, elements: int) -> int:
        """The lane up to which `element` of `elements` divides the lanes."""
        return self.lanes // _STRIP * element // max(elements, 1) * _STRIP


def smallest_lhc(positions: NDArray[np.int64], elements: int, seed: int = 0) -> LhcLayout | None:
    """The smallest layout, in steps of 5 %, that recovers all; None if none up to a cell an element does.

    Sizes are tried upwards from as many rows as the heaviest lane has candidates.
    """
    layout = LhcLayout(1, seed)
    rows = max(layout.heaviest_lane(positions), 1)
    while (layout := LhcLayout(rows, seed)).cells <= max(elements, LHC_LANES):
        if not layout.peeled(positions).left:
            return layout
        rows = max(rows + 1, int(rows * _ROWS_STEP))
    return None
