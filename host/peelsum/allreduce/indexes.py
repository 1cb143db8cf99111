"""The forms in which the index of a part of the sparse vector is sent.

A form encodes a bitmap of non-zeros as words to be OR-ed, and decodes their OR to a bitmap of candidates,
which includes every non-zero. If the form is `refined`, the candidates' own bits follow in another exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from peelsum.codec import BLOCK_SIZES, BloomLayout, CodecDevice, block_words, index_words
from peelsum.summation import Words

IndexForm = Literal["bitmap", "blocks", "bloom"]
_WORD_BITS = 32
#: A filter with fewer empty bits than this is full: it says little about the number of its elements.
_FEW = 8


@dataclass(frozen=True)
class UnionCounts:
    """Where a tensor has non-zeros on any worker, its union, as counts of occupied blocks."""

    occupied: tuple[float, ...]
    """For each b from 0 on, the number of blocks of 2**b elements that hold a non-zero of the union."""

    @property
    def non_zeros(self) -> float:
        """Non-zeros in the union."""
        return self.occupied[0]

    @staticmethod
    @lru_cache(1024)  # of most tensors of a model, density stays 1
    def uniform(elements: int, density: float) -> UnionCounts:
        """Return the expected counts if each of `elements` elements is non-zero with this probability."""
        blocks = ((2**b, elements / 2**b) for b in range(BLOCK_SIZES))
        return UnionCounts(tuple(count * (1 - (1 - density) ** size) for size, count in blocks))


@dataclass(frozen=True)
class BitmapIndex:
    """A bit per element."""

    form: ClassVar[IndexForm] = "bitmap"
    refined: ClassVar[bool] = False

    def words(self, elements: int) -> int:
        """Return the number of words of the first exchange."""
        return index_words(elements)

    def passed(self, elements: int, seen: UnionCounts) -> float:
        """Return the expected number of candidates of a tensor with this union."""
        return seen.non_zeros

    def encode(self, device: CodecDevice, bitmap: Words, elements: int, seed: int, out: Words) -> None:
        """Write a worker's `bitmap` of `elements` bits into out[words(elements)]."""
        out[:] = bitmap

    def decode(self, device: CodecDevice, words: Words, elements: int, seed: int) -> Words:
        """Return the bitmap of candidates, on the device, from the OR of all workers' words."""
        return words


@dataclass(frozen=True)
class BlockIndex:
    """A bit per block, whose elements are all candidates."""

    block: int
    """Elements per block, a power of 2 from 2 on."""
    refined: bool
    """Whether a bit per element of the union's blocks follows."""
    form: ClassVar[IndexForm] = "blocks"

    def words(self, elements: int) -> int:
        """Return the number of words of the first exchange: a bit per block."""
        return block_words(elements, self.block)

    def passed(self, elements: int, seen: UnionCounts) -> float:
        """Return the expected number of candidates: all elements of occupied blocks."""
        return min(seen.occupied[self.block.bit_length() - 1] * self.block, elements)

    def encode(self, device: CodecDevice, bitmap: Words, elements: int, seed: int, out: Words) -> None:
        """Write the bitmap of the blocks in which a worker has a non-zero."""
        device.block_encode(bitmap, elements, self.block, out)

    def decode(self, device: CodecDevice, words: Words, elements: int, seed: int) -> Words:
        """Return the bitmap of candidates: all elements of the blocks."""
        out = device.words(index_words(elements))
        device.block_decode(words, elements, self.block, out)
        return out


@dataclass(frozen=True)
class BloomIndex:
    """A Bloom filter, with a new seed in each step."""

    hashes: int
    """Number of sub-tables."""
    rows: int
    """Words per sub-table."""
    refined: bool
    """Whether the candidates' bits follow; if not, false positives stay candidates, with a sum of 0."""
    form: ClassVar[IndexForm] = "bloom"

    def words(self, elements: int) -> int:
        """Return the number of words of the first exchange: the filter."""
        return self.hashes * self.rows

    def passed(self, elements: int, seen: UnionCounts) -> float:
        """Return the expected number of candidates: non-zeros, and false positives."""
        filled = -math.expm1(-seen.non_zeros / (_WORD_BITS * self.rows))
        return seen.non_zeros + (elements - seen.non_zeros) * filled**self.hashes

    def encode(self, device: CodecDevice, bitmap: Words, elements: int, seed: int, out: Words) -> None:
        """Write the Bloom filter of a worker's bitmap."""
        device.bloom_encode(BloomLayout(self.hashes, self.rows, seed), bitmap, out)

    def decode(self, device: CodecDevice, words: Words, elements: int, seed: int) -> Words:
        """Return the bitmap of candidates: the elements that pass the filter."""
        out = device.words(index_words(elements))
        device.bloom_decode(BloomLayout(self.hashes, self.rows, seed), words, elements, out)
        return out

    def estimate(self, filled: int) -> tuple[float, bool]:
        """Estimate the number of elements in a filter with `filled` bits set; return also whether it is full.

        The method is linear counting, by Whang et al. 1990. A full filter shows only that there are many
        elements; the estimate is then too low.
        """
        bits = _WORD_BITS * self.words(0)
        empty = bits - filled
        return _WORD_BITS * self.rows * math.log(bits / max(empty, 0.5)), empty < _FEW


Index = BitmapIndex | BlockIndex | BloomIndex
