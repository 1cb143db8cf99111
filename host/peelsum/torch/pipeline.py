"""A pipeline that overlaps encoding with the network: sums run one after the other, in order of submission.

Its threads take turns: while one waits for the network, the other encodes the next bucket. All workers submit
in the same order, so that their sums match.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from peelsum.allreduce import Part, Summation
from peelsum.summation import Words
from peelsum.torch.crew import Crew
from peelsum.torch.errors import HookError, HookFailedError


class Seat:
    """A `Summation` for one sequence of work, such as a bucket's, whose sums wait for their turn."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, summation = pipeline, pipeline.summation
        self.lanes, self.workers, self.worker_id = summation.lanes, summation.workers, summation.worker_id
        #: The tickets of the work that runs here, and of the last that was submitted.
        self.ticket = self.last = -1

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        return self._pipeline.sum_at(self.ticket, parts)


class Pipeline:
    """A pipeline that runs work over `summation`, in order. After one failure, all later work fails.

    leave: whether the pipeline closes the summation at its end: at `close`, after a failure, when it is
    unreferenced and its work is done, or at the interpreter's exit unless work is running.
    threads: 2 overlaps encoding with the network; 1 runs all work strictly in order.
    """

    def __init__(self, summation: Summation, threads: int = 2, *, leave: bool) -> None:
        self.summation = summation
        self._failure: BaseException | None = None
        self._crew = Crew(threads, getattr(summation, "close", _nothing) if leave else _nothing)
        # The crew's own `atexit` handler checks whether work is running.
        weakref.finalize(self, self._crew.end).atexit = False

    def submit(self, seat: Seat, work: Callable[[], object]) -> Future[None]:
        """Queue `work`, whose sums at `seat` come after those of all work submitted before.

        Work at a seat begins when earlier work at the same seat is done. Call it from one thread at a time.
        """
        future: Future[None] = Future()
        ticket = self._crew.submitted
        if self._crew.submit(partial(self._run, ticket, seat.last, seat, work, future)):
            seat.last = ticket
        else:
            future.set_exception(self._refusal())
        return future

    def drain(self) -> None:
        """Wait until everything submitted is done or has failed."""
        self._crew.wait_for(self._crew.submitted)

    def close(self) -> None:
        """End the threads once all work is done. Raises what closing the summation raises."""
        self._crew.end()
        self._crew.join()

    def sum_at(self, ticket: int, parts: Sequence[Part]) -> list[Words]:
        """Call `Summation.sum_words` when it is the ticket's turn."""
        self._crew.wait_for(ticket)
        self._check()
        return self.summation.sum_words(parts)

    def _run(
        self, ticket: int, after: int, seat: Seat, work: Callable[[], object], future: Future[None]
    ) -> None:
        failure = self._failure_of(ticket, after, seat, work)
        self._crew.wait_for(ticket)
        if failure is not None:
            self._failure = self._failure or failure
            self._crew.end()
        self._crew.pass_on()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    def _failure_of(
        self, ticket: int, after: int, seat: Seat, work: Callable[[], object]
    ) -> BaseException | None:
        self._crew.wait_for(after + 1)
        try:
            self._check()
            seat.ticket = ticket
            work()
        except BaseException as error:  # of any kind: the training thread raises it
            return error
        return None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._refusal()

    def _refusal(self) -> HookError:
        if self._failure is None:
            return HookError("sum: this worker has left the job; make a new state or process group")
        refusal = HookFailedError(
            f"sum: an earlier sum failed ({self._failure}); start training again from a checkpoint"
        )
        refusal.__cause__ = self._failure
        return refusal


def _nothing() -> None:
    """Leave the caller's summation open."""
