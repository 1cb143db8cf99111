"""Go on with the ranks that are left when others are lost (`on_lost="continue"`).

Theory of operation. Sums complete in the same order on all ranks, one at a time. When a rank is lost, the
others report how many sums they have completed, and the controller admits them in a new generation. The
counts differ by at most one, because a rank contributes to a sum only after it has completed the one before.
If some ranks have completed a sum, the first of them sends its result to all, by a sum in which the others
contribute zeros. All sums after it begin again, from their gradients, without the lost rank. What was learned
from earlier sums is forgotten, because ranks that lack the last sum have learned less from it.
"""

from __future__ import annotations

import logging
from typing import Protocol

import numpy as np

from peelsum.summation import Part, Words
from peelsum.transport import SwitchSummation, job_config
from peelsum.transport.errors import StalledError, TransportError, WorkerLeftError
from peelsum.transport.joining import join_limit_s
from peelsum.transport.lease import Generation, RankLostError

#: The ranks whose gradients a sum has, as they were at the start.
Members = tuple[int, ...]
_log = logging.getLogger("peelsum.torch")
#: The errors of sums after which those that are left may go on.
RECOVERABLE = (RankLostError, StalledError, WorkerLeftError)


class RepeatableWork(Protocol):
    """A sum that can begin again as long as it has not completed."""

    def begin(self) -> None:
        """Take what was learned from earlier sums, for the next call."""

    def __call__(self) -> object:
        """Sum the gradients, and replace them by their averages at the end."""

    def result(self) -> Words:
        """Return the bits of the averages, uint32[n]."""

    def accept(self, words: Words, members: Members) -> None:
        """Replace the gradients by averages over `members` with these bits, which another rank has sent."""


class MemberChanges:
    """The members of a run, and the changes of them, for the sums of one rank."""

    def __init__(self, backend: SwitchSummation) -> None:
        """backend: has a lease in a run that survives the loss of ranks."""
        self._backend, (self._lease, *_) = backend, backend.leases
        self._rank = backend.worker_id
        #: The ranks that sum, as they were at the start of the run; worker i of the job is members[i].
        self.members = tuple(range(backend.workers))
        #: Whether a sum has failed for another reason than a loss.
        self.failed = False
        #: The number of sums that this rank has completed, and the result of the last one.
        self._completed, self._last_result = 0, np.empty(0, np.uint32)
        #: The members of the last sum, a bit each.
        self._last_members = 0

    def complete(self, work: RepeatableWork) -> None:
        """Count a completed sum, and keep a copy of its result for ranks that lack it."""
        self._completed, self._last_result = self._completed + 1, work.result()
        self._last_members = sum(1 << rank for rank in self.members)

    def continue_after(self, error: Exception, work: RepeatableWork | None) -> bool:
        """Continue in a generation without the ranks that were lost.

        error: one of RECOVERABLE, with which `work` ended. work: the sum that did not complete; None if
        none is waited for. Return whether another rank had completed that sum, so that `work` has its result,
        and is counted.
        Raises TransportError if this rank is no longer a member, or if the controller cannot admit the rest.
        """
        if isinstance(error, StalledError):
            if not error.missing_workers:
                raise error
            missing = [self.members[worker] for worker in error.missing_workers]
            self._lease.send(call="stalled", silent=missing)
        while True:
            next_chunk = self._backend.next_chunk
            generation = self._lease.agree(self._completed, next_chunk, join_limit_s())
            self._enter(generation)
            try:
                return self._complete_last_sum(generation, work)
            except RankLostError:
                continue

    def close(self) -> None:
        """Leave the job, once all members have all results."""
        while not self.failed:
            try:
                self._backend.finish(check_leases=True)
                break
            except RankLostError as error:
                self.continue_after(error, None)
        self._backend.close()

    def _enter(self, generation: Generation) -> None:
        """Connect to a new generation."""
        lost = sorted(set(self.members) - set(generation.members))
        if self._rank not in generation.members:
            raise TransportError(f"member: rank {self._rank} is no longer a member; start it again")
        self.members = generation.members
        self._backend.continue_in(job_config(generation.admission), generation.members.index(self._rank))
        _log.warning(
            "ranks %s were lost, with what they had not sent yet; ranks %s continue in generation %d",
            ", ".join(map(str, lost)) or "none",
            ", ".join(map(str, self.members)),
            self._backend.config.generation,
        )

    def _complete_last_sum(self, generation: Generation, work: RepeatableWork | None) -> bool:
        """Send the last sum that any member has completed to those that lack it, if some do."""
        most = max(generation.completed)
        if min(generation.completed) == most:
            return False
        if min(generation.completed) < most - 1:
            counts = ", ".join(map(str, generation.completed))
            raise TransportError(f"members: have completed {counts} sums; start all ranks again")
        is_sender = generation.members[generation.completed.index(most)] == self._rank
        header = np.array([self._last_result.size, self._last_members], np.uint32)
        size, members = map(int, self._from_sender(header, send=is_sender))
        words = self._last_result if is_sender else np.empty(size, np.uint32)
        result = self._from_sender(words, send=is_sender)
        if self._completed == most:
            return False
        if work is None:
            raise TransportError("members: this rank has submitted fewer sums than others; start all again")
        work.accept(result, tuple(rank for rank in range(members.bit_length()) if members >> rank & 1))
        self._completed, self._last_result, self._last_members = most, result, members
        return True

    def _from_sender(self, words: Words, *, send: bool) -> Words:
        """Return the sender's words; those of the others are only of the same number."""
        (result,) = self._backend.sum_words([Part(words if send else np.zeros_like(words), "or")])
        return result
