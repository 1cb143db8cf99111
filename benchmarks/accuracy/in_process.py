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


class InProcess:
    """One worker's `Collectives` and `Summation`: `everybody` has a place for what each worker exchanges."""

    def __init__(self, everybody: list[Any], barrier: threading.Barrier, worker_id: int) -> None:
        self._everybody, self._barrier, self.traffic = everybody, barrier, Traffic()
        self.lanes, self.workers, self.worker_id = LANES, len(everybody), worker_id

    def _exchanged(self, value: _T) -> list[_T]:
        """Return what every worker gave, in the order of workers."""
        self._everybody[self.worker_id] = value
        self._barrier.wait()
        everybody = list(self._everybody)
        self._barrier.wait()  # before a faster worker gives its next value
        return everybody

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        self.traffic.exchanges += 1
        self.traffic.parts += sum(bool(part.words.size) for part in parts)
        self.traffic.summed_words += sum(part.words.size for part in parts)
        results = []
        everybody = self._exchanged([part.words for part in parts])
        for part, words in zip(parts, zip(*everybody, strict=True), strict=True):
            combine = np.add if part.op == "add" else np.bitwise_or
            result: Words = combine.reduce(words, axis=0, dtype=np.uint32)
            if part.check is not None:
                part.check(result)
            results.append(result)
        return results

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        """See `Collectives.broadcast`; it counts as one exchange, together with the parts ahead."""
        everybody = self._exchanged(list(pieces))
        self.traffic.exchanges += not ahead
        self.traffic.broadcasts += len(set(sources))
        self.traffic.broadcast_words += sum(map(len, pieces))
        copied = [everybody[source][at].copy() for at, source in enumerate(sources)]
        return self.sum_words(ahead) if ahead else [], copied

    def gather(self, data: Bytes) -> list[Bytes]:
        """See `Collectives.gather`."""
        everybody = self._exchanged(data)
        self.traffic.gathers += 1
        self.traffic.gathered_bytes += max(map(len, everybody))
        return [arrays.copy() for arrays in everybody]


class WorkerThreads:
    """The workers' threads, and what each exchanges by. Close it with `with`."""

    def __init__(self, workers: int) -> None:
        self._barrier, everybody = threading.Barrier(workers, timeout=_TIMEOUT_S), [None] * workers
        self.members = [InProcess(everybody, self._barrier, worker) for worker in range(workers)]
        self._threads = ThreadPoolExecutor(workers, "worker")

    def __enter__(self) -> WorkerThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self._barrier.abort()
        self._threads.shutdown()

    def run(self, work: Callable[[int], _T]) -> list[_T]:
        """Return work(worker) of all workers, in their threads at once. Raises the first error of any."""

        def guarded(worker: int) -> _T:
            try:
                return work(worker)
            except BaseException:
                self._barrier.abort()  # so that no worker waits for this one
                raise

        started = [self._threads.submit(guarded, member.worker_id) for member in self.members]
        failed = [error for future in started if (error := future.exception())]
        # Those that waited for a worker that failed say only that the barrier was broken.
        failed.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))
        if failed:
            raise failed[0]
        return [future.result() for future in started]
