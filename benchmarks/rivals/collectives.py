"""Collectives as transfers between hosts: what rivals of the switch send, and in which order.

A collective is a function from a number of workers and a number of words to `Transfers`. To add one, write
such a function and put it into `COLLECTIVES`; docs/reference/simulation.md has an example. Adding words up
takes no time here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Transfer(NamedTuple):
    """Words that one host sends to another once earlier transfers have arrived."""

    source: int
    target: int
    words: int
    after: tuple[int, ...] = ()
    """Indices of transfers to `source` that have to arrive first."""
    part: int = 0
    """Which part of the words it carries; for the check of sums."""
    adds: bool = True
    """Whether the receiver adds the words to its own; else it replaces them."""


@dataclass
class Transfers:
    """The transfers of one collective, in an order in which each comes after those that it waits for."""

    workers: int
    parts: int
    """Number of parts of the words."""
    gathers: bool = False
    """Whether workers receive each other's words instead of a sum: part w is what worker w sends."""
    each: list[Transfer] = field(default_factory=list)

    def add(self, source: int, target: int, words: int, after: tuple[int, ...], part: int, adds: bool) -> int:
        """Append a transfer and return its index."""
        self.each.append(Transfer(source, target, words, after, part, adds))
        return len(self.each) - 1

    def wrong(self, arrived: Sequence[int]) -> int:
        """Return how many parts are wrong at workers if transfers take effect in the order of their arrival.

        Worker w starts with 3**(w % 30) + w in every part; integers have no limit here.
        """
        values = [3 ** (w % 30) + w for w in range(self.workers)]
        have = [[value] * self.parts for value in values]
        for t in sorted(range(len(self.each)), key=lambda t: (arrived[t], t)):
            source, target, _, _, part, adds = self.each[t]
            have[target][part] = have[source][part] + have[target][part] * adds
        expected = values[: self.parts] if self.gathers else [sum(values)] * self.parts
        return sum(a != b for w in range(self.workers) for a, b in zip(have[w], expected, strict=True))


Collective = Callable[[int, int], Transfers]


def ring(workers: int, words: int) -> Transfers:
    """Return a ring all_reduce: 2 (n - 1) rounds, each worker sends an n-th of the words to the next.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
    Left out: several rings at once, and NCCL's slices within a round.
    """
    return _round_the_ring(Transfers(workers, workers), shares(words, workers), 2 * (workers - 1))


def all_gather(workers: int, words: int) -> Transfers:
    """Return a ring all_gather: n - 1 rounds, each worker passes on all words of one worker.

    This is how top-k gradients are exchanged where nothing adds them up: `words` are a worker's indices and
    values. Source: Thakur, Rabenseifner and Gropp (2005), section 3.1. Left out: adding up at the end.
    """
    return _round_the_ring(Transfers(workers, workers, gathers=True), [words] * workers, workers - 1)


def _round_the_ring(transfers: Transfers, sizes: Sequence[int], rounds: int) -> Transfers:
    """Let each worker send the next one a part in every round; the first half of a sum's rounds adds."""
    last: dict[int, int] = {}
    for number in range(rounds):
        sent: dict[int, int] = {}
        adds = not transfers.gathers and number < transfers.workers - 1
        for worker in range(transfers.workers):
            part, target = (worker - number) % transfers.workers, (worker + 1) % transfers.workers
            after = (last[worker],) if number else ()
            sent[target] = transfers.add(worker, target, sizes[part], after, part, adds)
        last = sent
    return transfers


def binomial(workers: int, words: int) -> Transfers:
    """Return a reduce and a broadcast by binomial trees: 2 log2(n) rounds of all words, in pieces.

    Source: Thakur, Rabenseifner and Gropp (2005), sections 3.2 and 4.4; 16 pieces follow each other, as in
    pipelined trees. Left out: NCCL's double tree, which uses the leaves' links, too.
    """
    levels, pieces = (workers - 1).bit_length(), 16
    transfers = Transfers(workers, pieces)
    for part, size in enumerate(shares(words, pieces)):
        arrived: dict[int, tuple[int, ...]] = {}
        for level in range(levels):
            for worker in range(1 << level, workers, 2 << level):
                parent = worker - (1 << level)
                index = transfers.add(worker, parent, size, arrived.get(worker, ()), part, True)
                arrived[parent] = (*arrived.get(parent, ()), index)
        have = {0: arrived.get(0, ())}
        for level in reversed(range(levels)):
            for worker in range(0, workers, 2 << level):
                child = worker + (1 << level)
                if child < workers:
                    have[child] = (transfers.add(worker, child, size, have[worker], part, False),)
    return transfers


def sharded_server(workers: int, words: int) -> Transfers:
    """Return a server on every worker's host, each for an n-th of the words.

    Source: Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous
    GPU/CPU Clusters" (OSDI'20; BytePS), without additional hosts. Left out: its CPU hosts.
    """
    transfers, sizes = Transfers(workers, workers), shares(words, workers)
    others = [[worker for worker in range(workers) if worker != server] for server in range(workers)]
    sent = [
        tuple(transfers.add(worker, server, size, (), server, True) for worker in others[server])
        for server, size in enumerate(sizes)
    ]
    for server, size in enumerate(sizes):
        for worker in others[server]:
            transfers.add(server, worker, size, sent[server], server, False)
    return transfers


#: The collectives by name.
COLLECTIVES: dict[str, Collective] = {
    "ring": ring,
    "binomial": binomial,
    "all_gather": all_gather,
    "sharded_server": sharded_server,
}


def shares(words: int, parts: int) -> list[int]:
    """Return the sizes of nearly equal parts."""
    return [(part + 1) * words // parts - part * words // parts for part in range(parts)]
