"""A backend of one worker, in memory: what an allreduce sends and takes without a network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from peelsum.summation import Part, Words

LANES = 256


class Sent(NamedTuple):
    """A part of an exchange."""

    op: str
    words: int
    checked: bool
    """Whether the part is compared with what all workers should have sent."""


class Alone:
    """A backend that returns what it gets, and remembers its time and the parts of each exchange."""

    workers, worker_id, lanes = 1, 0, LANES

    def __init__(self) -> None:
        #: Processor seconds of all calls.
        self.spent_s = 0.0
        self.exchanges = list[list[Sent]]()

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        started = time.process_time()
        self.exchanges.append([Sent(part.op, part.words.size, part.check is not None) for part in parts])
        sums = [part.words.copy() for part in parts]
        self.spent_s += time.process_time() - started
        for part, result in zip(parts, sums, strict=True):
            if part.check is not None:
                part.check(result)
        return sums
