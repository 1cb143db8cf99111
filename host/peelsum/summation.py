"""The interface of a backend, which adds or ORs words over workers.

A backend may be a switch, a process group, or threads of one process. `peelsum.allreduce` calls it.
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
    """Words to be combined over all workers."""

    words: Words
    """uint32[n]. A backend with a `device` that is not None also takes torch tensors there, int32[n]."""
    op: Op
    """The operation: "add" (modulo 2**32) or "or"."""
    check: Callable[[Words], None] | None = None
    """Called with the part's result as soon as it is complete, before later parts are waited for.

    An exception that it raises ends the call of `sum_words`. Workers that disagree stop in this way,
    because later parts would never complete.
    """


class NotBegunError(RuntimeError):
    """A backend's `device` has no memory for a sum. Nothing has been sent: the call can be repeated.

    The message is the device's.
    """


class Summation(Protocol):
    """A backend: sums words over the workers of a job.

    All workers of a job must make the same calls of `sum_words`: in the same order, with parts of the same
    lengths and ops. A backend that goes on without ranks that are lost also has `members`: the rank of each
    worker, as numbered at the start of the run.
    """

    @property
    def lanes(self) -> int:
        """Words per chunk; each part is padded with zeros to whole chunks."""

    @property
    def workers(self) -> int:
        """Number of workers in the job."""

    @property
    def worker_id(self) -> int:
        """This worker's number, from 0."""

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Return each part's result: uint32 of the part's length, native-endian, owned by the caller.

        The result of a tensor is a tensor on the same device.

        Blocks until all results are complete; until then it reads the parts' words, but never writes to them.
        Raises an error if there is no progress for too long; the message names the job, the oldest chunk and
        the missing workers. Raises NotBegunError if a device has no memory for the sum.
        """


class PieceSummation(Summation, Protocol):
    """A backend that can also send words to a single worker, or from a single worker.

    Each of the n workers owns a piece of the words; pieces lie end to end, in the order of the workers. All
    workers must make the same calls in the same order. They raise what `sum_words` raises.
    """

    def reduce_scatter(self, words: Words) -> Words:
        """Return this worker's piece of the sum, modulo 2**32: uint32[k] of uint32[n * k]."""

    def all_gather(self, words: Words) -> Words:
        """Return the words of all workers: uint32[n * k] of uint32[k]."""

    def broadcast(self, words: Words, root: int) -> Words:
        """Return the words of worker `root`, uint32[k]. Other workers pass any k words."""


def gather_by_or(summation: Summation, words: Words) -> Words:
    """Return every worker's words[n], uint32[workers, n], by an OR with zeros in other workers' rows."""
    rows = np.zeros((summation.workers, words.size), np.uint32)
    rows[summation.worker_id] = words
    (total,) = summation.sum_words([Part(rows.reshape(-1), "or")])
    return total.reshape(rows.shape)
