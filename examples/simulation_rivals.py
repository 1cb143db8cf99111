"""Compare a collective and a P4 program of your own on the links of `peelsum simulate`.

The collective is a chain: partial sums run to the last worker, the sum runs back. The program,
switch/rivals/counting.p4, has a slot for every chunk; it needs no server and survives no loss.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.rivals.collectives import Transfers, shares
from benchmarks.rivals.flows import run_collective
from benchmarks.rivals.program_bench import Message, RivalRow, SlotProtocol, Worker, run_protocol
from peelsum.simulation import Job, Scenario

PROGRAM = Path(__file__).parents[1] / "switch" / "rivals" / "counting.json"


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
        return [Message(chunk, words) for chunk, words in enumerate(self.words)]

    def receive(self, message: Message, now: float) -> list[Message]:
        """Take a sum."""
        self.results[message.chunk] = message.words
        return []


def compared() -> tuple[RivalRow, RivalRow]:
    """Return what each takes for 8 workers."""
    scenario = Scenario(jobs=(Job(workers=8, elements=100_000),))
    return run_collective(scenario, "chain", chain), run_protocol(
        scenario, "counting", SlotProtocol(PROGRAM, Eager)
    )


if __name__ == "__main__":
    for row in compared():
        print(row)
