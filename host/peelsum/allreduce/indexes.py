"""The forms in which a tensor's index is sent.

A form encodes a bitmap of non-zeros as words to be OR-ed, and decodes their OR to a bitmap of candidates,
which includes every non-zero. If the form is `refined`, further exchanges OR an index of the candidates, in
most cases their own bits. `peelsum.allreduce.refinement` chooses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from peelsum.codec import BloomLayout, Kernels, Memory, block_words, index_words
from peelsum.summation import Words

IndexForm = Literal["bitmap", "two_level", "bloom"]
INDEX_FORMS: tuple[IndexForm, ...] = ("bitmap", "two_level", "bloom")
_WORD_BITS = 32
#: With fewer empty bits than this, a filter says little about the number of its elements.
_FEW = 8


class Estimate(NamedTuple):
    """An estimated number of elements."""

    elements: float
    full: bool
    """Whether the filter is full, so that there may be more."""


@dataclass(frozen=True)
class BitmapIndex:
    """A bit per element."""

    form: ClassVar[IndexForm] = "bitmap"
    refined: ClassVar[bool] = False

    def words(self, elements: int) -> int:
        """Return the number of words of the first exchange."""
        return index_words(elements)

    def encode(self, ops: Kernels, bitmap: Words, elements: int, seed: int, out: Words) -> None:
        """Write a worker's `bitmap` of `elements` bits into out[words(elements)]."""
        out[:] = bitmap

    def decode(self, ops: Kernels, words: Words, elements: int, seed: int, memory: Memory) -> Words:
        """Return the bitmap of candidates, in `memory`, from the OR of all workers' words."""
        return words

    def passed(self, ops: Kernels, words: Words, elements: int) -> int | None:
        """Return the number of candidates, from the OR of all workers' words; None if that needs `decode`."""
        return ops.count(words, elements)


@dataclass(frozen=True)
class TwoLevelIndex:
    """A bit per block; then, in a second exchange, a bit per element of the union's blocks."""

    block: int
    """Elements per block, a power of 2."""
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

    def passed(self, ops: Kernels, words: Words, elements: int) -> int | None:
        """See `BitmapIndex.passed`."""
        whole, rest = divmod(elements, self.block)
        last = ops.count(words, whole + bool(rest)) - ops.count(words, whole)
        return ops.count(words, whole) * self.block + last * rest


@dataclass(frozen=True)
class BloomIndex:
    """A Bloom filter, with a new seed for each tensor and step."""

    hashes: int
    """Number of sub-tables."""
    rows: int
    """Words per sub-table."""
    refined: bool
    """Whether a further exchange is planned; if not, false positives stay candidates, with a sum of 0."""
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

    def passed(self, ops: Kernels, words: Words, elements: int) -> int | None:
        """See `BitmapIndex.passed`."""
        return None

    def estimate(self, filled: int) -> Estimate:
        """Estimate the number of elements in a filter with `filled` bits set, by linear counting.

        The method is that of Whang et al. 1990.

        A full filter shows only that there are many; the estimate is then too low.
        """
        bits = _WORD_BITS * self.words(0)
        empty = bits - filled
        return Estimate(_WORD_BITS * self.rows * math.log(bits / max(empty, 0.5)), empty < _FEW)

    def _layout(self, seed: int) -> BloomLayout:
        return BloomLayout(self.hashes, self.rows, seed)


Index = BitmapIndex | TwoLevelIndex | BloomIndex
