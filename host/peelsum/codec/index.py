"""Sizes and layouts of the index: which elements are non-zero on any worker, in forms that OR adds up.

Pure arithmetic; the bits themselves are the kernels' work. Blocked Bloom filters are Putze, Sanders and
Singler's idea (WEA'07), turned round: here it is the elements that are blocked, 32 of them to a word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from peelsum.codec.errors import CodecError

#: Elements per word of a bitmap, and per block of a Bloom filter.
WORD_BITS = 32
#: Blocks of 2**0 to 2**12 elements are counted where the size of an index is chosen.
BLOCK_SIZES = 13
_MOST_HASHES = 32
_MOST_ROWS = 2**27
_WORD = 2**64 - 1


@dataclass(frozen=True)
class BloomLayout:
    """A Bloom filter of `hashes` sub-tables of `rows` words.

    Word w of a bitmap is OR-ed, rotated left by r_j(w) bits, into row h_j(w) of sub-table j, so 32 elements
    are encoded or tested at a time. The mixer's value of w (see `peelsum.codec.layout.mix`) has a lower half
    x and an upper half y, whose lowest bit is then set; of (x + j * y) modulo 2**32, h_j is the number scaled
    to `rows`, r_j its lowest five bits. (One value of a good hash does for many: Kirsch and Mitzenmacher.)
    Raises CodecError for sizes that cannot be laid out.
    """

    hashes: int
    rows: int
    seed: int

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
        """The filter of `hashes` sub-tables that `candidates` non-zeros fill half: its best size.

        The largest there is, for more candidates than fill half of that.
        """
        rows = math.ceil(candidates / (WORD_BITS * math.log(2)))
        return cls(hashes, min(max(rows, 1), _MOST_ROWS - 1), seed)


def index_words(elements: int) -> int:
    """Words of a bitmap of `elements` bits."""
    return -(-elements // WORD_BITS)


def block_words(elements: int, block: int) -> int:
    """Words of a bitmap of blocks of `block` elements. Raises CodecError unless `block` is a power of 2."""
    if block < 2 or block & (block - 1):
        raise CodecError(f"block: {block} elements cannot be a block; use a power of 2 from 2 on")
    return index_words(-(-elements // block))
