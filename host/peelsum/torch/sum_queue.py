"""A queue of sums, which run one after the other in order of submission, while encoding overlaps with them.

Its threads take turns: while one waits for the network, the other encodes the next bucket. All workers submit
in the same order, so that their sums match. The threads keep no reference to finished tasks or to the queue,
so that an unreferenced queue can be collected; its finalizer then ends them.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, cast

from peelsum.allreduce import Part, Summation
from peelsum.summation import PieceSummation, Words, gather_by_or
from peelsum.torch.errors import HookError, HookFailedError

T = TypeVar("T")


class ThreadPool:
    """A pool of `threads` threads that takes tasks in order; the last thread to end calls `leave`.

    A forked child has no threads, and perhaps locks that are held for good. There `inherited` is true,
    `submit` returns False, and the exit does not wait.
    """

    def __init__(self, threads: int, leave: Callable[[], object]) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._leave = leave
        self._left: Future[None] = Future()
        self._process_id = os.getpid()
        self._ended = False
        #: The number of tasks submitted so far, which is the next task's ticket; the ticket whose turn it is.
        self.submitted = self.turn = 0
        self._turned = threading.Condition()
        # Daemons: a process that fails must not wait for a sum that never completes.
        self._threads = [
            threading.Thread(target=self._run, name=f"peelsum sums {i}", daemon=True) for i in range(threads)
        ]
        self._at_work = threads
        atexit.register(self._at_exit)
        for thread in self._threads:
            thread.start()

    @property
    def inherited(self) -> bool:
        """Whether this process is a child that was forked after the pool was made."""
        return os.getpid() != self._process_id

    def submit(self, task: Callable[[], object]) -> bool:
        """Queue a task, which must call `pass_on` at its end. Return False after `end`, and if inherited."""
        if self.inherited:
            return False
        with self._turned:
            if self._ended:
                return False
            self.submitted += 1
            self._tasks.put(task)
            return True

    def wait_for(self, ticket: int) -> None:
        """Wait until the ticket's turn has come, or has passed."""
        with self._turned:
            # A waiter may wake up after a later ticket has already passed the turn on.
            self._turned.wait_for(lambda: self.turn >= ticket)

    def pass_on(self) -> None:
        """Give the turn to the next ticket."""
        with self._turned:
            self.turn += 1
            self._turned.notify_all()

    def end(self) -> None:
        """End the threads once all tasks are done. Can be called repeatedly, and from any thread."""
        if self.inherited:
            return
        with self._turned:
            if not self._ended:
                self._ended = True
                for _ in self._threads:
                    self._tasks.put(None)

    def join(self) -> None:
        """Wait until the threads have ended. Raises what `leave` raised."""
        for thread in self._threads:
            thread.join()
        self._left.result()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # its references go before the next task comes
        with self._turned:
            self._at_work -= 1
            if self._at_work:
                return
        try:
            self._leave()
        except BaseException as error:  # `join` raises it
            self._left.set_exception(error)
        else:
            self._left.set_result(None)
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """Leave the job in order, as other workers may still need this worker's last packets.

        A script that exits during a task has failed. It does not leave, so that others see it end.
        """
        if self.turn == self.submitted and not self.inherited:
            self.end()
            self.join()


class _Running(threading.local):
    """What the thread runs."""

    #: The ticket of its work; -1 for none.
    ticket = -1


class SumQueue:
    """A queue that runs work over `backend`, in order. It is the `Summation` of that work: sums take turns.

    After one failure, all later work fails.

    leave: whether the queue closes the backend at its end. It ends at `close`, after a failure, when it is
    unreferenced and its work is done, and at the interpreter's exit unless work is running.
    threads: 2 overlaps encoding with the network; 1 runs all work strictly in order.
    In a forked child every call raises HookError, or returns a future that does.
    """

    def __init__(self, backend: Summation, threads: int = 2, *, leave: bool) -> None:
        #: What sums the words when it is their turn.
        self.backend = backend
        self.lanes, self.workers, self.worker_id = backend.lanes, backend.workers, backend.worker_id
        #: See `ProcessGroupSummation.device`; None with other backends.
        self.device = getattr(backend, "device", None)
        self._failure: BaseException | None = None
        self._running = _Running()
        #: The ticket of the last work that was submitted, by its key.
        self._last: dict[Hashable, int] = {}
        self._pool = ThreadPool(threads, getattr(backend, "close", _nothing) if leave else _nothing)
        # The pool's own `atexit` handler checks whether work is running.
        weakref.finalize(self, self._pool.end).atexit = False

    def submit(
        self, work: Callable[[], object], done: Future[None] | None = None, *, key: Hashable = None
    ) -> Future[None]:
        """Queue `work`, whose sums here come after those of all work submitted before; return its future.

        done: the future to complete and return, which is new if None.
        key: work begins when earlier work of the same key is done.
        Call `submit` from one thread at a time.
        """
        future: Future[None] = Future() if done is None else done
        ticket = self._pool.submitted
        if self._pool.submit(partial(self._run, ticket, self._last.get(key, -1) + 1, work, future)):
            self._last[key] = ticket
        else:
            future.set_exception(self._refusal())
        return future

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        self._wait_for(self._running.ticket)
        return self.backend.sum_words(parts)

    def reduce_scatter(self, words: Words) -> Words:
        """See `PieceSummation.reduce_scatter`; raises AttributeError if the backend sums only."""
        return self.in_turn(lambda: cast(PieceSummation, self.backend).reduce_scatter(words))

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`; a backend that sums only ORs copies in the workers' places."""
        if hasattr(self.backend, "all_gather"):
            return self.in_turn(lambda: cast(PieceSummation, self.backend).all_gather(words))
        return gather_by_or(self, words).reshape(-1)

    def broadcast(self, words: Words, root: int) -> Words:
        """See `PieceSummation.broadcast`."""
        return self.in_turn(lambda: cast(PieceSummation, self.backend).broadcast(words, root))

    def in_turn(self, exchange: Callable[[], T]) -> T:
        """Return what another exchange with workers returns, at the turn of the work that runs here."""
        self._wait_for(self._running.ticket)
        return exchange()

    def drain(self) -> None:
        """Wait until everything submitted is done or has failed."""
        self._check_process()
        self._pool.wait_for(self._pool.submitted)

    def close(self) -> None:
        """End the threads once all work is done. Raises what closing the summation raises."""
        self._check_process()
        self._pool.end()
        self._pool.join()

    def _wait_for(self, ticket: int) -> None:
        """Wait until it is the ticket's turn. Raises HookFailedError after an earlier failure."""
        if self._pool.turn < ticket:
            self._pool.wait_for(ticket)
        if self._failure is not None:
            raise self._refusal()

    def _run(self, ticket: int, begin: int, work: Callable[[], object], future: Future[None]) -> None:
        """Run work when the ticket `begin` has its turn; complete its future at its own turn."""
        failure: BaseException | None = None
        try:
            self._wait_for(begin)
            self._running.ticket = ticket
            work()
        except BaseException as error:  # of any kind: the training thread raises it
            failure = error
        if self._pool.turn < ticket:
            self._pool.wait_for(ticket)
        if failure is not None:
            self._failure = self._failure or failure
            self._pool.end()
        self._pool.pass_on()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

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
