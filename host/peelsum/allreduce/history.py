"""Remember what all workers know of a tensor from its past steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from peelsum.allreduce.costs import NetworkModel, Seen, lower_bound_bits
from peelsum.allreduce.refinement import Refinement

#: Words that a tensor may take in all steps together if values are sent ahead, over the lower bound, and the
#: number of steps of which savings are kept.
_AFFORDED, _KEPT_STEPS = 1.45, 3.0
_WORD_BITS = 32
K = TypeVar("K")
V = TypeVar("V")


class History:
    """A tensor's past steps."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._last = self._before = Seen.uniform(elements, 0.0)
        self._steps = 0
        #: The union of the last step in which some value was not zero.
        self.filled = self._last
        #: Words that later steps may waste, because earlier ones sent fewer than they were allowed.
        self.spare = 0.0

    @property
    def fewest(self) -> Seen:
        """The union of the last two steps that has fewer candidates.

        An index that is too small costs an exchange; one that is too large costs words that cannot be saved.
        """
        last, before = self._last, self._before
        return last if last.candidates <= before.candidates else before

    def refinement(self, network: NetworkModel) -> Refinement:
        """Return what decides how the tensor's index is refined in the coming step."""
        likely = self.filled.candidates
        # Of a dense tensor it is unknown how its non-zeros would cluster if they were few.
        return Refinement(network, self.filled if likely < self._elements / 2 else None, likely)

    def add(self, seen: Seen | None, words: int) -> None:
        """Record a step's union, or None if all values were zero, and the words that were sent."""
        now = seen or Seen.uniform(self._elements, 0.0, self.filled.exponent_field)
        self._last, self._before = now, self._last if self._steps else now
        self.filled, self._steps = seen or self.filled, self._steps + 1
        bound = lower_bound_bits(self._elements, now.candidates) / _WORD_BITS
        self.spare = min(self.spare + _AFFORDED * bound - words, _KEPT_STEPS * bound)


def kept(values: dict[K, V], key: K, make: Callable[[], V], most: int) -> V:
    """Return the value of `key`, new if there is none, and keep the `most` keys that were used last.

    What is kept depends on the sequence of keys alone, which is the same on all workers.
    """
    value = values.pop(key) if key in values else make()
    if len(values) == most:
        del values[next(iter(values))]
    values[key] = value
    return value
