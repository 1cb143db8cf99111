"""Sizes and layouts of the index, which says which elements are non-zero on any worker.

Workers' indexes are combined by OR. The Bloom filter is a variant of the blocked filters of Putze, Sanders
and Singler (WEA'07): here the elements are in blocks of 32, one word each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from peelsum.codec.errors import CodecError

#: Elements per word of a bitmap, and per block of a Bloom filter.
WORD_BITS = 32
#: Block sizes, 2**0 to 2**12 elements, whose occupied blocks are counted to choose an index.
BLOCK_SIZES = 13
_MOST_HASHES = 32
_MOST_ROWS = 2**27
_WORD = 2**64 - 1


@dataclass(frozen=True)
class BloomLayout:
    """A Bloom filter of `hashes` sub-tables of `rows` words.

    Word w of a bitmap is rotated left by r_j(w) bits and OR-ed into row h_j(w) of sub-table j, so 32 elements
    are encoded or tested at a time. Both hashes derive from one mixed value of w
    (`peelsum.codec.layout.mix`). x is its lower half, y its upper half with the lowest bit set, and z = (x +
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
