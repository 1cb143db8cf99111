"""Go on with the ranks that are left when others are lost (`on_lost="continue"`).

Theory of operation. Sums complete in the same order on all ranks, one at a time; each takes one or more
exchanges. When a rank is lost, the others report how many sums they have completed, and the controller admits
them in a new generation. The counts differ by at most one, because a rank contributes to a sum only after it
has completed the one before. If some ranks have completed a sum, all others have contributed to its last
exchange, and wait for the result. The first of those that have it sends it to all, by a sum in which the
others contribute zeros; they then complete the sum as usual, residuals included. All sums after it begin
again, from their gradients, without the lost rank.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import torch

from peelsum.summation import Part, Words
from peelsum.transport import SwitchSummation, job_config
from peelsum.transport.errors import StalledError, TransportError, WorkerLeftError
from peelsum.transport.joining import join_limit_s
from peelsum.transport.lease import Generation, RankEntersError, RankLostError

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


class OutdatedError(Exception):
    """The members have changed since the sum began, so it begins again."""


class MemberChanges:
    """The members of a run, and the changes of them: a rank's `Summation` that survives the loss of others.

    Its sums raise OutdatedError when they have to begin again.
    """

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
        #: Called after a change in a sum.
        self.on_change: Callable[[], None] = lambda: None
        #: The number of sums that this rank has completed, and the result of the last exchange.
        self._completed = 0 if generation is None else max(generation.completed)
        self._last_result = np.empty(0, np.uint32)
        #: Whether the sum that runs has got the result of its last exchange from another rank.
        self.has_result = False
        self.lanes = backend.lanes

    @property
    def workers(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def worker_id(self) -> int:
        """This rank's place among the members."""
        return self.members.index(self._rank)

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        sizes = [part.words.size for part in parts]
        return self._exchange(lambda: self._backend.sum_words(parts), sizes)

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`."""
        (gathered,) = self._exchange(lambda: [self._backend.all_gather(words)], [words.size * self.workers])
        return gathered

    def _exchange(self, exchange: Callable[[], list[Words]], sizes: Sequence[int]) -> list[Words]:
        """Return the result of an exchange; after a loss, another rank's if that has completed the sum."""
        try:
            results = exchange()
        except RECOVERABLE as error:
            received = self._continue_after(error, sum(sizes))
            self.on_change()
            if received is None:
                raise OutdatedError from error
            self._last_result, self.has_result = received, True
            results = np.split(received.copy(), np.cumsum(sizes[:-1]))
        else:
            # A copy, because the sum may overwrite its results.
            self._last_result = np.concatenate([np.empty(0, np.uint32), *results])
        return results

    def complete(self) -> None:
        """Count a completed sum."""
        self._completed, self.has_result = self._completed + 1, False

    def _continue_after(self, error: Exception, size: int | None) -> Words | None:
        """Continue in a generation without the ranks that were lost.

        error: one of RECOVERABLE. size: the number of words for which an exchange waited; None if none did.
        Return these words if another rank had completed the sum, None if it begins again.
        Raises TransportError if this rank is no longer a member, or if the controller cannot admit the rest.
        """
        while True:
            if isinstance(error, StalledError):
                places = self._backend.config.worker_ids
                missing = [self.members[places.index(worker)] for worker in error.missing_workers]
                if not missing or self.members == (self._rank,):
                    raise error  # no change of the members will come
                self._lease.send(call="stalled", silent=missing)
            next_chunk = self._backend.next_chunk
            generation = self._lease.agree(self._completed, next_chunk, join_limit_s())
            self._enter(generation)
            try:
                return self._complete_last_sum(generation, size)
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
            self._continue_after(error, None)

    @property
    def rank(self) -> int:
        """This rank, as at the start of the run; if it has entered later, that of a rank that was lost."""
        return self._rank

    @property
    def sends_state(self) -> bool:
        """Whether this rank sends the state to those that lack it: the lowest that has it."""
        return self._rank == min(set(self.members) - self.lacking, default=-1)

    def abort(self, reason: str) -> None:
        """Leave the job as a rank that is lost; see `SwitchSummation.abort`."""
        self.failed = True
        self._backend.abort(reason)

    def close(self) -> None:
        """Leave the job, once all members have all results."""
        while not self.failed:
            try:
                self._backend.finish(check_leases=True)
                break
            except RankEntersError:
                self._lease.report(self._completed, self._backend.next_chunk)
            except RECOVERABLE as error:
                self._continue_after(error, None)
        self._backend.close()

    def _enter(self, generation: Generation) -> None:
        """Connect to a new generation."""
        lost = sorted(set(self.members) - set(generation.members))
        if self._rank not in generation.members:
            raise TransportError(f"member: rank {self._rank} is no longer a member; start it again")
        self.members = generation.members
        self.lacking = (self.lacking | set(generation.entered)) & set(self.members)
        self._backend.continue_in(job_config(generation.admission), generation.members.index(self._rank))
        number = self._backend.config.generation
        _log.warning("%s", describe_change(lost, generation.entered, self.members, number))

    def _complete_last_sum(self, generation: Generation, size: int | None) -> Words | None:
        """Return the result of the last exchange, of `size` words, if others have completed the sum."""
        most = max(generation.completed)
        if min(generation.completed) == most:
            return None
        if min(generation.completed) < most - 1:
            counts = ", ".join(map(str, generation.completed))
            raise TransportError(f"members: have completed {counts} sums; start all ranks again")
        is_sender = generation.members[generation.completed.index(most)] == self._rank
        sizes = self._from_sender(np.array([self._last_result.size], np.uint32), send=is_sender)
        words = self._last_result if is_sender else np.empty(int(sizes[0]), np.uint32)
        result = self._from_sender(words, send=is_sender)
        if self._completed == most:
            return None
        if size != result.size:
            raise TransportError("members: this rank has submitted fewer sums than others; start all again")
        return result

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

    def state(self) -> Mapping[str, Any]:
        """Return the state that was sent. Raises TransportError if no rank had one."""
        if not self._content.size:
            raise TransportError("enter: all ranks with the state were lost; start all ranks again")
        values: Mapping[str, Any] = torch.load(BytesIO(self._content.tobytes()), weights_only=True)
        return values


def describe_change(
    lost: Sequence[int], entered: Sequence[int], members: Sequence[int], generation: int
) -> str:
    """Return the line that each member logs when the members have changed."""
    changes = []
    if lost:
        changes.append(
            _ranks(lost, "was lost, with what it", "were lost, with what they") + " had not sent yet"
        )
    if entered:
        changes.append(_ranks(entered, "enters", "enter"))
    if not changes:  # a rank that was to enter has ended before
        changes.append("no rank enters")
    return f"{', '.join(changes)}; {_ranks(members, 'continues', 'continue')} in generation {generation}"


def _ranks(ranks: Sequence[int], singular: str, plural: str) -> str:
    """Return the ranks with the verb for one rank, or for several."""
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers} {singular}" if len(ranks) == 1 else f"ranks {numbers} {plural}"
