"""The index of a tensor on its way: each form as part of a plan, with what it writes and reads.

A form turns a bitmap of non-zeros into words to be OR-ed, and their OR into a bitmap of candidates, which
covers every non-zero. Where the form is `refined`, the candidates' own bits are OR-ed in one more exchange,
so that only non-zeros are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from peelsum.allreduce.summation import Words
from peelsum.codec import BloomLayout, Kernels, Memory, block_words, index_words

IndexForm = Literal["bitmap", "two_level", "bloom"]
INDEX_FORMS: tuple[IndexForm, ...] = ("bitmap", "two_level", "bloom")


@dataclass(frozen=True)
class BitmapIndex:
    """A bit per element."""

    form: ClassVar[IndexForm] = "bitmap"
    refined: ClassVar[bool] = False

    def words(self, elements: int) -> int:
        """Words to be OR-ed first."""
        return index_words(elements)

    def encode(self, ops: Kernels, bitmap: Words, elements: int, seed: int, out: Words) -> None:
        """Write a worker's `bitmap` of `elements` bits into out[words(elements)]."""
        out[:] = bitmap

    def decode(self, ops: Kernels, words: Words, elements: int, seed: int, memory: Memory) -> Words:
        """Bitmap of candidates, in `memory`, by the OR over workers."""
        return words


@dataclass(frozen=True)
class TwoLevelIndex:
    """A bit per block of `block` elements, a power of 2; then those of all elements of the union's blocks."""

    block: int
    form: ClassVar[IndexForm] = "two_level"
    refined: ClassVar[bool] = True

    def words(self, elements: int) -> int:
        """See `BitmapIndex.words`."""
        return block_words(elements, self.block)

    def encode(self, ops: Kernels, bitmap: Words, elements: int, seed: int, out: Words) -> None:
        """See `BitmapIndex.encode`."""
        ops.block_encode(bitmap, elements, self.block, out)

    def decode(self, ops: Kernels, words: Words, elements: int, seed: int, memory: Memory) -> Words:
        """See `BitmapIndex.decode`."""
        out = memory.words(index_words(elements))
        ops.block_decode(words, elements, self.block, out)
        return out


@dataclass(frozen=True)
class BloomIndex:
    """A Bloom filter of `hashes` sub-tables of `rows` words; its seed is the step's.

    Unrefined, false positives stay candidates, whose sum comes out as 0.
    """

    hashes: int
    rows: int
    refined: bool
    form: ClassVar[IndexForm] = "bloom"

    def words(self, elements: int) -> int:
        """See `BitmapIndex.words`."""
        return self.hashes * self.rows

    def encode(self, ops: Kernels, bitmap: Words, elements: int, seed: int, out: Words) -> None:
        """See `BitmapIndex.encode`."""
        ops.bloom_encode(self._layout(seed), bitmap, out)

    def decode(self, ops: Kernels, words: Words, elements: int, seed: int, memory: Memory) -> Words:
        """See `BitmapIndex.decode`."""
        out = memory.words(index_words(elements))
        ops.bloom_decode(self._layout(seed), words, elements, out)
        return out

    def _layout(self, seed: int) -> BloomLayout:
        return BloomLayout(self.hashes, self.rows, seed)


Index = BitmapIndex | TwoLevelIndex | BloomIndex
