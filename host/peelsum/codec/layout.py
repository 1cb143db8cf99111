"""Compute where each element of a tensor lies in the rotated block count sketch.

Lossless homomorphic sketches are LHC's (arXiv 2402.07529). The rotation per sub-table is our addition, see
docs/reference/codec.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from peelsum.codec.errors import CodecError

#: Every element lies in one cell of each sub-table.
SUB_TABLES = 3
#: The most candidates of a segment of a known union. Its cells stay in a core's second-level cache.
SEGMENT = 2**16
#: The most candidates that are expected in a segment of a sketch that is sent ahead of its union.
SEGMENT_AHEAD = 2**18
#: Cells per candidate with which peeling finishes in practice, and fast; below about 1.25 it does not.
CELLS_PER_CANDIDATE = 1.4
#: With so few cells per candidate, 99 of 100 sketches of so many candidates or more are peeled completely.
FEWEST_CELLS, MANY_CANDIDATES = 1.3, 1000
_WORD = 2**64 - 1

# One mixer of (block, sub-table, seed) gives row, rotation and sign: SplitMix64's finalizer.
MIX_STEP = 0x9E3779B97F4A7C15
MIX_FIRST = 0xBF58476D1CE4E5B9
MIX_SECOND = 0x94D049BB133111EB
#: The mixer's counter for the first group of blocks; counters of blocks and sub-tables lie below.
FIRST_GROUP = 2**62


@dataclass(frozen=True)
class SketchLayout:
    """A sketch of `segments` segments, each of SUB_TABLES sub-tables of `rows` rows of `lanes` cells.

    Element i is lane i % lanes of block i // lanes. In sub-table j it is added to lane
    (lane + r_j(block)) % lanes of row h_j(block), with sign g_j(block). If there are several segments, this
    is in segment k // `share`, where k is the element's rank among the candidates. If the layout is `dealt`,
    it is in segment (block + t(block // segments)) % segments instead, where t is hashed: of each `segments`
    successive blocks, every segment has one. Raises CodecError for a field that is out of range.
    """

    lanes: int
    """Cells per row, and elements per block."""
    rows: int
    """Rows per sub-table."""
    seed: int
    """Seed of the hashes, 0 to 2**64 - 1."""
    segments: int = 1
    """Number of segments."""
    share: int = SEGMENT
    """Candidates of each segment but the last, which may have fewer; unused with one, or if `dealt`."""
    dealt: bool = False
    """Whether blocks are dealt out to the segments, so that a worker can encode before it knows the union."""

    def __post_init__(self) -> None:
        for name in ("lanes", "rows", "segments", "share"):
            value = getattr(self, name)
            if not 1 <= value < 2**31:
                raise CodecError(f"{name}: {value} is out of range; use 1 to 2**31 - 1")
        if not 0 <= self.seed <= _WORD:
            raise CodecError(f"seed: {self.seed} does not fit 64 bits; use 0 to 2**64 - 1")

    @property
    def cells(self) -> int:
        """Cells in all: the sketch is uint32[cells], by segment, sub-table and row."""
        return self.segments * self.segment_cells

    @property
    def segment_cells(self) -> int:
        """Cells of a segment."""
        return SUB_TABLES * self.rows * self.lanes

    @property
    def dealt_to(self) -> int:
        """Segments to which blocks are dealt; 1 if segments are cut by candidates, or there is only one."""
        return self.segments if self.dealt else 1

    def slices(self, candidates: int) -> list[tuple[int, int]]:
        """Return the range of candidates, begin and end, of every segment, if the layout is not `dealt`."""
        if self.segments == 1:
            return [(0, candidates)]
        begins = range(0, self.segments * self.share, self.share)
        return [(min(begin, candidates), min(begin + self.share, candidates)) for begin in begins]

    @classmethod
    def sized(
        cls, candidates: int, lanes: int, seed: int, cells_per_candidate: float = CELLS_PER_CANDIDATE
    ) -> SketchLayout:
        """Return the smallest layout with at least `candidates` * `cells_per_candidate` cells.

        Raises CodecError unless `cells_per_candidate` is finite and positive.
        """
        if not cells_per_candidate > 0 or not math.isfinite(cells_per_candidate):
            raise CodecError(
                f"cells_per_candidate: {cells_per_candidate} is not positive and finite; use 1.3 or more"
            )
        rows = math.ceil(candidates * cells_per_candidate / (SUB_TABLES * lanes))
        return cls(lanes, max(rows, 1), seed)

    @classmethod
    def segmented(
        cls, candidates: int, lanes: int, seed: int, cells_per_candidate: float = CELLS_PER_CANDIDATE
    ) -> SketchLayout:
        """Return a layout like `sized`, in segments of at most SEGMENT candidates, for a known union."""
        segments = max(-(-candidates // SEGMENT), 1)
        share = max(-(-candidates // segments), 1)
        one = cls.sized(share if segments > 1 else candidates, lanes, seed, cells_per_candidate)
        return replace(one, segments=segments, share=share)

    @classmethod
    def ahead(
        cls, candidates: int, lanes: int, seed: int, cells_per_candidate: float = CELLS_PER_CANDIDATE
    ) -> SketchLayout:
        """Return a layout like `sized`, for a sketch that is sent ahead of its union.

        Blocks are dealt to segments for which SEGMENT_AHEAD candidates or fewer are expected. Up to twice as
        many candidates have one segment, because dealing takes about as long as it would save.
        """
        segments = -(-candidates // SEGMENT_AHEAD) if candidates > 2 * SEGMENT_AHEAD else 1
        one = cls.sized(-(-candidates // segments), lanes, seed, cells_per_candidate)
        return replace(one, segments=segments, dealt=segments > 1)


def mix(value: int) -> int:
    """Apply SplitMix64's finalizer: a bijection of 64-bit integers whose output bits look independent."""
    value = (value ^ value >> 30) * MIX_FIRST & _WORD
    value = (value ^ value >> 27) * MIX_SECOND & _WORD
    return value ^ value >> 31
