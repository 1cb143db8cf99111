"""Choose the next exchange of an index that lets through more than was planned.

What passes an index is a shorter tensor of bits, and an index of these can be sent in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from peelsum.allreduce.costs import NetworkModel, Seen, expected, indexes
from peelsum.allreduce.indexes import BitmapIndex, BloomIndex, Estimate, Index, TwoLevelIndex

#: A choice for time may send this share of the values' words more than the choice for size.
_TOLERANCE = 0.25
#: After so many indexes a bitmap ends the refinement, whatever the estimates are.
_MOST_LEVELS = 6


class _Option(NamedTuple):
    following: Index
    words: float
    exchanges: int


@dataclass(frozen=True)
class Refinement:
    """What decides how a tensor's index is refined; the same on every worker."""

    network: NetworkModel = field(default_factory=NetworkModel)
    seen: Seen | None = None
    """The union of an earlier step, which shows how non-zeros cluster; None if they are taken as uniform."""
    likely: float = 0.0
    """Number of candidates to assume if a Bloom filter is full."""

    def after(
        self, index: Index, filled: int, passed: int, words_per_candidate: float, level: int
    ) -> Index | None:
        """Return the index to exchange next, of the `passed` elements; None if few of them are zeros.

        `filled` is the number of bits set in the OR of a Bloom filter's words, unused for other indexes;
        `level` is the number of indexes exchanged after the first. Each candidate will cost
        `words_per_candidate`.
        """
        if isinstance(index, BitmapIndex) or not passed:
            return None
        if level == _MOST_LEVELS:
            return BitmapIndex()
        if isinstance(index, TwoLevelIndex):
            found = Estimate(self._in_blocks(index, passed), full=True)
        else:
            found = index.estimate(filled)
        likely = self.likely if found.full and isinstance(index, BloomIndex) else 0.0
        found = found._replace(elements=min(max(found.elements, likely), passed))
        planned = not (index.refined or found.full)
        if planned and passed <= (1 + _TOLERANCE) * found.elements:
            return None  # since every option sends the non-zeros' words, too
        blocks = not isinstance(index, TwoLevelIndex)
        options = self._options(passed, found, words_per_candidate, blocks=blocks)
        most = _most(options, found, words_per_candidate)
        if planned and passed * words_per_candidate <= most:
            return None
        return self._cheapest(options, most)

    def _in_blocks(self, index: TwoLevelIndex, passed: int) -> float:
        """Return the number of non-zeros expected in blocks of `passed` elements in total."""
        if self.seen is None or not self.seen.candidates:
            return passed
        blocks = self.seen.occupied[index.block.bit_length() - 1]
        return self.seen.candidates / blocks * passed / index.block

    def first(self, elements: int, share: float, words_per_candidate: float) -> Index:
        """Return the index of a tensor of which about this share is not zero."""
        found = Estimate(share * elements, full=True)
        options = self._options(elements, found, words_per_candidate)
        return self._cheapest(options, _most(options, found, words_per_candidate))

    def _options(
        self, passed: int, found: Estimate, words_per_candidate: float, *, blocks: bool = True
    ) -> list[_Option]:
        seen = (self.seen or Seen.uniform(1, 0.0)).scaled(passed, found.elements)
        options = []
        for index in indexes(passed, seen, words_per_candidate, blocks=blocks):
            words, left = expected(index, passed, seen)
            options.append(_Option(index, words + left * words_per_candidate, 1 + index.refined))
        return options

    def _cheapest(self, options: Sequence[_Option], most: float) -> Index:
        allowed = [option for option in options if option.words <= most]
        return min(allowed, key=lambda option: self.network.seconds(option.words, option.exchanges)).following


def _most(options: Sequence[_Option], found: Estimate, words_per_candidate: float) -> float:
    """Return the number of words up to which a choice for time is accepted."""
    return min(option.words for option in options) + _TOLERANCE * found.elements * words_per_candidate
