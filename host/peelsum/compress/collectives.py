"""The collectives of a compressed sum: over any backend that adds and ORs words, a process group, or both.

With a strategy, they also count and time the exchanges, and attach the strategy's measurements to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.allreduce import SumScheduler
from peelsum.compress.costs import Method, SwitchPath, all_reduce_cost, carrier_of, tree_rounds
from peelsum.compress.events import StepTraffic
from peelsum.compress.links import TimedExchange
from peelsum.summation import Part, Summation, Words, gather_by_or

T = TypeVar("T")
Bytes = NDArray[np.uint8]
#: The algorithm by which a process group reduces words.
Algorithm = Literal["ring", "tree"]
_NO_WORDS = np.zeros(0, np.uint32)
#: An exchange of fewer words on the busiest link gives a sample of the latency.
_SMALL_WORDS = 1 << 12


class Collectives(Summation, Protocol):
    """A `Summation` that also has a broadcast and a gather."""

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        """Sum the parts `ahead`, then broadcast each piece i from worker sources[i]; return both results.

        A piece has the same length on all workers.
        """

    def gather(self, data: Bytes) -> list[Bytes]:
        """Return every worker's bytes, in the order of workers; lengths may differ."""


class SummationCollectives:
    """Collectives over any `Summation`: a worker's words are ORed with the zeros of the other workers.

    So a broadcast takes a single exchange, including the parts ahead of it. A gather takes two exchanges, and
    `workers` times the longest worker's words.
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
        """See `Collectives.broadcast`; the other workers OR zeros to the source's words."""
        pairs = zip(pieces, sources, strict=True)
        sent = [words if source == self.worker_id else np.zeros_like(words) for words, source in pairs]
        *results, received = self.sum_words([*ahead, Part(concatenate(sent), "or")])
        return results, split(received, list(map(len, pieces)))

    def gather(self, data: Bytes) -> list[Bytes]:
        """See `Collectives.gather`; lengths are gathered first, then bytes, padded to the longest."""
        rows = self._gather_equal(np.array([data.size], np.uint32).view(np.uint8))
        lengths = [int(row.view(np.uint32)[0]) for row in rows]
        padded = np.zeros(-(-max(lengths) // 4) * 4, np.uint8)
        padded[: data.size] = data
        rows = self._gather_equal(padded)
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def _gather_equal(self, data: Bytes) -> list[Bytes]:
        """Return every worker's bytes, a multiple of 4, and equally many on all: each ORs them into a row."""
        return list(gather_by_or(self, data.view(np.uint32)).view(np.uint8))


@runtime_checkable
class GroupSummation(Summation, Protocol):
    """A process group as a `Summation` that also broadcasts and gathers."""

    @property
    def few_words(self) -> int:
        """Fewer words than these are sent whole to all workers, by direct messages; 0 for never."""

    def sum_words(self, parts: Sequence[Part], *, by: Algorithm | None = None) -> list[Words]:
        """See `Summation.sum_words`; by: the algorithm, None for any."""

    def broadcast(self, pieces: Sequence[Words], sources: Sequence[int]) -> list[Words]:
        """Return each piece i as worker sources[i] has it."""

    def gather_equal(self, data: Bytes) -> list[Bytes]:
        """Return every worker's bytes, in the order of workers. All workers must have equally many."""


class StepExchanges:
    """The exchanges of a step: their cost, and words that are attached to the first of them.

    The cost is in seconds, messages in a row, and words on the busiest link. Exchanges take turns, so no two
    threads add to it at once. `set` stores a rank's words, which are ORed along with the next exchange, and
    `result` returns the OR of all ranks' words.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._pending: Words | None = None
        self._result: Words | None = None
        self.reset()

    def reset(self) -> None:
        """Clear the cost for another step."""
        self.seconds = self.messages = self.words = 0.0
        #: The exchange with the fewest words; without messages if no exchange had few words.
        self.small = TimedExchange(0.0, 0.0, 0.0)

    def timed(self, exchange: Callable[[], T], messages: float, words: float) -> T:
        """Call an exchange and add its cost; return its result."""
        started = self._clock()
        result = exchange()
        seconds = self._clock() - started
        self.seconds += seconds
        self.messages += messages
        self.words += words
        if words < (self.small.words if self.small.messages else _SMALL_WORDS):
            self.small = TimedExchange(seconds, messages, words)
        return result

    def traffic(self, elements: int, sums: int) -> StepTraffic:
        """Return the traffic of a step, which summed this many elements in this many sums."""
        return StepTraffic(elements, sums, self.messages, self.words, self.small.messages, self.small.words)

    def set(self, words: Words | None) -> None:
        """Attach these words to the next exchange; None attaches none."""
        self._pending, self._result = words, None

    def result(self) -> Words | None:
        """Return the OR of all ranks' words; None if there has been no exchange since `set`."""
        return self._result

    def attach(self, parts: Sequence[Part], exchange: Callable[[Sequence[Part]], list[Words]]) -> list[Words]:
        """Return the results of `exchange(parts)`, to which the words of `set` are attached.

        If the first part is ORed, too, they are concatenated with it, so that they take no further packet.
        """
        attached = self._pending
        if attached is None or not parts:
            return exchange(parts)
        self._pending, size = None, attached.size
        first, *others = parts
        if first.op != "or":
            self._result, *results = exchange([Part(attached, "or"), *parts])
            return results
        check = first.check
        both = Part(concatenate([attached, first.words]), "or", check and (lambda words: check(words[size:])))
        combined, *results = exchange([both, *others])
        self._result = combined[:size]
        return [combined[size:], *results]

    def gather(self, data: Bytes, exchange: Callable[[Bytes], list[Bytes]]) -> list[Bytes]:
        """Return the result of `exchange(data)`, a gather, to which the words of `set` are attached."""
        attached = self._pending
        if attached is None:
            return exchange(data)
        self._pending, size = None, attached.nbytes
        rows = exchange(np.concatenate([attached.view(np.uint8), data]))
        self._result = np.bitwise_or.reduce([row[:size].copy().view(np.uint32) for row in rows])
        return [row[size:] for row in rows]


class Route(SummationCollectives):
    """The collectives of a hook's sum, which run at its turn in `turns`, and are counted by `exchanges`.

    Words are summed over the backend, whose path through a switch is `path`; or, if `method` sums over the
    process group, there, by a ring or trees. Few words then take direct messages instead, which need less
    time and less of the processor. If there is a group, gathers take it, except by a method that sums over a
    switch. Broadcasts take it if the group also sums.
    """

    def __init__(
        self,
        turns: SumScheduler,
        exchanges: StepExchanges,
        path: SwitchPath,
        group: GroupSummation | None = None,
        method: Method | None = None,
    ) -> None:
        by: Algorithm | None = None
        if method is not None and carrier_of(method) == "switch":
            group = None
        elif method is not None:
            by = "tree" if method.endswith("_tree") else "ring"
        super().__init__(group if by and group else turns)
        self._turns, self._exchanges, self._path = turns, exchanges, path
        self._group, self._by = group, by

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""

        def sum_over_backend(parts: Sequence[Part]) -> list[Words]:
            backend, words = self._turns.backend, sum(self._path.words(len(part.words)) for part in parts)
            return self._exchanges.timed(lambda: backend.sum_words(parts), self._path.hops, words)

        exchange = self._reduce_over_group if self._by else sum_over_backend
        return self._turns.in_turn(lambda: self._exchanges.attach(parts, exchange))

    def _reduce_over_group(self, parts: Sequence[Part]) -> list[Words]:
        """Sum parts over the process group, and count the exchanges: one for adjacent parts with one op.

        The callers of `sum_words` run the parts' checks.
        """
        group, results = self._group, list[Words]()
        assert group is not None
        for op, adjacent in groupby(parts, key=lambda part: part.op):
            pieces = [part.words for part in adjacent]
            words = concatenate(pieces)
            few = words.size < group.few_words
            (total,) = self._exchanges.timed(
                partial(group.sum_words, [Part(words, op)], by=None if few else self._by),
                *all_reduce_cost(self.workers, words.size, tree=self._by == "tree", few=few),
            )
            results += split(total, list(map(len, pieces)))
        return results

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        """See `Collectives.broadcast`."""
        if self._group is None or not (self._by or self._turns.backend is self._group):
            return super().broadcast(pieces, sources, ahead)
        results = self.sum_words(ahead) if ahead else []
        messages, words = tree_rounds(self.workers), sum(map(len, pieces))
        exchange = partial(self._group.broadcast, pieces, sources)
        timed = partial(self._exchanges.timed, exchange, messages * len(set(sources)), messages * words)
        return results, self._turns.in_turn(timed)

    def _gather_equal(self, data: Bytes) -> list[Bytes]:
        """Return every worker's bytes, equally many on all: over a process group by an all_gather."""
        group, others = self._group, self.workers - 1
        if group is None:
            return super()._gather_equal(data)

        def gather_timed(data: Bytes) -> list[Bytes]:
            return self._exchanges.timed(lambda: group.gather_equal(data), others, others * data.size / 4)

        return self._turns.in_turn(lambda: self._exchanges.gather(data, gather_timed))


def concatenate(pieces: Sequence[Words]) -> Words:
    """Return the concatenated pieces, of which there may be none."""
    return np.concatenate([_NO_WORDS, *pieces])


def split(words: Words, lengths: Sequence[int]) -> list[Words]:
    """Return the pieces of these lengths that `concatenate` joined."""
    return np.split(words, np.cumsum(lengths[:-1])) if len(lengths) else []
