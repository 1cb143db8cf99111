"""The segments of a step: the tensors' places in its dense and its sparse vector.

The dense segments come first, and their elements lie end to end in the dense vector. The sparse segments lie
in the sparse vector, each from a multiple of `ROW` elements on. A row is up to `ROW` successive elements of a
segment. A block, whose elements have the same scale, is one row or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.arrays import Numbers
from peelsum.codec.cpu import scales
from peelsum.codec.layout import WORD_BITS

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
        #: What a device has derived from the table, by keys of the device.
        self.derived: dict[Any, Any] = {}

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.segments)

    @cached_property
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


def ends(lengths: NDArray[np.int64]) -> Numbers:
    """Return where each of several pieces begins that lie end to end, and where the last one ends."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds
