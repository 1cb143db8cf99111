"""Compare an algorithm and a slot protocol of your own on the links of `peelsum simulate`.

The algorithm is a chain: partial sums run to the last worker, the sum runs back. The protocol is a switch
with a slot for every chunk, which needs no server and survives no loss.
"""

from __future__ import annotations

import numpy as np

from benchmarks.rivals.collectives import Transfers, shares
from benchmarks.rivals.flows import run_collective
from benchmarks.rivals.slot_model import (
    EVERYBODY,
    Message,
    RivalRow,
    SlotJob,
    SlotProgram,
    SlotProtocol,
    Words,
    Worker,
    run_protocol,
)
from peelsum.simulation import Job, Scenario


def chain(workers: int, words: int) -> Transfers:
    """Return an all_reduce along a chain and back, in 16 pieces that follow each other."""
    transfers = Transfers(workers, parts=16)
    for part, size in enumerate(shares(words, 16)):
        last: tuple[int, ...] = ()
        for worker in range(workers - 1):
            last = (transfers.add(worker, worker + 1, size, last, part, True),)
        for worker in reversed(range(1, workers)):
            last = (transfers.add(worker, worker - 1, size, last, part, False),)
    return transfers


class Eager(Worker):
    """A worker that sends everything at once and waits."""

    def start(self, now: float) -> list[Message]:
        """Send every chunk."""
        return [Message(1, self.number, chunk, words) for chunk, words in enumerate(self.words)]

    def receive(self, message: Message, now: float) -> list[Message]:
        """Take a sum."""
        self.results[message.chunk] = message.words
        return []


class Switch(SlotProgram):
    """A switch that counts each chunk's packets."""

    def __init__(self, job: SlotJob) -> None:
        super().__init__(job)
        self._slots: dict[int, tuple[int, Words]] = {}

    def process(self, message: Message, *, from_server: bool) -> list[tuple[int, Message]]:
        """Add a chunk; send its sum once all are in."""
        count, words = self._slots.get(message.chunk, (0, np.zeros_like(message.words)))
        self._slots[message.chunk] = count + 1, words + message.words
        if count + 1 < self.job.workers:
            return []
        self.in_switch += 1
        return [(EVERYBODY, message._replace(words=self._slots[message.chunk][1]))]


def compared() -> tuple[RivalRow, RivalRow]:
    """Return what each takes for 8 workers."""
    scenario = Scenario(jobs=(Job(workers=8, elements=100_000),))
    return run_collective(scenario, "chain", chain), run_protocol(
        scenario, "own slots", SlotProtocol(Eager, Switch, survives_loss=False)
    )


if __name__ == "__main__":
    for row in compared():
        print(row)
