"""Find the fewest words that LHC's paper allows: any batch, and a bitmap or a Bloom filter as the index.

LHC's program fixes what its paper leaves open: 1024 lanes, and four bits of index for each element. A switch
that ORs lets one bit suffice, or a Bloom filter, whose false positives take cells of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.lhc import LHC_LANES, LhcLayout, smallest_lhc

#: Batches to try. With fewer lanes a table is smaller, until hashing costs more than it saves.
BATCHES = tuple(2**bits for bits in range(5, LHC_LANES.bit_length()))
_MOST_HASHES = 32

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class FewestWords:
    """An index of `index_words`, and the smallest table that recovers the candidates that pass it."""

    layout: LhcLayout
    index_words: int
    candidates: Positions
    """The non-zeros, and a Bloom filter's false positives."""

    @property
    def words(self) -> int:
        """Words that a worker sends."""
        return self.index_words + self.layout.cells


def fewest_words(positions: Positions, elements: int, seed: int = 0) -> FewestWords | None:
    """Return the way with the fewest words for these non-zeros; None if no table recovers them."""
    return min(_ways(positions, elements, seed), key=lambda table: table.words, default=None)


def _ways(positions: Positions, elements: int, seed: int) -> Iterator[FewestWords]:
    """Yield each batch's table with a bitmap and, if the formula prefers it, with a Bloom filter."""
    for lanes in BATCHES:
        table = smallest_lhc(positions, elements, seed, lanes=lanes, index_bits=1)
        if table is None:
            continue
        yield FewestWords(table, -(-elements // 32), positions)
        hashes = best_hashes(positions.size, elements, table.cells / max(positions.size, 1))
        if not hashes:
            continue
        words = filter_words(positions.size, hashes)
        candidates = passing(positions, elements, words, hashes, seed)
        table = smallest_lhc(candidates, elements, seed, lanes=lanes, index_bits=1)
        if table is not None:
            yield FewestWords(table, words, candidates)


def best_hashes(non_zeros: int, elements: int, cells: float) -> int:
    """Return the hash functions of the filter with the fewest words, 0 for a bitmap.

    A half-full filter of h functions has h / ln 2 bits for each non-zero, and lets another element pass with
    probability 2**-h. Such an element takes `cells` cells of 32 bits.
    """
    zeros = elements - non_zeros
    bits = [float(elements)]
    bits += [non_zeros * h / math.log(2) + 32 * cells * zeros / 2**h for h in range(1, _MOST_HASHES + 1)]
    return bits.index(min(bits))


def filter_words(non_zeros: int, hashes: int) -> int:
    """Return the words of a filter that is half full of these non-zeros."""
    return max(math.ceil(non_zeros * hashes / math.log(2) / 32), 1)


def passing(positions: Positions, elements: int, words: int, hashes: int, seed: int = 0) -> Positions:
    """Return the elements that pass a Bloom filter of these positions, ascending."""
    bits = np.zeros(32 * words, bool)
    for number in range(hashes):
        bits[_hashed(positions, number, seed) % bits.size] = True
    candidates = np.arange(elements)
    for number in range(hashes):
        candidates = candidates[bits[_hashed(candidates, number, seed) % bits.size]]
    return candidates


def _hashed(positions: Positions, number: int, seed: int) -> NDArray[np.uint64]:
    """Return a hash of each position that behaves as random (splitmix64's finalizer)."""
    salt = (seed * _MOST_HASHES + number + 1) * 0x9E3779B97F4A7C15 % 2**64
    x = positions.astype(np.uint64) + np.uint64(salt)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
