"""Collectives as transfers between hosts: what rivals of the switch send, and in which order.

A collective is a function from a number of workers and a number of words to `Transfers`. To add one, write
such a function and put it into `COLLECTIVES`; docs/reference/simulation.md has an example. Adding words up
takes no time here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Transfer:
    """Words that one host sends to another once earlier transfers have arrived."""

    source: int
    """The sender's number."""
    target: int
    """The receiver's number."""
    words: int
    """32-bit words."""
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
    """Number of workers."""
    parts: int
    """Number of parts of the words."""
    gathers: bool = False
    """Whether workers receive each other's words instead of a sum: part w is what worker w sends."""
    each: list[Transfer] = field(default_factory=list)
    """The transfers."""

    def add(self, source: int, target: int, words: int, after: tuple[int, ...], part: int, adds: bool) -> int:
        """Append a transfer and return its index."""
        self.each.append(Transfer(source, target, words, after, part, adds))
        return len(self.each) - 1


Collective = Callable[[int, int], Transfers]


def ring(workers: int, words: int) -> Transfers:
    """Return a ring all_reduce: 2 (n - 1) rounds, each worker sends an n-th of the words to the next.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
    Left out: several rings at once, and NCCL's slices within a round.
    """
    transfers = Transfers(workers, workers)
    last: dict[int, int] = {}
    sizes = list(shares(words, workers))
    for step in range(2 * (workers - 1)):
        sent: dict[int, int] = {}
        for worker in range(workers):
            part = (worker - step) % workers
            after = (last[worker],) if step else ()
            target = (worker + 1) % workers
            sent[target] = transfers.add(worker, target, sizes[part], after, part, step < workers - 1)
        last = sent
    return transfers


def all_gather(workers: int, words: int) -> Transfers:
    """Return a ring all_gather: n - 1 rounds, each worker passes on all words of one worker.

    This is how top-k gradients are exchanged where nothing adds them up: `words` are a worker's indices and
    values. Source: Thakur, Rabenseifner and Gropp (2005), section 3.1. Left out: adding up at the end.
    """
    transfers = Transfers(workers, workers, gathers=True)
    last: dict[int, int] = {}
    for step in range(workers - 1):
        sent: dict[int, int] = {}
        for worker in range(workers):
            target, after = (worker + 1) % workers, ((last[worker],) if step else ())
            sent[target] = transfers.add(worker, target, words, after, (worker - step) % workers, False)
        last = sent
    return transfers


def binomial(workers: int, words: int) -> Transfers:
    """Return a reduce and a broadcast by binomial trees: 2 log2(n) rounds of all words, in pieces.

    Source: Thakur, Rabenseifner and Gropp (2005), sections 3.2 and 4.4; 16 pieces follow each other, as in
    pipelined trees. Left out: NCCL's double tree, which uses the leaves' links, too.
    """
    levels, pieces = (workers - 1).bit_length(), 16
    transfers = Transfers(workers, pieces)
    sizes = list(shares(words, pieces))
    for part in range(pieces):
        arrived: dict[int, list[int]] = {}
        for level in range(levels):
            for worker in range(1 << level, workers, 2 << level):
                parent = worker - (1 << level)
                after = tuple(arrived.get(worker, ()))
                arrived.setdefault(parent, []).append(
                    transfers.add(worker, parent, sizes[part], after, part, True)
                )
        have = {0: tuple(arrived.get(0, ()))}
        for level in reversed(range(levels)):
            for worker in range(0, workers, 2 << level):
                child = worker + (1 << level)
                if child < workers:
                    have[child] = (transfers.add(worker, child, sizes[part], have[worker], part, False),)
    return transfers


def sharded_server(workers: int, words: int) -> Transfers:
    """Return a server on every worker's host, each for an n-th of the words.

    Source: Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous
    GPU/CPU Clusters" (OSDI'20; BytePS), without additional hosts. Left out: its CPU hosts.
    """
    transfers, sizes = Transfers(workers, workers), list(shares(words, workers))
    sent = [
        tuple(
            transfers.add(worker, server, size, (), server, True)
            for worker in range(workers)
            if worker != server
        )
        for server, size in enumerate(sizes)
    ]
    for server, size in enumerate(sizes):
        for worker in range(workers):
            if worker != server:
                transfers.add(server, worker, size, sent[server], server, False)
    return transfers


#: The collectives by name.
COLLECTIVES: dict[str, Collective] = {
    "ring": ring,
    "binomial": binomial,
    "all_gather": all_gather,
    "sharded_server": sharded_server,
}


def shares(words: int, parts: int) -> Iterator[int]:
    """Yield the sizes of nearly equal parts."""
    for part in range(parts):
        yield (part + 1) * words // parts - part * words // parts
