"""The collectives of a compressed sum: over any backend that adds and ORs words, a process group, or both.

A strategy's collectives also count and time their exchanges, and carry its measurements along.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import PlanMismatchError
from peelsum.allreduce.plan import agreed, agreement_words
from peelsum.allreduce.reducer import Turns
from peelsum.compress.compressor import digest_of
from peelsum.compress.costs import Method, SwitchPath, carrier_of, reduced, rounds
from peelsum.compress.events import Traffic
from peelsum.compress.links import Timed
from peelsum.summation import Part, Summation, Words, gather_by_or

T = TypeVar("T")
Bytes = NDArray[np.uint8]
#: The algorithm by which a process group reduces words.
Algorithm = Literal["ring", "tree"]
_NOTHING = np.zeros(0, np.uint32)
#: An exchange of fewer words on the busiest link tells the latency.
_FEW_WORDS = 1 << 12


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
        lengths = gather_by_or(self, np.array([data.size], np.uint32))[:, 0]
        padded = np.zeros(-(-int(lengths.max()) // 4) * 4, np.uint8)
        padded[: data.size] = data
        rows = gather_by_or(self, padded.view(np.uint32)).view(np.uint8)
        return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]


@runtime_checkable
class GroupSummation(Summation, Protocol):
    """A process group as a `Summation`, with its own broadcast and gathers."""

    @property
    def few_words(self) -> int:
        """Fewer words than these go whole to all workers, by direct messages; 0 if there are none."""

    def sum_words(self, parts: Sequence[Part], *, by: Algorithm | None = None) -> list[Words]:
        """See `Summation.sum_words`; by: the algorithm, None for any."""

    def broadcast(self, pieces: Sequence[Words], sources: Sequence[int]) -> list[Words]:
        """Return of each piece the words that worker sources[i] has."""

    def gather_equal(self, data: Bytes) -> list[Bytes]:
        """Return every worker's bytes, of which all have as many, in the order of workers."""


class StepExchanges:
    """The exchanges of a step: what they cost, and words whose OR travels along with the first of them.

    The cost is in seconds, messages in a row, and words on the busiest link. Exchanges take turns, so that no
    two add to it at once. The words need no exchange of their own: `set` gives it a rank's, and `result`
    returns what came of them.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._own: Words | None = None
        self._total: Words | None = None
        self.reset()

    def reset(self) -> None:
        """Begin another step's cost."""
        self.seconds = self.messages = self.words = 0.0
        #: The exchange of the fewest words; none if no exchange had few.
        self.small = Timed(0.0, 0.0, 0.0)

    def timed(self, exchange: Callable[[], T], messages: float, words: float) -> T:
        """Run an exchange and add what it takes."""
        started = self._clock()
        result = exchange()
        seconds = self._clock() - started
        self.seconds += seconds
        self.messages += messages
        self.words += words
        if words < (self.small.words if self.small.messages else _FEW_WORDS):
            self.small = Timed(seconds, messages, words)
        return result

    def traffic(self, elements: int, sums: int) -> Traffic:
        """Return what a step sent that summed so many elements in so many sums."""
        return Traffic(elements, sums, self.messages, self.words, self.small.messages, self.small.words)

    def set(self, words: Words | None) -> None:
        """Wait for the next exchange with these words; None waits for none."""
        self._own, self._total = words, None

    def result(self) -> Words | None:
        """Return the OR of all ranks' words; None if there was no exchange."""
        return self._total

    def attach(self, parts: Sequence[Part], exchange: Callable[[Sequence[Part]], list[Words]]) -> list[Words]:
        """Return the results of `exchange(parts)`, with which the words that wait go along.

        They are joined to the first part if that is ORed, too: so they take no packet of their own.
        """
        own = self._own
        if own is None or not parts:
            return exchange(parts)
        self._own, size = None, own.size
        first, *others = parts
        if first.op != "or":
            self._total, *results = exchange([Part(own, "or"), *parts])
            return results
        check = first.check
        both = Part(joined([own, first.words]), "or", check and (lambda words: check(words[size:])))
        total, *results = exchange([both, *others])
        self._total = total[:size]
        return [total[size:], *results]

    def gather(self, data: Bytes, exchange: Callable[[Bytes], list[Bytes]]) -> list[Bytes]:
        """Return what `exchange(data)` gathers, with which the words that wait go along."""
        own = self._own
        if own is None:
            return exchange(data)
        self._own, size = None, own.nbytes
        everybody = exchange(np.concatenate([own.view(np.uint8), data]))
        self._total = np.bitwise_or.reduce([one[:size].copy().view(np.uint32) for one in everybody])
        return [one[size:] for one in everybody]


