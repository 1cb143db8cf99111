"""Routes of a bucket's words, by ring, tree or switch: the collectives of its sums, and what they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from peelsum.compress import Collectives, SummationCollectives
from peelsum.compress.collectives import Bytes, cut, joined
from peelsum.flexible import Carrier, Method, SwitchPath, carrier_of
from peelsum.flexible.collectives import rounds
from peelsum.summation import Part, Summation, Words
from peelsum.torch.process_group_summation import By, ProcessGroupSummation
from peelsum.torch.sum_queue import QueuedSummation
from peelsum.transport import SwitchSummation
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

T = TypeVar("T")


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

    def timed(self, exchange: Callable[[], T], messages: float, words: float) -> T:
        """Run an exchange and add what it takes."""
        started = self._clock()
        result = exchange()
        self.seconds += self._clock() - started
        self.messages += messages
        self.words += words
        return result


class SwitchRoute(SummationCollectives):
    """Words over the queue's backend, such as a switch."""

    def __init__(self, queued: QueuedSummation, path: SwitchPath, meter: Meter) -> None:
        super().__init__(queued)
        self._queued, self._path, self._meter = queued, path, meter

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        words = switch_words(self.lanes, parts)
        backend, hops = self._queued.backend, self._path.hops
        return self._queued.in_turn(lambda: self._meter.timed(lambda: backend.sum_words(parts), hops, words))


class GroupRoute:
    """Words over a process group: reduced in a ring or by trees, broadcast and gathered.

    Few words are reduced by direct messages instead, which take less time, and less of the processor.
    """

    def __init__(
        self, queued: QueuedSummation, group: ProcessGroupSummation, meter: Meter, *, tree: bool
    ) -> None:
        self._queued, self._group, self._meter, self._tree = queued, group, meter, tree
        self._by: By = "tree" if tree else "ring"
        self.lanes, self.workers, self.worker_id = group.lanes, group.workers, group.worker_id

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`; parts of one op that follow each other are reduced as one."""
        results: list[Words] = []
        for op, some in groupby(parts, key=lambda part: part.op):
            pieces = [part.words for part in some]
            together = Part(joined(pieces), op)
            few = together.words.size < self._group.few_words
            (total,) = self._run(
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
        return results, self._run(
            lambda: self._group.broadcast(pieces, sources), once * len(set(sources)), once * words
        )

    def gather(self, data: Bytes) -> list[Bytes]:
        """See `Collectives.gather`: an all_gather of lengths, then one of bytes."""
        others = self.workers - 1

        def gathered() -> list[Bytes]:
            everybody = self._meter.timed(lambda: self._group.gather(data), 2 * others, 0)
            self._meter.words += others * max(map(len, everybody)) / 4
            return everybody

        return self._queued.in_turn(gathered)

    def _run(self, exchange: Callable[[], T], messages: float, words: float) -> T:
        return self._queued.in_turn(lambda: self._meter.timed(exchange, messages, words))


class Routes:
    """The routes of one bucket, by method. `group` is None if no method needs it."""

    def __init__(
        self, queued: QueuedSummation, group: ProcessGroupSummation | None, path: SwitchPath, meter: Meter
    ) -> None:
        self._switch = SwitchRoute(queued, path, meter)
        trees = [] if group is None else [GroupRoute(queued, group, meter, tree=one) for one in (False, True)]
        self._group = trees

    def of(self, method: Method) -> Collectives:
        """Return the route by which a method sums."""
        if carrier_of(method) == "switch":
            return self._switch
        return self._group[method.endswith("_tree")]


class Ring:
    """A `Summation` by the ring of a process group; few words go by direct messages, as in `GroupRoute`."""

    def __init__(self, group: ProcessGroupSummation) -> None:
        self._group = group
        self.lanes, self.workers, self.worker_id = group.lanes, group.workers, group.worker_id

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        few = sum(part.words.size for part in parts) < self._group.few_words
        return self._group.sum_words(parts, by=None if few else "ring")


@dataclass(frozen=True)
class Backends:
    """The backends over which ranks decide, and sum."""

    by_carrier: Mapping[Carrier, Summation]
    """The backend of each carrier."""
    first: Summation
    """The backend over which the ranks first agree on their settings."""
    path: SwitchPath
    """The path through the switch, if that is one of them."""
    few_words: int = 0
    """That of the process group; 0 without one."""


def backends_of(summation: Summation, group: ProcessGroupSummation | None, path: SwitchPath) -> Backends:
    """Return the backends of a state that sums over `summation`, with or without a process group."""
    by_carrier: dict[Carrier, Summation] = {} if group is None else {"group": Ring(group)}
    if summation is not group:
        by_carrier["switch"] = summation
    return Backends(by_carrier, summation, path, group.few_words if group else 0)


def path_of(summation: Summation) -> SwitchPath:
    """Return the path through the switch of a summation; the default for one that is not of a switch."""
    if not isinstance(summation, SwitchSummation):
        return SwitchPath(lanes=summation.lanes)
    job = summation.config
    return SwitchPath(job.lanes, job.window, 2 * job.window, hops=4 if job.racks else 2)


def reduced(workers: int, words: float, *, tree: bool = False, few: bool = False) -> tuple[float, float]:
    """Return the messages in a row of an all_reduce, and the words on its busiest link.

    few: whether direct messages to all others take the place of ring and tree.
    """
    if few:
        return 1, (workers - 1) * words
    if tree:
        return 2 * rounds(workers), 2 * rounds(workers) * words
    return 2 * (workers - 1), 2 * (workers - 1) / workers * words


def switch_words(lanes: int, parts: Sequence[Part]) -> float:
    """Return the words that whole packets of these parts take on a link, headers included."""
    packets = sum(-(-len(part.words) // lanes) for part in parts)
    return packets * (FRAME_HEADER_BYTES + packet_bytes(lanes)) / 4
