"""Buckets that wait for the next bucket of their backward pass, to travel in the same exchanges.

Theory of operation. A bucket of few words takes longer in exchanges' round trips than on the link. So it
waits, until the buckets that wait would take the link longer than the exchanges that they save. Every rank
decides the same: DDP hands over buckets in the same order on all ranks, and all ranks send as many words for
a sum. Only sums of earlier passes count, which are done on every rank when another pass begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from peelsum.allreduce import NetworkModel
from peelsum.torch.errors import HookError
from peelsum.torch.host_memory import Bucket

#: The exchanges of most sums: header and values.
_EXCHANGES = 2
#: Buckets that were summed together stay together until they take this many times the words.
_STAY = 2.0


@dataclass(frozen=True, eq=False)
class Waiting:
    """A bucket that waits."""

    bucket: Bucket
    names: tuple[str, ...]
    """The names of its parameters."""
    done: Future[None]
    """Completes with the sum; the same for all buckets that wait together."""


class WaitingBuckets:
    """The buckets that wait in one backward pass. `network`: the model of what words and exchanges take."""

    def __init__(self, network: NetworkModel) -> None:
        self._network = network
        self._waiting: list[Waiting] = []
        self._pass: int | None = None
        #: Words of each bucket's last sum, by its names.
        self._words: dict[tuple[str, ...], int] = {}
        #: The names of buckets that waited for another the last time.
        self._together: set[tuple[tuple[str, ...], ...]] = set()

    def ended(self, names: tuple[str, ...], within: int | None) -> bool:
        """Return whether what waits must be summed before a bucket of the backward pass `within`.

        So it is if the pass is another, e.g. one inside of the first. If the bucket itself waits, its pass
        has failed. Then what waits is dropped, because its gradients have been replaced.
        """
        if any(one.names == names for one in self._waiting):
            dropped = self.taken()[0].done
            dropped.set_exception(HookError("sum: its backward pass ended before the last bucket"))
        before, self._pass = self._pass, within
        return bool(self._waiting) and before != within

    def add(self, bucket: Bucket, names: tuple[str, ...]) -> Future[None]:
        """Add a bucket; return the future of its sum."""
        done = self._waiting[0].done if self._waiting else Future()
        self._waiting.append(Waiting(bucket, names, done))
        return done

    def wait(self) -> bool:
        """Return whether the buckets wait for another."""
        names = tuple(one.names for one in self._waiting)
        if any(one not in self._words for one in names):
            return False
        worth_s = _EXCHANGES * self._network.round_trip_s * (_STAY if names in self._together else 1.0)
        together = self._network.seconds(sum(self._words[one] for one in names), 0) <= worth_s
        (self._together.add if together else self._together.discard)(names)
        return together

    def taken(self) -> Sequence[Waiting]:
        """Return the buckets that wait, which then wait no longer."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def learn(self, waiting: Sequence[Waiting], sent: Mapping[str, int]) -> None:
        """Note how many words the sum of these buckets took for each parameter, for the next pass."""
        for one in waiting:
            self._words[one.names] = sum(sent[name] for name in one.names)
