"""A queue of sums, which run one after the other in order of submission, while encoding overlaps with them.

Its threads take turns: while one waits for the network, the other encodes the next bucket. All workers submit
in the same order, so that their sums match.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, cast

from peelsum.allreduce import Part, Summation
from peelsum.summation import PieceSummation, Words
from peelsum.torch.errors import HookError, HookFailedError
from peelsum.torch.thread_pool import ThreadPool

T = TypeVar("T")


class QueuedSummation:
    """A `Summation` for one sequence of work, such as a bucket's, whose sums wait for their turn."""

    def __init__(self, queue: SumQueue) -> None:
        self._queue, summation = queue, queue.summation
        self.lanes, self.workers, self.worker_id = summation.lanes, summation.workers, summation.worker_id
        #: See `ProcessGroupSummation.device`; None with other backends.
        self.device = getattr(summation, "device", None)
        #: The tickets of the work that runs here, and of the last that was submitted.
        self.ticket = self.last = -1

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        return self.in_turn(lambda: self.backend.sum_words(parts))

    def reduce_scatter(self, words: Words) -> Words:
        """See `PieceSummation.reduce_scatter`; raises AttributeError if the backend sums only."""
        return self.in_turn(lambda: cast(PieceSummation, self.backend).reduce_scatter(words))

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`."""
        return self.in_turn(lambda: cast(PieceSummation, self.backend).all_gather(words))

    def broadcast(self, words: Words, root: int) -> Words:
        """See `PieceSummation.broadcast`."""
        return self.in_turn(lambda: cast(PieceSummation, self.backend).broadcast(words, root))

    @property
    def backend(self) -> Summation:
        """The summation of the queue."""
        return self._queue.summation

    def in_turn(self, work: Callable[[], T]) -> T:
        """Run other work with workers, such as a gather, when it is the turn of what runs here."""
        return self._queue.run_at(self.ticket, work)


class SumQueue:
    """A queue that runs work over `summation`, in order. After one failure, all later work fails.

    leave: whether the queue closes the summation at its end. It ends at `close`, after a failure, when it is
    unreferenced and its work is done, and at the interpreter's exit unless work is running.
    threads: 2 overlaps encoding with the network; 1 runs all work strictly in order.
    In a forked child every call raises HookError, or returns a future that does.
    """

    def __init__(self, summation: Summation, threads: int = 2, *, leave: bool) -> None:
        self.summation = summation
        self._failure: BaseException | None = None
        self._pool = ThreadPool(threads, getattr(summation, "close", _nothing) if leave else _nothing)
        # The pool's own `atexit` handler checks whether work is running.
        weakref.finalize(self, self._pool.end).atexit = False

    def submit(
        self, queued: QueuedSummation, work: Callable[[], object], done: Future[None] | None = None
    ) -> Future[None]:
        """Queue `work`, whose sums at `queued` come after those of all work submitted before.

        done: the future to complete and return, which is new if None.

        Work at one `QueuedSummation` begins when earlier work there is done. Call
        `submit` from one thread at a time.
        """
        future: Future[None] = Future() if done is None else done
        ticket = self._pool.submitted
        if self._pool.submit(partial(self._run, ticket, queued.last, queued, work, future)):
            queued.last = ticket
        else:
            future.set_exception(self._refusal())
        return future

    def drain(self) -> None:
        """Wait until everything submitted is done or has failed."""
        self._check_process()
        self._pool.wait_for(self._pool.submitted)

    def close(self) -> None:
        """End the threads once all work is done. Raises what closing the summation raises."""
        self._check_process()
        self._pool.end()
        self._pool.join()

    def run_at(self, ticket: int, work: Callable[[], T]) -> T:
        """Run `work`, e.g. a call of `Summation.sum_words`, when it is the ticket's turn."""
        self._pool.wait_for(ticket)
        self._check()
        return work()

    def _run(
        self,
        ticket: int,
        after: int,
        queued: QueuedSummation,
        work: Callable[[], object],
        future: Future[None],
    ) -> None:
        failure = self._failure_of(ticket, after, queued, work)
        self._pool.wait_for(ticket)
        if failure is not None:
            self._failure = self._failure or failure
            self._pool.end()
        self._pool.pass_on()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    def _failure_of(
        self, ticket: int, after: int, queued: QueuedSummation, work: Callable[[], object]
    ) -> BaseException | None:
        self._pool.wait_for(after + 1)
        try:
            self._check()
            queued.ticket = ticket
            work()
        except BaseException as error:  # of any kind: the training thread raises it
            return error
        return None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._refusal()

    def _check_process(self) -> None:
        if self._pool.inherited:
            raise self._refusal()

    def _refusal(self) -> HookError:
        if self._pool.inherited:
            return HookError(
                "sum: this process was forked from the one that is connected; sum there, or make a new state "
                "or process group here, for a worker of its own"
            )
        if self._failure is None:
            return HookError("sum: this worker has left the job; make a new state or process group")
        refusal = HookFailedError(
            f"sum: an earlier sum failed ({self._failure}); start training again from a checkpoint"
        )
        refusal.__cause__ = self._failure
        return refusal


def _nothing() -> None:
    """Leave the caller's summation open."""
