"""Compare an algorithm and a slot protocol of your own on the links of `peelsum simulate`.

The algorithm is a chain: partial sums run to the last worker, the sum runs back. The protocol is a switch
with a slot for every chunk, which needs no server and survives no loss.
"""

from __future__ import annotations

import numpy as np

from benchmarks.rivals.collectives import Transfers, shares
from benchmarks.rivals.flows import FlowRow, run_collective
from benchmarks.rivals.slot_model import (
    EVERYBODY,
    Message,
    Setting,
    SlotProtocol,
    SlotRow,
    Words,
    run_protocol,
)
from peelsum.simulation import Job, Scenario


def chain(workers: int, words: int) -> Transfers:
    """Return an all_reduce along a chain and back, in 16 pieces that follow each other."""
    found = Transfers(workers, parts=16)
    for part, size in enumerate(shares(words, 16)):
        last: tuple[int, ...] = ()
        for worker in range(workers - 1):
            last = (found.add(worker, worker + 1, size, last, part, True),)
        for worker in reversed(range(1, workers)):
            last = (found.add(worker, worker - 1, size, last, part, False),)
    return found


class Worker:
    """A worker that sends everything at once and waits."""

    resends = 0

    def __init__(self, setting: Setting, number: int) -> None:
        self.results: dict[int, Words] = {}
        self._chunks = setting.chunks
        self._messages = [
            Message(1, number, chunk, words) for chunk, words in enumerate(setting.words[number])
        ]

    @property
    def done(self) -> bool:
        """Whether it has all results."""
        return len(self.results) == self._chunks

    def start(self, now: float) -> list[Message]:
        """Send every chunk."""
        return self._messages

    def receive(self, message: Message, now: float) -> list[Message]:
        """Take a sum."""
        self.results[message.chunk] = message.words
        return []

    def next_timer(self) -> float | None:
        """Return None: nothing is sent again."""
        return None

    def expire(self, now: float) -> list[Message]:
        """Send nothing."""
        return []


class Switch:
    """A switch that counts each chunk's packets."""

    def __init__(self, setting: Setting) -> None:
        self._workers, self._slots, self.in_switch = setting.workers, dict[int, tuple[int, Words]](), 0

    def process(self, message: Message, *, from_server: bool) -> list[tuple[int, Message]]:
        """Add a chunk; send its sum once all are in."""
        count, words = self._slots.get(message.chunk, (0, np.zeros_like(message.words)))
        self._slots[message.chunk] = count + 1, words + message.words
        if count + 1 < self._workers:
            return []
        self.in_switch += 1
        return [(EVERYBODY, message._replace(words=self._slots[message.chunk][1]))]


def compared() -> tuple[FlowRow, SlotRow]:
    """Return what each takes for 8 workers."""
    scenario = Scenario(jobs=(Job(workers=8, elements=100_000),))
    return run_collective(scenario, "chain", chain), run_protocol(
        scenario, "own slots", SlotProtocol(Worker, Switch, survives_loss=False)
    )


if __name__ == "__main__":
    for row in compared():
        print(row)
