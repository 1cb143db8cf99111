"""What each way of sending a tensor costs, in words and exchanges, by formula from what all workers saw last.

It compares; which costs count for how much is the chooser's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from peelsum.allreduce.indexes import BitmapIndex, BloomIndex, Index, TwoLevelIndex
from peelsum.allreduce.plan import Choice, Prediction, Settings
from peelsum.codec import BLOCK_SIZES, EXPONENT_WORDS, NON_FINITE, SUB_TABLES, BloomLayout

_WORD_BITS = 32
#: A sketch is sized, and a predicted exponent raised, by this much more than the last step would have needed.
_MORE_CANDIDATES = 1.1
_MORE_EXPONENT = 1
#: Bits of a Bloom filter for each halving of its false positives, and nepers to a bit.
_BLOOM_BITS = 1 / math.log(2)


@dataclass(frozen=True)
class Seen:
    """What all workers know of a tensor from the last step that had values.

    exponent_field: the largest. occupied: how many blocks of 2**b elements hold a non-zero, for b from 0 on;
    the first is the number of non-zeros themselves.
    """

    exponent_field: int
    occupied: tuple[float, ...]

    @property
    def candidates(self) -> float:
        """Non-zeros in the union."""
        return self.occupied[0]

    def prediction(self, candidates: float) -> Prediction:
        """What the next step can be sent by ahead of agreement, if so many candidates pass its index."""
        exponent_field = min(self.exponent_field + _MORE_EXPONENT, NON_FINITE - 1)
        return Prediction(exponent_field, math.ceil(candidates * _MORE_CANDIDATES))

    @classmethod
    def uniform(cls, elements: int, density: float, exponent_field: int = 0) -> Seen:
        """What would be seen of `elements` of which a share `density` is non-zero, anywhere."""
        blocks = ((2**b, elements / 2**b) for b in range(BLOCK_SIZES))
        return cls(exponent_field, tuple(count * (1 - (1 - density) ** size) for size, count in blocks))


@dataclass(frozen=True)
class Candidate:
    """A choice, the words a worker is expected to send for it, and the exchanges it takes."""

    choice: Choice
    words: float
    exchanges: int


def candidates(elements: int, seen: Seen, settings: Settings, *, predict: bool) -> Iterator[Candidate]:
    """Every way to send a tensor of so many elements, each form with the best of its parameters.

    With `predict`, values that need not wait for the index go with it, by `seen.prediction`.
    """
    late = 0 if predict else 1
    guess = seen.prediction(elements) if predict else None
    dense = EXPONENT_WORDS + settings.limbs * elements
    yield Candidate(Choice("dense", prediction=guess), dense, 1 + late)
    for index in _indexes(elements, seen, settings.limbs):
        words, passed = expected(index, elements, seen)
        total = EXPONENT_WORDS + words + settings.limbs * passed
        yield Candidate(Choice("compact", index), total, 2 + index.refined)
    per_candidate = settings.limbs * settings.cells_per_candidate * (_MORE_CANDIDATES if predict else 1.0)
    for index in _indexes(elements, seen, per_candidate):
        words, passed = expected(index, elements, seen)
        total = EXPONENT_WORDS + words + max(per_candidate * passed, SUB_TABLES)
        guess = seen.prediction(passed) if predict else None
        yield Candidate(Choice("sketch", index, guess), total, 1 + late + index.refined)


def expected(index: Index, elements: int, seen: Seen) -> tuple[float, float]:
    """Words of an index in all its exchanges, and candidates that it lets pass."""
    words, count = index.words(elements), seen.candidates
    if isinstance(index, BitmapIndex):
        return words, count
    if isinstance(index, TwoLevelIndex):
        blocks = seen.occupied[index.block.bit_length() - 1]
        return words + min(blocks * index.block, elements) / _WORD_BITS, count
    filled = -math.expm1(-count / (_WORD_BITS * index.rows))
    passed = count + (elements - count) * filled**index.hashes
    return (words + passed / _WORD_BITS, count) if index.refined else (words, passed)


def _indexes(elements: int, seen: Seen, words_per_candidate: float) -> Iterator[Index]:
    """The best index of each form, where a candidate's value takes so many words."""
    yield BitmapIndex()
    yield min(
        (TwoLevelIndex(2**b) for b in range(1, BLOCK_SIZES)),
        key=lambda index: expected(index, elements, seen)[0],
    )
    for refined in (False, True):
        wasted_bits = 1.0 if refined else _WORD_BITS * words_per_candidate
        yield best_bloom(elements, seen.candidates, wasted_bits, refined=refined)


def best_bloom(elements: int, candidates: float, wasted_bits: float, *, refined: bool) -> BloomIndex:
    """The Bloom filter that is smallest together with the bits that its false positives waste.

    Each more sub-table costs _BLOOM_BITS per candidate and halves the false positives.
    """
    candidates = max(candidates, 1.0)
    worth = wasted_bits * max(elements - candidates, 1.0) * math.log(2) / (candidates * _BLOOM_BITS)
    hashes = min(max(round(math.log2(max(worth, 1.0))), 1), 32)
    return BloomIndex(hashes, BloomLayout.sized(math.ceil(candidates), hashes, 0).rows, refined)


def lower_bound_bits(elements: int, count: float) -> float:
    """Bits that `count` values of 32 bits, anywhere among `elements`, take at least: 32 each, and where."""
    if not 0 < count < elements:
        return _WORD_BITS * count
    share = count / elements
    where = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    return elements * (_WORD_BITS * share + where)
