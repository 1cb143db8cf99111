"""Sizes and layouts of the index, which says which elements are non-zero on any worker, and of the sketch.

Workers' indexes are combined by OR. The Bloom filter is a variant of the blocked filters of Putze, Sanders
and Singler (WEA'07): here the elements are in blocks of 32, one word each.

A sketch is a count sketch, cut into segments, in whose cells each element is added. Lossless homomorphic
sketches are LHC's (arXiv 2402.07529). LHC hashes blocks of elements, each of which keeps its lane; here every
element is hashed by itself, see docs/reference/codec.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from peelsum.codec.arrays import CodecError

#: Elements per word of a bitmap, and per block of a Bloom filter.
WORD_BITS = 32
#: Block sizes, 2**0 to 2**12 elements, whose occupied blocks are counted to choose an index.
BLOCK_SIZES = 13
_MOST_HASHES = 32
_MOST_ROWS = 2**27
_WORD = 2**64 - 1

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

    @cached_property
    def cells(self) -> int:
        """Cells in all: the sketch is uint32[cells], by segment and sub-table."""
        return self.segments * SUB_TABLES * self.width

    @cached_property
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
        cls, candidates: int, seed: int, cells_per_candidate: float | None = MIN_CELLS_PER_CANDIDATE
    ) -> SketchLayout:
        """Return the smallest layout with at least `candidates` * `cells_per_candidate` cells.

        Its number of segments is the least power of two with SEGMENT candidates or fewer expected in each,
        and a width of MOST_WIDTH or less. cells_per_candidate: None for as many as `enough_cells` returns.
        Raises CodecError unless it is finite and positive, and if no layout `holds` the candidates.
        """
        width, segments = _sketch_size(candidates, cells_per_candidate)
        return cls(width, seed, segments)


@lru_cache(256)  # steps without a sketch, and those of constant density, have the same size each time
def _sketch_size(candidates: int, cells_per_candidate: float | None) -> tuple[int, int]:
    """Return width and number of segments of `SketchLayout.sized`."""
    if cells_per_candidate is None:
        cells_per_candidate = enough_cells(candidates)
    if not cells_per_candidate > 0 or not math.isfinite(cells_per_candidate):
        raise CodecError(
            f"cells_per_candidate: {cells_per_candidate} is not positive and finite; use 1.3 or more"
        )
    if not SketchLayout.holds(candidates, cells_per_candidate):
        raise CodecError(
            f"candidates: no sketch holds {candidates} with {cells_per_candidate} cells each; use "
            f"values='compact'"
        )
    cells = candidates * cells_per_candidate
    least = math.ceil(max(candidates / SEGMENT, cells / (SUB_TABLES * MOST_WIDTH), 1))
    segments = 1 << (least - 1).bit_length()
    return max(math.ceil(cells / (SUB_TABLES * segments)), 1), segments


def enough_cells(candidates: float) -> float:
    """Return the fewest cells per candidate at which peeling almost always finds all candidates."""
    if candidates >= MANY_CANDIDATES:
        return MIN_CELLS_PER_CANDIDATE
    return MIN_CELLS_PER_CANDIDATE + SPARE_CELLS / max(candidates, 1.0)


def mix(value: int) -> int:
    """Apply SplitMix64's finalizer: a bijection of 64-bit integers whose output bits look independent."""
    value = (value ^ value >> 30) * MIX_FIRST & _WORD
    value = (value ^ value >> 27) * MIX_SECOND & _WORD
    return value ^ value >> 31


@dataclass(frozen=True)
class BloomLayout:
    """A Bloom filter of `hashes` sub-tables of `rows` words.

    Word w of a bitmap is rotated left by r_j(w) bits and OR-ed into row h_j(w) of sub-table j, so 32 elements
    are encoded or tested at a time. Both hashes derive from one mixed value of w
    (`mix`). x is its lower half, y its upper half with the lowest bit set, and z = (x +
    j * y) modulo 2**32. Then h_j is z scaled to `rows`, and r_j is the lowest five bits of z (double hashing:
    Kirsch and Mitzenmacher). Raises CodecError for a field that is out of range.
    """

    hashes: int
    """Number of sub-tables, 1 to 32."""
    rows: int
    """Words per sub-table, 1 to 2**27 - 1."""
    seed: int
    """Seed of the hashes, 0 to 2**64 - 1."""

    def __post_init__(self) -> None:
        if not 1 <= self.hashes <= _MOST_HASHES:
            raise CodecError(f"hashes: {self.hashes} is out of range; use 1 to {_MOST_HASHES}")
        if not 1 <= self.rows < _MOST_ROWS:
            raise CodecError(f"rows: {self.rows} is out of range; use 1 to {_MOST_ROWS - 1}")
        if not 0 <= self.seed <= _WORD:
            raise CodecError(f"seed: {self.seed} does not fit 64 bits; use 0 to 2**64 - 1")

    @property
    def words(self) -> int:
        """Words of all sub-tables: the filter is uint32[words], sub-table by sub-table."""
        return self.hashes * self.rows

    @classmethod
    def sized(cls, candidates: int, hashes: int, seed: int) -> BloomLayout:
        """Return the filter with `hashes` sub-tables of which `candidates` non-zeros set half of the bits.

        A half-full filter has the fewest false positives for its size. The size is limited to 2**27 - 1 rows.
        """
        rows = math.ceil(candidates / (WORD_BITS * math.log(2)))
        return cls(hashes, min(max(rows, 1), _MOST_ROWS - 1), seed)


def index_words(elements: int) -> int:
    """Return the number of words in a bitmap of `elements` bits."""
    return -(-elements // WORD_BITS)


def block_words(elements: int, block: int) -> int:
    """Return the number of words in a bitmap of blocks of `block` elements.

    Raises CodecError unless `block` is a power of 2 and at least 2.
    """
    if block < 2 or block & (block - 1):
        raise CodecError(f"block: {block} elements cannot form a block; use a power of 2, e.g. 32")
    return index_words(-(-elements // block))
