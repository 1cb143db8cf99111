"""Sums one after the other, in the order they were asked for, while their encoding goes on side by side.

Threads take turns: while one waits for the network, the other makes the next bucket's first words. It
refuses to know what is summed; all workers submit alike, so the turns are the same on all of them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from peelsum.allreduce import Part, Summation
from peelsum.allreduce.summation import Words
from peelsum.torch.errors import HookFailedError


class Seat:
    """A way to sum for one line of work, such as a bucket's: its sums wait for its turn. A `Summation`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, summation = pipeline, pipeline.summation
        self.lanes, self.workers, self.worker_id = summation.lanes, summation.workers, summation.worker_id
        #: The work that now runs here.
        self.ticket = -1

    def sum(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum`."""
        return self._pipeline.sum_at(self.ticket, parts)


class Pipeline:
    """Runs work that sums over `summation`, in order. After one failure, all later work fails.

    threads: 2 for one on the network and one encoding; with 1, all work is done in order.
    """

    def __init__(self, summation: Summation, threads: int = 2) -> None:
        self.summation = summation
        self._queue: queue.SimpleQueue[tuple[int, Seat, Callable[[], object], Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._submitted = self._turn = 0
        self._failure: BaseException | None = None
        self._turned = threading.Condition()
        # Daemons: a process that ends because of an error must not wait for a sum that never comes.
        self._threads = [
            threading.Thread(target=self._run, name=f"peelsum sums {i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, seat: Seat, work: Callable[[], object]) -> Future[None]:
        """Have `work` called, its sums at `seat` after those of all work submitted before.

        For one thread at a time. Work at one seat is submitted when the last at the same seat is done.
        """
        future: Future[None] = Future()
        self._queue.put((self._submitted, seat, work, future))
        self._submitted += 1
        return future

    @property
    def idle(self) -> bool:
        """Whether everything submitted is done or has failed."""
        return self._turn == self._submitted

    def drain(self) -> None:
        """Wait until `idle`."""
        self._await(self._submitted)

    def close(self, *, leave: bool) -> None:
        """End the threads, once they are done, and leave the job if asked to."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        close: Callable[[], Any] | None = getattr(self.summation, "close", None)
        if leave and close is not None:
            close()

    def sum_at(self, ticket: int, parts: Sequence[Part]) -> list[Words]:
        """`Summation.sum`, when it is that ticket's turn."""
        self._await(ticket)
        if self._failure is not None:
            raise HookFailedError(
                f"sum: an earlier one failed ({self._failure}); start training again from a checkpoint"
            ) from self._failure
        return self.summation.sum(parts)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            ticket, seat, work, future = item
            seat.ticket = ticket
            try:
                work()
            except BaseException as error:  # whatever it is, the training thread gets it
                self._pass_on(ticket, error)
                future.set_exception(error)
            else:
                self._pass_on(ticket, None)
                future.set_result(None)

    def _await(self, ticket: int) -> None:
        with self._turned:
            self._turned.wait_for(lambda: self._turn == ticket)

    def _pass_on(self, ticket: int, failure: BaseException | None) -> None:
        self._await(ticket)
        with self._turned:
            self._failure = self._failure or failure
            self._turn += 1
            self._turned.notify_all()
