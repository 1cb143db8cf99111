"""The table of a step's segments: where the tensors lie in its two vectors, and how their scales are cut.

The dense segments come first, and their elements lie end to end in the dense vector. The sparse segments lie
in the sparse vector, each from a multiple of `ROW` elements on. A row is up to `ROW` successive elements of a
segment. Blocks of scales are one row or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.arrays import Floats, Integers, Words
from peelsum.codec.arrays import Numbers as _Places
from peelsum.codec.cpu import scales
from peelsum.codec.index import WORD_BITS

#: Elements of a row, a word of the sparse vector's bitmap.
ROW = WORD_BITS


class Segment(NamedTuple):
    """A tensor's row in the table."""

    elements: int
    """Number of elements, 1 or more."""
    sparse: bool
    """Whether it lies in the sparse vector."""
    block: int = ROW
    """Elements of a block with its own scale, a power of 2 from `ROW` on."""


class Table:
    """The segments of a step, the dense ones first. Nothing of it changes."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        #: Number of dense segments.
        self.dense = sum(not one.sparse for one in segments)
        #: int64[segments]: elements of each segment, and of its blocks.
        self.elements = np.array([one.elements for one in segments], np.int64)
        self.block = np.array([one.block for one in segments], np.int64)
        #: int64[segments + 1]: each segment's first element, block and row among those of all, and the end.
        self.begins = ends(self.elements)
        self.blocks = ends(-(-self.elements // self.block))
        self.rows = ends(-(-self.elements // ROW))
        #: Words that agree on scales: one for each segment, and one for each block.
        self.scale_words = len(self.segments) + int(self.blocks[-1])
        #: Words of the sparse vector's bitmap.
        self.words = int(self.rows[-1] - self.rows[self.dense])

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.segments)

    @property
    def first_words(self) -> _Places:
        """Each sparse segment's first word in the bitmap, and the end: int64[sparse + 1]."""
        words: _Places = self.rows[self.dense :] - self.rows[self.dense]
        return words

    @cached_property
    def segment_of_row(self) -> _Places:
        """The number of each row's segment: int64[rows]."""
        return np.repeat(np.arange(len(self)), np.diff(self.rows))

    @cached_property
    def begin_of_row(self) -> _Places:
        """Each row's first element among those of all segments, and the end: int64[rows + 1]."""
        of = self.segment_of_row
        begins = self.begins[of] + ROW * (np.arange(of.size) - self.rows[of])
        return np.append(begins, self.begins[-1])

    @cached_property
    def block_of_row(self) -> _Places:
        """The number of each row's block: int64[rows]."""
        of = self.segment_of_row
        blocks: _Places = self.blocks[of] + (np.arange(of.size) - self.rows[of]) // (self.block[of] // ROW)
        return blocks

    def located(self, flags: NDArray[np.bool_]) -> Located:
        """Return the elements of the flagged blocks, bool[blocks], in order."""
        return Located(*scales.located(flags, self.begins, self.rows, self.blocks, self.block))

    def segments_at(self, elements: _Places) -> _Places:
        """Return the segments of elements that are counted among those of all."""
        found: _Places = np.searchsorted(self.begins, elements, side="right") - 1
        return found

    def blocks_at(self, elements: _Places) -> _Places:
        """Return the blocks of elements that are counted among those of all."""
        of = self.segments_at(elements)
        blocks: _Places = self.blocks[of] + (elements - self.begins[of]) // self.block[of]
        return blocks


class Located(NamedTuple):
    """Elements, and where they are: int64[k] each."""

    elements: _Places
    """Their numbers among those of all segments, ascending."""
    segments: _Places
    """Their segments."""
    blocks: _Places
    """Their blocks."""
    places: _Places
    """Where they would lie if every segment, dense or sparse, began with a row."""

    def take(self, which: NDArray[np.bool_] | _Places | slice) -> Located:
        """Return some of them, in order."""
        return Located(*(one[which] for one in self))


class Counts(NamedTuple):
    """Counts of each segment's numbers: int64[segments] each."""

    own: _Places
    """Those of this worker that are not 0."""
    total: _Places
    """Those of the dense sums that are not 0; 0 for sparse segments."""
    sent: _Places
    """Those that were sent: all elements of a dense segment, or the candidates of a sparse one."""


class SegmentCodec(Protocol):
    """Encodes the tensors of one step, and decodes their sums. The calls of a step come in this order.

    Arrays lie in the implementation's memory, unless stated otherwise. Bitmaps, sums and results are those of
    the whole step. Segments that are zero on all workers, or not finite, send no dense numbers.
    """

    fields: Integers
    """After `read_scales`, each segment's field, as `reference.scales.decoded` returns it, on the host."""
    scales: Integers
    """After `read_scales`, int32[blocks]: a block's values are multiplied by 2**scale. On the host."""

    @property
    def sent(self) -> _Places:
        """After `place`, int64[segments]: how many numbers of each segment are sent. On the host."""

    def write_scales(self, out: Words) -> Words:
        """Write this worker's words of scales, uint32[table.scale_words]; return its bitmap of non-zeros.

        It is uint32[table.words], of the sparse vector. -0.0 is zero, NaN is not.
        """

    def read_scales(self, words: Words) -> None:
        """Read the OR of workers' words of scales, on the host."""

    def use(self, fields: Integers, scales: Integers) -> None:
        """Take other fields and scales than those that `read_scales` found, on the host; keep the arrays."""

    def values_at(self, elements: _Places) -> Floats:
        """Return values of this worker by their numbers among all elements, on the host; before `read`."""

    def place(self, union: Words) -> tuple[int, int]:
        """Take the candidates' bitmap; return how many dense and how many sparse numbers are sent.

        It can be called again, with the candidates that are left.
        """

    def write_dense(self, out: Integers) -> None:
        """Write rint(value * 2**scale) of the dense segments, end to end.

        The product is computed in float64 and rounded half to even.
        """

    def gather(self, out: Integers) -> None:
        """Write the numbers of the candidates, in order."""

    def read(
        self, dense: Integers, sparse: Integers, divisor: int, wide: tuple[_Places, Floats] | None = None
    ) -> Sequence[Floats]:
        """Return each segment's result, number * 2**-scale / divisor, computed in float64.

        Elements that are not candidates are 0. A segment that is not finite on some worker is NaN.
        wide: elements, by their numbers among all, that have other results, and these; on the host.
        """

    def counts(self, dense: Integers, sparse: Integers, own: tuple[Integers, Integers]) -> Counts:
        """Return counts, after `read` of the same sums. own: this worker's dense and sparse numbers."""

    def occupied(self, sparse: Integers, wanted: _Places) -> _Places:
        """Return counts of the blocks of 2**b elements whose sum is not all 0: int64[segments, BLOCK_SIZES].

        Dense segments have none. wanted: int64[segments], not 0 for the segments that are counted.
        """


def ends(lengths: NDArray[np.int64]) -> _Places:
    """Return where each of several pieces begins that lie back to back, and where the last ends."""
    places = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=places[1:])
    return places
