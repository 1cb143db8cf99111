"""The collectives of a compressed sum, also over a backend that only adds and ORs words, and their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import StepResult
from peelsum.allreduce.rounds import Phase
from peelsum.compress.result import CompressedResult, CompressedTensor
from peelsum.summation import Part, Summation, Words
from peelsum.wire import packet_bytes

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


class Wire:
    """One step's access to `collectives`, which counts and measures."""

    def __init__(
        self,
        collectives: Collectives,
        clock: Callable[[], float],
        span: Callable[[Phase], AbstractContextManager[object]],
    ) -> None:
        self._collectives, self._clock, self._span = collectives, clock, span
        self.workers, self.worker_id = collectives.workers, collectives.worker_id
        #: Bytes of this worker's payloads.
        self.payload_bytes = 0
        self._bytes = 0
        self._seconds: dict[Phase, float] = {"encode": 0.0, "exchange": 0.0, "decode": 0.0}

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Add the time of the body to the phase, unless the body raises."""
        with self._span(phase):
            started = self._clock()
            yield
            self._seconds[phase] += self._clock() - started

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`; every part's check is run, in case the backend did not."""
        with self.timed("exchange"):
            results = self._collectives.sum_words(parts)
        self._count([len(part.words) for part in parts])
        return _checked(parts, results)

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        with self.timed("exchange"):
            results, copied = self._collectives.broadcast(pieces, sources, ahead)
        self._count([*(len(part.words) for part in ahead), sum(map(len, pieces))])
        return _checked(ahead, results), copied

    def gather(self, data: Bytes) -> list[Bytes]:
        with self.timed("exchange"):
            everybody = self._collectives.gather(data)
        self._bytes += (self.workers - 1) * max(map(len, everybody))
        return everybody

    def add(self, result: StepResult) -> None:
        """Add the cost of an all-reduce."""
        self._bytes += result.wire_bytes
        self._seconds["encode"] += result.encode_s
        self._seconds["exchange"] += result.network_s
        self._seconds["decode"] += result.decode_s

    def result(self, tensors: Sequence[CompressedTensor]) -> CompressedResult:
        """Return the tensors with the step's cost."""
        lanes = self._collectives.lanes
        return CompressedResult(
            tensors=tuple(tensors),
            payload_bytes=self.payload_bytes,
            wire_bytes=self._bytes,
            dense_bytes=-(-sum(one.values.size for one in tensors) // lanes) * packet_bytes(lanes),
            encode_s=self._seconds["encode"],
            network_s=self._seconds["exchange"],
            decode_s=self._seconds["decode"],
        )

    def _count(self, words: Sequence[int]) -> None:
        lanes = self._collectives.lanes
        self._bytes += sum(-(-count // lanes) for count in words) * packet_bytes(lanes)


def _checked(parts: Sequence[Part], results: list[Words]) -> list[Words]:
    for part, result in zip(parts, results, strict=True):
        if part.check is not None:
            part.check(result)
    return results


def joined(pieces: Sequence[Words]) -> Words:
    """Return the pieces one after the other."""
    return np.concatenate([_NOTHING, *pieces])


def cut(words: Words, lengths: Sequence[int]) -> list[Words]:
    """Return the pieces of these lengths that were joined."""
    return np.split(words, np.cumsum(lengths[:-1])) if len(lengths) else []
