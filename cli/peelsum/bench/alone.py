"""A backend of one worker, in memory, which records what an allreduce sends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from peelsum.summation import Part, Words

LANES = 256


class SentPart(NamedTuple):
    """A part of an exchange."""

    op: str
    """The operation, "add" or "or"."""
    words: int
    """Number of words."""
    checked: bool
    """Whether the part has a check of its sums, such as of a digest."""


class LoopbackSummation:
    """A backend that returns copies of its input, and records its own time and the parts of exchanges."""

    workers, worker_id, lanes = 1, 0, LANES

    def __init__(self) -> None:
        #: Processor seconds of all calls.
        self.spent_s = 0.0
        self.exchanges = list[list[SentPart]]()

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        started = time.process_time()
        self.exchanges.append([SentPart(part.op, part.words.size, part.check is not None) for part in parts])
        sums = [part.words.copy() for part in parts]
        self.spent_s += time.process_time() - started
        for part, result in zip(parts, sums, strict=True):
            if part.check is not None:
                part.check(result)
        return sums
