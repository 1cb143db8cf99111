"""The collectives that a compressed sum uses, and their form over a backend that only adds and ORs words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.summation import Part, Summation, Words

Bytes = NDArray[np.uint8]
_NOTHING = np.zeros(0, np.uint32)


class Collectives(Summation, Protocol):
    """A `Summation` that also has a broadcast and a gather."""

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        """Return the results of the parts `ahead`, and of each piece the words that worker sources[i] has.

        A piece has the same length on all workers.
        """

    def gather(self, data: Bytes) -> list[Bytes]:
        """Return every worker's bytes, in the order of workers; lengths may differ."""


class SummationCollectives:
    """Collectives over any `Summation`: where one worker writes and the others have zeros, OR copies.

    A broadcast so takes one exchange, together with the parts ahead of it. A gather takes two, and `workers`
    times the longest worker's words.
    """

    def __init__(self, summation: Summation) -> None:
        self._summation = summation
        self.lanes, self.workers = summation.lanes, summation.workers
        self.worker_id = summation.worker_id

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        return self._summation.sum_words(parts)

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        pairs = zip(pieces, sources, strict=True)
        own = [words if source == self.worker_id else np.zeros_like(words) for words, source in pairs]
        *results, copied = self.sum_words([*ahead, Part(joined(own), "or")])
        return results, cut(copied, [len(one) for one in pieces])

    def gather(self, data: Bytes) -> list[Bytes]:
        lengths = self._by_worker(np.array([data.size], np.uint32))[:, 0]
        padded = np.zeros(-(-int(lengths.max()) // 4) * 4, np.uint8)
        padded[: data.size] = data
        rows = self._by_worker(padded.view(np.uint32)).view(np.uint8)
        return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]

    def _by_worker(self, words: Words) -> NDArray[np.uint32]:
        """Return uint32[workers, n]: every worker's words[n]."""
        slots = np.zeros((self.workers, words.size), np.uint32)
        slots[self.worker_id] = words
        (combined,) = self.sum_words([Part(slots.reshape(-1), "or")])
        return combined.reshape(slots.shape)


def joined(pieces: Sequence[Words]) -> Words:
    """Return the pieces one after the other."""
    return np.concatenate([_NOTHING, *pieces])


def cut(words: Words, lengths: Sequence[int]) -> list[Words]:
    """Return the pieces of these lengths that were joined."""
    return np.split(words, np.cumsum(lengths[:-1])) if len(lengths) else []
