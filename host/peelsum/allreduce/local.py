"""A backend for workers that are threads of the same process, without a network.

It matches chunks by number, as a switch does, so workers that disagree fail as they would with a switch.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from peelsum.allreduce.errors import InvalidRequestError, SummationStalledError
from peelsum.summation import Part, Words, gather_by_or


class LocalSummation:
    """A worker's access to sums in memory. `LocalSummation.group` makes those of all workers."""

    def __init__(self, hub: _Hub, worker_id: int) -> None:
        self._hub, self.lanes, self.workers, self.worker_id = hub, hub.lanes, hub.workers, worker_id
        self._next_chunk = 0

    @classmethod
    def group(cls, workers: int, lanes: int = 32, timeout_s: float = 30.0) -> list[LocalSummation]:
        """Return the backends of `workers` workers that sum with each other, in chunks of `lanes` words.

        Raises InvalidRequestError if `workers` or `lanes` is not a positive integer, or `timeout_s` is
        negative.
        """
        for name, value in (("workers", workers), ("lanes", lanes)):
            if not isinstance(value, int) or value < 1:
                raise InvalidRequestError(f"{name}: {value!r} is not a positive integer; use 1 or more")
        if not timeout_s >= 0:
            raise InvalidRequestError(f"timeout_s: {timeout_s!r} is not a time; use 0 or more seconds")
        hub = _Hub(workers, lanes, timeout_s)
        return [cls(hub, worker_id) for worker_id in range(workers)]

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Return the sum, or the OR, of each part over all workers.

        Raises SummationStalledError if a part's sum takes longer than `timeout_s`.
        """
        begin = self._next_chunk
        for part in parts:
            padded = np.zeros((-(-part.words.size // self.lanes), self.lanes), np.uint32)
            padded.reshape(-1)[: part.words.size] = part.words
            self._hub.add(self.worker_id, self._next_chunk, padded, part.op)
            self._next_chunk += len(padded)
        results = []
        for part in parts:
            results.append(self._hub.collect(begin, part.words.size))
            begin += -(-part.words.size // self.lanes)
            if part.check is not None:
                part.check(results[-1])
        return results

    def reduce_scatter(self, words: Words) -> Words:
        """Return this worker's piece of the sum of words[workers * k]: uint32[k]."""
        (total,) = self.sum_words([Part(words, "add")])
        return np.split(total, self.workers)[self.worker_id]

    def all_gather(self, words: Words) -> Words:
        """Return all workers' words, end to end."""
        return gather_by_or(self, words).reshape(-1)

    def broadcast(self, words: Words, root: int) -> Words:
        """Return the words of worker `root`."""
        sent = words if root == self.worker_id else np.zeros_like(words)
        return self.sum_words([Part(sent, "or")])[0]


class _Hub:
    """The chunks of all workers. Each is summed on arrival, and deleted when all workers have its result."""

    def __init__(self, workers: int, lanes: int, timeout_s: float) -> None:
        self.workers, self.lanes, self._timeout_s = workers, lanes, timeout_s
        self._sums: dict[int, Words] = {}
        self._missing: dict[int, set[int]] = {}
        self._readers: dict[int, int] = {}
        self._changed = threading.Condition()

    def add(self, worker_id: int, begin: int, chunks: Words, op: str) -> None:
        """Add or OR a worker's words[chunks, lanes] to the chunks from `begin` on."""
        combine = np.add if op == "add" else np.bitwise_or
        with self._changed:
            for chunk_id, words in enumerate(chunks, begin):
                total = self._sums.setdefault(chunk_id, np.zeros(self.lanes, np.uint32))
                combine(total, words, out=total)
                self._missing.setdefault(chunk_id, set(range(self.workers))).discard(worker_id)
            self._changed.notify_all()

    def collect(self, begin: int, size: int) -> Words:
        """Wait for all workers' contributions to `size` words from chunk `begin` on; return their sum.

        Raises SummationStalledError if that takes too long.
        """
        deadline = time.monotonic() + self._timeout_s
        result = np.empty((-(-size // self.lanes), self.lanes), np.uint32)
        chunk_ids = range(begin, begin + len(result))
        with self._changed:
            for chunk_id in chunk_ids:
                missing = self._missing[chunk_id]
                # The last contribution may come at the deadline.
                if not self._changed.wait_for(partial(operator.not_, missing), deadline - time.monotonic()):
                    late = sorted(missing)
                    workers = f"worker{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
                    raise SummationStalledError(
                        f"chunk {chunk_id} of the local job: no contribution from {workers} within "
                        f"{self._timeout_s:g} s; check that every worker calls sum() with the same tensors"
                    )
            for words, chunk_id in zip(result, chunk_ids, strict=True):
                words[:] = self._sums[chunk_id]
                readers = self._readers[chunk_id] = self._readers.get(chunk_id, 0) + 1
                if readers == self.workers:
                    del self._readers[chunk_id], self._missing[chunk_id], self._sums[chunk_id]
        return result.reshape(-1)[:size]
