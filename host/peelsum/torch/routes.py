"""The collectives of a bucket's sum: over the queue's backend, a process group, or both, as a method asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

import numpy as np

from peelsum.compress import Collectives, SummationCollectives
from peelsum.compress.collectives import Bytes, cut, joined
from peelsum.flexible import Method, SwitchPath, Timed, Traffic, carrier_of
from peelsum.flexible.collectives import reduced, rounds
from peelsum.summation import Part, Summation, Words
from peelsum.torch.process_group_summation import By, ProcessGroupSummation
from peelsum.torch.reductions import gathered
from peelsum.torch.sum_queue import QueuedSummation
from peelsum.transport import SwitchSummation

T = TypeVar("T")
#: An exchange of fewer words on the busiest link tells the latency.
_FEW_WORDS = 1 << 12


class Meter:
    """The cost of a step's exchanges: seconds, messages in a row, and words on the busiest link.

    Exchanges take turns, so that no two add to it at once.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Begin another step."""
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


class Rider:
    """Words that all ranks OR along with the first exchange of a step, so that they need none of their own.

    `board` gives it a rank's words, `ride` takes them along, and `arrived` returns what came of them.
    """

    def __init__(self) -> None:
        self._own: Words | None = None
        self._total: Words | None = None

    def board(self, words: Words | None) -> None:
        """Wait for the next exchange with these words; None waits for none."""
        self._own, self._total = words, None

    def arrived(self) -> Words | None:
        """Return the OR of all ranks' words; None if there was no exchange."""
        return self._total

    def ride(self, parts: Sequence[Part], exchange: Callable[[Sequence[Part]], list[Words]]) -> list[Words]:
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


class SwitchRoute(SummationCollectives):
    """Words over the queue's backend, such as a switch."""

    def __init__(self, queued: QueuedSummation, path: SwitchPath, meter: Meter, rider: Rider) -> None:
        super().__init__(queued)
        self._queued, self._path, self._meter, self._rider = queued, path, meter, rider

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        return self._queued.in_turn(lambda: self._rider.ride(parts, self._timed))

    def _timed(self, parts: Sequence[Part]) -> list[Words]:
        backend, words = self._queued.backend, switch_words(self._path, parts)
        return self._meter.timed(lambda: backend.sum_words(parts), self._path.hops, words)


class GroupRoute:
    """Words over a process group: reduced in a ring or by trees, broadcast and gathered.

    Few words are reduced by direct messages instead, which take less time, and less of the processor.
    """

    def __init__(
        self,
        queued: QueuedSummation,
        group: ProcessGroupSummation,
        meter: Meter,
        rider: Rider,
        *,
        tree: bool,
    ) -> None:
        self._queued, self._group, self._tree = queued, group, tree
        self._meter, self._rider = meter, rider
        self._by: By = "tree" if tree else "ring"
        self.lanes, self.workers, self.worker_id = group.lanes, group.workers, group.worker_id

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`; parts of one op that follow each other are reduced as one."""
        return self._queued.in_turn(lambda: self._rider.ride(parts, self._reduced))

    def _reduced(self, parts: Sequence[Part]) -> list[Words]:
        results: list[Words] = []
        for op, some in groupby(parts, key=lambda part: part.op):
            pieces = [part.words for part in some]
            together = Part(joined(pieces), op)
            few = together.words.size < self._group.few_words
            (total,) = self._meter.timed(
                lambda one=together, by=None if few else self._by: self._group.sum_words([one], by=by),  # type: ignore[misc]
                *reduced(self.workers, together.words.size, tree=self._tree, few=few),
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
        results = self.sum_words(ahead) if ahead else []
        once, words = rounds(self.workers), sum(map(len, pieces))
        return results, self._queued.in_turn(
            lambda: self._meter.timed(
                lambda: self._group.broadcast(pieces, sources), once * len(set(sources)), once * words
            )
        )

    def gather(self, data: Bytes) -> list[Bytes]:
        """See `Collectives.gather`: an all_gather of lengths, then one of bytes."""
        return self._queued.in_turn(
            lambda: gathered(data, lambda equal: self._rider.gather(equal, self._all))
        )

    def _all(self, data: Bytes) -> list[Bytes]:
        others = self.workers - 1
        return self._meter.timed(lambda: self._group.gather_equal(data), others, others * data.size / 4)


class Routes:
    """The routes of one bucket, by method. `group` is None if no method needs it."""

    def __init__(
        self,
        queued: QueuedSummation,
        group: ProcessGroupSummation | None,
        path: SwitchPath,
        meter: Meter,
        rider: Rider,
    ) -> None:
        self._switch = SwitchRoute(queued, path, meter, rider)
        self._group = [
            GroupRoute(queued, group, meter, rider, tree=tree) for tree in (False, True) if group is not None
        ]

    def of(self, method: Method) -> Collectives:
        """Return the route by which a method sums."""
        if carrier_of(method) == "switch":
            return self._switch
        return self._group[method.endswith("_tree")]


def path_of(summation: Summation) -> SwitchPath:
    """Return the path through the switch of a summation; the default for one that is not of a switch."""
    if not isinstance(summation, SwitchSummation):
        return SwitchPath(lanes=summation.lanes)
    job = summation.config
    return SwitchPath(job.lanes, job.window, 2 * job.window, hops=4 if job.racks else 2)


def switch_words(path: SwitchPath, parts: Sequence[Part]) -> float:
    """Return the words that whole packets of these parts take on a link, headers included."""
    return sum(path.words(len(part.words)) for part in parts)


def collectives_of(summation: QueuedSummation, group: ProcessGroupSummation | None) -> Collectives:
    """Return the collectives of `summation`; `group` gathers, and broadcasts if it is the backend."""
    return SummationCollectives(summation) if group is None else _GroupCollectives(summation, group)


class _GroupCollectives(SummationCollectives):
    """Words over a queued backend; gathers, and over a process group broadcasts, by the group's own."""

    def __init__(self, summation: QueuedSummation, group: ProcessGroupSummation) -> None:
        super().__init__(summation)
        self._queued, self._group = summation, group

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        """See `Collectives.broadcast`; over a process group, one broadcast for each source."""
        if self._queued.backend is not self._group:
            return super().broadcast(pieces, sources, ahead)
        results = self.sum_words(ahead) if ahead else []
        return results, self._queued.in_turn(lambda: self._group.broadcast(pieces, sources))

    def gather(self, data: Bytes) -> list[Bytes]:
        """See `Collectives.gather`."""
        return self._queued.in_turn(lambda: self._group.gather(data))
