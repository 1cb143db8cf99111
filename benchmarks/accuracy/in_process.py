"""Workers as threads of one process that meet in every exchange, with the bits of a network and its counts.

Additions are modulo 2**32, as in a switch and in gloo's all_reduce, so that results are the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from peelsum.compress.collectives import Bytes
from peelsum.summation import Part, Words

#: Words in a chunk, as by default in the hook and the softswitch.
LANES = 256
_TIMEOUT_S = 60.0
_T = TypeVar("_T")


@dataclass
class Traffic:
    """The exchanges of one worker, as counts that a cost model needs."""

    exchanges: int = 0
    """Sums of words, and broadcasts, that waited for each other; all parts of one travel together."""
    parts: int = 0
    """Parts of these sums that were not empty: each an all_reduce over a process group."""
    summed_words: int = 0
    """Words that were added or OR-ed."""
    broadcasts: int = 0
    """Broadcasts; over a process group they are collectives of their own."""
    broadcast_words: int = 0
    """Words that one worker sent to all others."""
    gathers: int = 0
    """Gathers of all workers' bytes."""
    gathered_bytes: int = 0
    """Bytes that a worker had gathered, as many as the longest worker's."""


class _Meeting:
    """Where the workers of one step exchange values."""

    def __init__(self, workers: int) -> None:
        self._values: list[Any] = [None] * workers
        self._barrier = threading.Barrier(workers, timeout=_TIMEOUT_S)

    def values(self, worker_id: int, value: _T) -> list[_T]:
        """Return what every worker gave, in the order of workers."""
        self._values[worker_id] = value
        self._barrier.wait()
        everybody = list(self._values)
        self._barrier.wait()  # before a faster worker gives its next value
        return everybody

    def end(self) -> None:
        """Let no worker wait for one that has failed."""
        self._barrier.abort()


class InProcess:
    """One worker's `Collectives` and `Summation`."""

    def __init__(self, meeting: _Meeting, worker_id: int, workers: int) -> None:
        self._meeting, self.traffic = meeting, Traffic()
        self.lanes, self.workers, self.worker_id = LANES, workers, worker_id

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        self._count(parts)
        results = []
        for number, everybody in enumerate(self._heard(parts)):
            combine = np.add if parts[number].op == "add" else np.bitwise_or
            result: Words = combine.reduce(everybody, axis=0, dtype=np.uint32)
            check = parts[number].check
            if check is not None:
                check(result)
            results.append(result)
        return results

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        """See `Collectives.broadcast`; it counts as one exchange, together with the parts ahead."""
        everybody = self._meeting.values(self.worker_id, list(pieces))
        self.traffic.exchanges += not ahead
        self.traffic.broadcasts += len(set(sources))
        self.traffic.broadcast_words += sum(map(len, pieces))
        copied = [everybody[source][at].copy() for at, source in enumerate(sources)]
        return self.sum_words(ahead) if ahead else [], copied

    def gather(self, data: Bytes) -> list[Bytes]:
        """See `Collectives.gather`."""
        everybody = self._meeting.values(self.worker_id, data)
        self.traffic.gathers += 1
        self.traffic.gathered_bytes += max(map(len, everybody))
        return [arrays.copy() for arrays in everybody]

    def _heard(self, parts: Sequence[Part]) -> list[tuple[Words, ...]]:
        everybody = self._meeting.values(self.worker_id, [part.words for part in parts])
        return list(zip(*everybody, strict=True))

    def _count(self, parts: Sequence[Part]) -> None:
        self.traffic.exchanges += 1
        self.traffic.parts += sum(bool(part.words.size) for part in parts)
        self.traffic.summed_words += sum(part.words.size for part in parts)


class WorkerThreads:
    """The workers' threads, and what each exchanges by. Close it with `with`."""

    def __init__(self, workers: int) -> None:
        self._meeting = _Meeting(workers)
        self.members = [InProcess(self._meeting, worker, workers) for worker in range(workers)]
        self._threads = ThreadPoolExecutor(workers, "worker")

    def __enter__(self) -> WorkerThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self._meeting.end()
        self._threads.shutdown()

    def run(self, work: Callable[[int], _T]) -> list[_T]:
        """Return work(worker) of all workers, in their threads at once. Raises the first error of any."""

        def guarded(worker: int) -> _T:
            try:
                return work(worker)
            except BaseException:
                self._meeting.end()
                raise

        started = [self._threads.submit(guarded, member.worker_id) for member in self.members]
        failed = [error for future in started if (error := future.exception())]
        # Those that waited for a worker that failed say only that the meeting was broken.
        failed.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))
        if failed:
            raise failed[0]
        return [future.result() for future in started]
