"""What the all-reduce asks of whoever adds words up: a switch, or threads of one process.

It knows nothing of tensors; a way to sum sees words and chunks only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Op = Literal["add", "or"]


@dataclass(frozen=True)
class Part:
    """Words uint32[n] to be combined, over all workers, by addition modulo 2**32 or by OR.

    `check`, if given, is called with the part's result as soon as that is complete, before the parts behind
    it are waited for. What it raises ends the call: the way out when workers turn out to be at cross purposes
    and the parts behind would never complete.
    """

    words: Words
    op: Op
    check: Callable[[Words], None] | None = None


class Summation(Protocol):
    """A way to sum. All workers of a job call `sum` with parts of like lengths and ops, in the same order."""

    @property
    def lanes(self) -> int:
        """Words per chunk; each part is padded with zeros to whole chunks."""

    @property
    def workers(self) -> int:
        """How many workers the job has."""

    @property
    def worker_id(self) -> int:
        """This worker's number, from 0."""

    def sum(self, parts: Sequence[Part]) -> list[Words]:
        """The parts' results, each of its part's length, native-endian, the caller's to keep.

        Blocks until all are there; reads the parts' words until then, and never writes to them. Raises if
        nothing moves for too long, naming the job, the oldest chunk and the missing workers.
        """
