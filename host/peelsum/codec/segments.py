"""The segments of a step: the tensors' places in its dense and its sparse vector, and the codec's interface.

The dense segments come first, and their elements lie end to end in the dense vector. The sparse segments lie
in the sparse vector, each from a multiple of `ROW` elements on. A row is up to `ROW` successive elements of a
segment. A block, whose elements have the same scale, is one row or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.arrays import Floats, Integers, Numbers, Words
from peelsum.codec.cpu import scales
from peelsum.codec.index import WORD_BITS

#: Elements of a row, a word of the sparse vector's bitmap.
ROW = WORD_BITS


class Segment(NamedTuple):
    """A tensor's entry in the table."""

    elements: int
    """Number of elements, 1 or more."""
    sparse: bool
    """Whether it lies in the sparse vector."""
    block: int = ROW
    """Elements of a block with its own scale, a power of 2 from `ROW` on."""


class SegmentTable:
    """The segments of a step, the dense ones first. Immutable.

    Elements, blocks and rows of all segments are numbered consecutively, in the order of the segments.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        #: Number of dense segments.
        self.dense = sum(not segment.sparse for segment in segments)
        #: int64[segments]: elements of each segment, and of each of its blocks.
        self.elements = np.array([segment.elements for segment in segments], np.int64)
        self.block = np.array([segment.block for segment in segments], np.int64)
        #: int64[segments + 1]: each segment's first element, block and row, and the number of all.
        self.begins = ends(self.elements)
        self.blocks = ends(-(-self.elements // self.block))
        self.rows = ends(-(-self.elements // ROW))
        #: Number of words that agree on scales: one for each segment, and one for each block.
        self.scale_words = len(self.segments) + int(self.blocks[-1])
        #: Number of words of the sparse vector's bitmap.
        self.words = int(self.rows[-1] - self.rows[self.dense])

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.segments)

    @property
    def first_words(self) -> Numbers:
        """Each sparse segment's first word in the sparse vector's bitmap, and the end: int64[sparse + 1]."""
        words: Numbers = self.rows[self.dense :] - self.rows[self.dense]
        return words

    @cached_property
    def segment_of_row(self) -> Numbers:
        """The number of each row's segment: int64[rows]."""
        return np.repeat(np.arange(len(self)), np.diff(self.rows))

    @cached_property
    def begin_of_row(self) -> Numbers:
        """Each row's first element, and the number of all elements: int64[rows + 1]."""
        segment = self.segment_of_row
        begins = self.begins[segment] + ROW * (np.arange(segment.size) - self.rows[segment])
        return np.append(begins, self.begins[-1])

    @cached_property
    def block_of_row(self) -> Numbers:
        """The number of each row's block: int64[rows]."""
        segment = self.segment_of_row
        rows = np.arange(segment.size) - self.rows[segment]
        blocks: Numbers = self.blocks[segment] + rows // (self.block[segment] // ROW)
        return blocks

    def locate_elements(self, flags: NDArray[np.bool_]) -> ElementLocations:
        """Return the elements of the flagged blocks, in order. flags: bool[blocks]."""
        arrays = scales.locate_elements(flags, self.begins, self.rows, self.blocks, self.block)
        return ElementLocations(*arrays)

    def segments_at(self, elements: Numbers) -> Numbers:
        """Return the segment of each element: int64[k] for elements[k]."""
        segments: Numbers = np.searchsorted(self.begins, elements, side="right") - 1
        return segments

    def blocks_at(self, elements: Numbers) -> Numbers:
        """Return the block of each element: int64[k] for elements[k]."""
        segment = self.segments_at(elements)
        blocks: Numbers = self.blocks[segment] + (elements - self.begins[segment]) // self.block[segment]
        return blocks


class ElementLocations(NamedTuple):
    """Some elements of a step, and where they lie: int64[k] each."""

    elements: Numbers
    """The elements, numbered over all segments, ascending."""
    segments: Numbers
    """Their segments."""
    blocks: Numbers
    """Their blocks."""
    padded: Numbers
    """Their positions in a vector of all segments in which each segment begins at a multiple of `ROW`."""

    def take(self, which: NDArray[np.bool_] | Numbers | slice) -> ElementLocations:
        """Return the locations of some of the elements, in order: every array indexed by `which`."""
        return ElementLocations(*(array[which] for array in self))


class Counts(NamedTuple):
    """Counts of each segment's integers: int64[segments] each."""

    local: Numbers
    """This worker's integers that are not 0."""
    sums: Numbers
    """Sums that are not 0, in dense segments; 0 for sparse segments."""
    sent: Numbers
    """Integers that were sent: for all elements of a dense segment, or for the candidates of a sparse one."""


class SegmentCodec(Protocol):
    """Encodes the tensors of one step, and decodes their sums. Its methods are called in this order.

    Arrays lie in the implementation's memory, unless stated otherwise. Bitmaps, sums and results are those of
    the whole step. `numbers` are values in fixed point: integers. None are sent of a dense segment that is
    zero on all workers or not finite.
    """

    fields: Integers
    """After `read_scales`, int32[segments]: an exponent field that no value of the segment exceeds on any
    worker, or `ZERO`, or `NON_FINITE`. On the host."""
    scales: Integers
    """After `read_scales`, int32[blocks]: a block's values are multiplied by 2**scale. On the host."""

    @property
    def sent(self) -> Numbers:
        """After `place`, int64[segments]: how many numbers of each segment are sent. On the host."""

    def write_scales(self, out: Words) -> Words:
        """Write the words by which workers agree on scales, uint32[table.scale_words]; return the non-zeros.

        These are a bitmap of this worker's sparse vector, uint32[table.words]. -0.0 is zero, NaN is not.
        """

    def read_scales(self, words: Words) -> None:
        """Set `fields` and `scales` from the OR of all workers' words, which is on the host."""

    def set_scales(self, fields: Integers, scales: Integers) -> None:
        """Set `fields` and `scales` to others than `read_scales` computes, on the host, without a copy."""

    def values_at(self, elements: Numbers) -> Floats:
        """Return this worker's values of elements, numbered over all segments. All on the host."""

    def set_candidates(self, union: Words) -> tuple[int, int]:
        """Set the candidates, by a bitmap of the sparse vector; return how many numbers are sent.

        These are the numbers of the dense vector and those of the sparse vector. It can be called again, with
        fewer candidates.
        """

    def write_dense(self, out: Integers) -> None:
        """Write the numbers of the dense segments, end to end: rint(value * 2**scale).

        The product is computed in float64 and rounded half to even.
        """

    def gather(self, out: Integers) -> None:
        """Write the numbers of the candidates, in order, computed as by `write_dense`."""

    def decode(
        self, dense: Integers, sparse: Integers, divisor: int, overflow: tuple[Numbers, Floats] | None = None
    ) -> Sequence[Floats]:
        """Return each segment's result, sum * 2**-scale / divisor, computed in float64.

        Elements that are not candidates are 0. A segment that is not finite on some worker is NaN.
        dense, sparse: the sums of all workers' numbers. overflow: elements, numbered over all segments, whose
        results differ from these sums, and their results; on the host.
        """

    def counts(self) -> Counts:
        """Return the counts of the step's numbers, after `read`."""

    def occupied(self, sparse: Integers, selected: Numbers) -> Numbers:
        """Count the blocks of 2**b elements with a sum that is not 0: int64[segments, BLOCK_SIZES].

        The counts of dense segments are 0. selected: int64[segments], not 0 for those to be counted.
        """


def ends(lengths: NDArray[np.int64]) -> Numbers:
    """Return where each of several pieces begins that lie end to end, and where the last one ends."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds
