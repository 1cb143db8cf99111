"""The layout of a sketch: a count sketch, cut into segments, in whose cells each element is added.

Lossless homomorphic sketches are LHC's (arXiv 2402.07529). LHC hashes blocks of elements, each of which keeps
its lane; here every element is hashed by itself, see docs/reference/codec.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from peelsum.codec.errors import CodecError

#: Every element is added to one cell of each sub-table.
SUB_TABLES = 3
#: The most candidates that are expected in a segment: peeling it takes place in a core's second-level cache.
SEGMENT = 2**15
#: A segment with more candidates is not peeled: all of them are left over.
MOST_CANDIDATES = 2**16
#: The most cells of a sub-table, whose number and a sign share 16 bits; the most segments, drawn with 13.
MOST_WIDTH, MOST_SEGMENTS = 2**15, 2**13

#: With FEWEST_CELLS a candidate, 99 of 100 sketches of MANY_CANDIDATES to 2**19 are peeled completely.
MIN_CELLS_PER_CANDIDATE, MANY_CANDIDATES = 1.3, 1000
#: With so many cells more, 97 of 100 sketches of fewer candidates are.
SPARE_CELLS = 60
_WORD = 2**64 - 1

# One mixer of (element, seed) gives segment, cells and signs: SplitMix64's finalizer.
MIX_STEP = 0x9E3779B97F4A7C15
MIX_FIRST = 0xBF58476D1CE4E5B9
MIX_SECOND = 0x94D049BB133111EB
#: Of its 64 bits, sub-table j has the `DRAWN_BITS` from j * `DRAWN_BITS` on: a sign, and the cell's number as
#: a share of 2**`CELL_BITS`. The segment has those from `SEGMENT_BIT` on.
DRAWN_BITS, CELL_BITS, SEGMENT_BIT = 17, 16, 51


@dataclass(frozen=True)
class SketchLayout:
    """A sketch of `segments` segments, each of SUB_TABLES sub-tables of `width` cells.

    An element is added to one cell of each sub-table of one segment, with a sign; all are hashed from its
    number and the seed. Raises CodecError for a field that is out of range.
    """

    width: int
    """Cells of a sub-table, 1 to 2**15."""
    seed: int
    """Seed of the hashes, 0 to 2**64 - 1."""
    segments: int = 1
    """Number of segments: a power of two, up to 2**13."""

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MOST_WIDTH:
            raise CodecError(f"width: {self.width} is out of range; use 1 to {MOST_WIDTH}")
        if not 0 <= self.seed <= _WORD:
            raise CodecError(f"seed: {self.seed} does not fit 64 bits; use 0 to 2**64 - 1")
        if not 1 <= self.segments <= MOST_SEGMENTS or self.segments & self.segments - 1:
            raise CodecError(
                f"segments: {self.segments} is out of range; use a power of two up to {MOST_SEGMENTS}"
            )

    @property
    def cells(self) -> int:
        """Cells in all: the sketch is uint32[cells], by segment and sub-table."""
        return self.segments * self.segment_cells

    @property
    def segment_cells(self) -> int:
        """Cells of a segment."""
        return SUB_TABLES * self.width

    @staticmethod
    def holds(candidates: float, cells_per_candidate: float) -> bool:
        """Return whether a layout with at least `candidates` * `cells_per_candidate` cells exists."""
        cells = candidates * cells_per_candidate
        return candidates <= SEGMENT * MOST_SEGMENTS and cells <= SUB_TABLES * MOST_WIDTH * MOST_SEGMENTS

    @classmethod
    def sized(
        cls, candidates: int, seed: int, cells_per_candidate: float = MIN_CELLS_PER_CANDIDATE
    ) -> SketchLayout:
        """Return the smallest layout with at least `candidates` * `cells_per_candidate` cells.

        Its number of segments is the least power of two with SEGMENT candidates or fewer expected in each,
        and a width of MOST_WIDTH or less. Raises CodecError unless
        `cells_per_candidate` is finite and positive, and if no layout `holds` the candidates.
        """
        if not cells_per_candidate > 0 or not math.isfinite(cells_per_candidate):
            raise CodecError(
                f"cells_per_candidate: {cells_per_candidate} is not positive and finite; use 1.3 or more"
            )
        if not cls.holds(candidates, cells_per_candidate):
            raise CodecError(
                f"candidates: no sketch holds {candidates} with {cells_per_candidate} cells each; use "
                f"values='compact'"
            )
        cells = candidates * cells_per_candidate
        least = math.ceil(max(candidates / SEGMENT, cells / (SUB_TABLES * MOST_WIDTH), 1))
        segments = 1 << (least - 1).bit_length()
        return cls(max(math.ceil(cells / (SUB_TABLES * segments)), 1), seed, segments)


def mix(value: int) -> int:
    """Apply SplitMix64's finalizer: a bijection of 64-bit integers whose output bits look independent."""
    value = (value ^ value >> 30) * MIX_FIRST & _WORD
    value = (value ^ value >> 27) * MIX_SECOND & _WORD
    return value ^ value >> 31
