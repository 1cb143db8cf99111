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
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import torch

from peelsum.summation import Part, Words
from peelsum.transport import SwitchSummation, job_config
from peelsum.transport.errors import StalledError, TransportError, WorkerLeftError
from peelsum.transport.joining import join_limit_s
from peelsum.transport.lease import Generation, RankLostError

#: The ranks whose gradients a sum has, as they were at the start.
Ranks = tuple[int, ...]
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

    def accept(self, words: Words, members: Ranks) -> None:
        """Replace the gradients by averages over `members` with these bits, which another rank has sent."""


class MemberChanges:
    """The members of a run, and the changes of them, for the sums of one rank."""

    def __init__(self, backend: SwitchSummation, generation: Generation | None = None) -> None:
        """backend: has a lease in a run that survives the loss of ranks.

        generation: the one in which this rank enters; None at the start of a run.
        """
        self._backend, (self._lease, *_) = backend, backend.leases
        #: The ranks that sum, as they were at the start of the run; worker i of the job is members[i].
        self.members = tuple(range(backend.workers)) if generation is None else generation.members
        #: The members that have entered, and have not got the state of the others yet.
        self.lacking = set() if generation is None else set(generation.entered)
        self._rank = self.members[backend.worker_id]
        #: Whether a sum has failed for another reason than a loss.
        self.failed = False
        #: The number of sums that this rank has completed, and the result of the last one.
        self._completed = 0 if generation is None else max(generation.completed)
        self._last_result = np.empty(0, np.uint32)
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
        while True:
            if isinstance(error, StalledError):
                if not error.missing_workers:
                    raise error
                missing = [self.members[worker] for worker in error.missing_workers]
                self._lease.send(call="stalled", silent=missing)
            next_chunk = self._backend.next_chunk
            generation = self._lease.agree(self._completed, next_chunk, join_limit_s())
            self._enter(generation)
            try:
                return self._complete_last_sum(generation, work)
            except RECOVERABLE as again:
                error = again

    def begin_step(self, step: int) -> bool:
        """Return whether ranks enter before this step; then call `admit`, once all sums are done."""
        return self._lease.begin_step(step, join_limit_s())

    def admit(self) -> None:
        """Continue in a generation with the ranks that enter; or without any, if another is lost now."""
        agreed = self._lease.agree(self._completed, self._backend.next_chunk, join_limit_s(), entry=True)
        self._enter(agreed)
        try:
            self._complete_last_sum(agreed, None)
        except RECOVERABLE as error:
            self.continue_after(error, None)

    @property
    def rank(self) -> int:
        """This rank, as at the start of the run; if it has entered later, that of a rank that was lost."""
        return self._rank

    @property
    def sends_state(self) -> bool:
        """Whether this rank sends the state to those that lack it: the lowest that has it."""
        return self._rank == min(set(self.members) - self.lacking, default=-1)

    def close(self) -> None:
        """Leave the job, once all members have all results."""
        while not self.failed:
            try:
                self._backend.finish(check_leases=True)
                break
            except RECOVERABLE as error:
                self.continue_after(error, None)
        self._backend.close()

    def _enter(self, generation: Generation) -> None:
        """Connect to a new generation."""
        lost = sorted(set(self.members) - set(generation.members))
        if self._rank not in generation.members:
            raise TransportError(f"member: rank {self._rank} is no longer a member; start it again")
        self.members = generation.members
        self.lacking = (self.lacking | set(generation.entered)) & set(self.members)
        self._backend.continue_in(job_config(generation.admission), generation.members.index(self._rank))
        happened = [f"rank {rank} was lost, with what it had not sent yet" for rank in lost]
        happened += [f"rank {rank} enters" for rank in generation.entered]
        members, number = ", ".join(map(str, self.members)), self._backend.config.generation
        _log.warning("%s; ranks %s continue in generation %d", ", ".join(happened), members, number)

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


class StateBroadcast:
    """The broadcast of the state to ranks that enter, as `RepeatableWork`."""

    def __init__(
        self,
        changes: MemberChanges,
        sum_words: Callable[[list[Part]], list[Words]],
        save: Callable[[], Mapping[str, Any]],
    ) -> None:
        """save: returns the state, of values that `torch.load` accepts with `weights_only`."""
        self._changes, self._sum_words, self._save = changes, sum_words, save
        self._content = np.empty(0, np.uint8)

    def begin(self) -> None:
        """Do nothing: a broadcast learns nothing from earlier sums."""

    def __call__(self) -> None:
        """Send the state, or receive it."""
        send = self._changes.sends_state
        if send and not self._content.size:
            buffer = BytesIO()
            torch.save(self._save(), buffer)
            self._content = np.frombuffer(buffer.getvalue(), np.uint8)
        size = np.array([self._content.size if send else 0], np.uint32)
        (total,) = self._sum_words([Part(size, "or")])
        words = np.zeros(-(-int(total[0]) // 4), np.uint32)
        if send:
            words.view(np.uint8)[: self._content.size] = self._content
        (received,) = self._sum_words([Part(words, "or")])
        self._content = received.view(np.uint8)[: int(total[0])]

    def result(self) -> Words:
        """Return the state's size and bytes."""
        words = np.zeros(1 - (-self._content.size // 4), np.uint32)
        words[0] = self._content.size
        words[1:].view(np.uint8)[: self._content.size] = self._content
        return words

    def accept(self, words: Words, members: Ranks) -> None:
        """Take the state that another rank has sent."""
        self._content = words[1:].view(np.uint8)[: int(words[0])]

    def state(self) -> Mapping[str, Any]:
        """Return the state that was sent. Raises TransportError if no rank had one."""
        if not self._content.size:
            raise TransportError("enter: all ranks with the state were lost; start all ranks again")
        values: Mapping[str, Any] = torch.load(BytesIO(self._content.tobytes()), weights_only=True)
        return values