class Route(SummationCollectives):
    """The collectives of a hook's sum, at `turns`, counted by `exchanges`: a compressor's, or a method's.

    Words go over the backend by `path`; or, with `by`, over a process group, reduced in a ring or by trees.
    Few words are reduced by direct messages instead, which take less time, and less of the processor. Gathers
    go over the group if there is one, and so do broadcasts of words that go over it.
    """

    def __init__(
        self,
        turns: Turns,
        exchanges: StepExchanges,
        path: SwitchPath,
        group: GroupSummation | None = None,
        by: Algorithm | None = None,
    ) -> None:
        super().__init__(group if by and group else turns)
        self._turns, self._exchanges, self._path = turns, exchanges, path
        self._group, self._by = group, by

    @classmethod
    def of(
        cls,
        method: Method,
        turns: Turns,
        exchanges: StepExchanges,
        path: SwitchPath,
        group: GroupSummation | None,
    ) -> Route:
        """Return the route by which a method sums."""
        if carrier_of(method) == "switch":
            return cls(turns, exchanges, path)
        return cls(turns, exchanges, path, group, "tree" if method.endswith("_tree") else "ring")

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        exchange = self._reduced if self._by else self._at_backend
        return self._turns.in_turn(lambda: self._exchanges.attach(parts, exchange))

    def _at_backend(self, parts: Sequence[Part]) -> list[Words]:
        backend, words = self._turns.backend, sum(self._path.words(len(part.words)) for part in parts)
        return self._exchanges.timed(lambda: backend.sum_words(parts), self._path.hops, words)

    def _reduced(self, parts: Sequence[Part]) -> list[Words]:
        """Reduce parts of one op that follow each other as one."""
        group, results = self._group, list[Words]()
        assert group is not None
        for op, some in groupby(parts, key=lambda part: part.op):
            pieces = [part.words for part in some]
            together = Part(joined(pieces), op)
            few = together.words.size < group.few_words
            (total,) = self._exchanges.timed(
                partial(group.sum_words, [together], by=None if few else self._by),
                *reduced(self.workers, together.words.size, tree=self._by == "tree", few=few),
            )
            results += cut(total, [len(one) for one in pieces])
        for part, result in zip(parts, results, strict=True):
            if part.check is not None:
                part.check(result)
        return results

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        """See `Collectives.broadcast`."""
        if self._group is None or not (self._by or self._turns.backend is self._group):
            return super().broadcast(pieces, sources, ahead)
        results = self.sum_words(ahead) if ahead else []
        once, words = rounds(self.workers), sum(map(len, pieces))
        exchange = partial(self._group.broadcast, pieces, sources)
        timed = partial(self._exchanges.timed, exchange, once * len(set(sources)), once * words)
        return results, self._turns.in_turn(timed)

    def gather(self, data: Bytes) -> list[Bytes]:
        """See `Collectives.gather`; over a process group, an all_gather of lengths, then one of bytes."""
        group, others = self._group, self.workers - 1
        if group is None:
            return super().gather(data)

        def everything(data: Bytes) -> list[Bytes]:
            return self._exchanges.timed(lambda: group.gather_equal(data), others, others * data.size / 4)

        return self._turns.in_turn(
            lambda: gathered(data, lambda equal: self._exchanges.gather(equal, everything))
        )


def agreement(text: str, complaint: Callable[[], str]) -> Part:
    """Return a part whose sum raises PlanMismatchError, on every worker, unless all have the same text."""

    def check(words: Words) -> None:
        if not agreed(words):
            raise PlanMismatchError(complaint())

    return Part(agreement_words(digest_of(text)), "or", check)


def joined(pieces: Sequence[Words]) -> Words:
    """Return the pieces one after the other."""
    return np.concatenate([_NOTHING, *pieces])


def cut(words: Words, lengths: Sequence[int]) -> list[Words]:
    """Return the pieces of these lengths that were joined."""
    return np.split(words, np.cumsum(lengths[:-1])) if len(lengths) else []


def gathered(data: Bytes, equal: Callable[[Bytes], list[Bytes]]) -> list[Bytes]:
    """Return every worker's bytes by two gathers of equally many: of lengths, then of bytes."""
    lengths = [int(one.view(np.int64)[0]) for one in equal(np.array([data.size], np.int64).view(np.uint8))]
    padded = np.zeros(max(lengths), np.uint8)
    padded[: data.size] = data
    return [row[:length] for row, length in zip(equal(padded), lengths, strict=True)]
