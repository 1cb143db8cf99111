"""The collectives of one compressed sum, with what they cost: bytes, and seconds of each phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from peelsum.allreduce import StepResult
from peelsum.allreduce.rounds import Phase
from peelsum.compress.collectives import Bytes, Collectives
from peelsum.compress.result import CompressedResult, CompressedTensor
from peelsum.summation import Part, Words
from peelsum.wire import packet_bytes


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
