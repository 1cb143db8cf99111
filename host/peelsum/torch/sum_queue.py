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
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, cast

import torch

from peelsum.allreduce import Part, Summation
from peelsum.summation import PieceSummation, Words, gather_by_or
from peelsum.torch.errors import HookError, HookFailedError
from peelsum.torch.member_changes import MemberChanges, OutdatedError, RepeatableWork
from peelsum.transport import SwitchSummation

T = TypeVar("T")


class ThreadPool:
    """A pool of `threads` threads that run tasks in order; the last thread to end calls `on_exit`.

    Each task has a ticket, its number. Tasks run at the same time, but what must happen in order they do at
    their turn: `wait_for` waits for a ticket's turn, and `next_turn` ends it.

    A forked child has no threads, and perhaps locks that no thread will release. There `inherited` is true,
    `submit` returns False, and the exit does not wait.
    """

    def __init__(self, threads: int, on_exit: Callable[[], object]) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._on_exit = on_exit
        #: Completes when `on_exit` has returned or raised.
        self._exited: Future[None] = Future()
        self._process_id = os.getpid()
        self._closed = False
        #: The number of tasks submitted so far, which is the next task's ticket; the ticket whose turn it is.
        self.submitted = self.turn = 0
        self._turn_changed = threading.Condition()
        # Daemons: a process that fails must not wait for a sum that never completes.
        self._threads = [
            threading.Thread(target=self._run, name=f"peelsum sums {i}", daemon=True) for i in range(threads)
        ]
        self._running = threads
        atexit.register(self._at_exit)
        for thread in self._threads:
            thread.start()

    @property
    def inherited(self) -> bool:
        """Whether this process is a child that was forked after the pool was made."""
        return os.getpid() != self._process_id

    def submit(self, task: Callable[[], object]) -> bool:
        """Queue a task, which must call `next_turn` at its end. Return False if closed or inherited."""
        if os.getpid() != self._process_id:
            return False
        with self._turn_changed:
            if self._closed:
                return False
            self.submitted += 1
            self._tasks.put(task)
            return True

    def wait_for(self, ticket: int) -> None:
        """Wait until the ticket's turn has come, or has passed."""
        with self._turn_changed:
            # A waiter may wake up after a later ticket has already ended its turn.
            self._turn_changed.wait_for(lambda: self.turn >= ticket)

    def next_turn(self) -> None:
        """Give the turn to the next ticket."""
        with self._turn_changed:
            self.turn += 1
            self._turn_changed.notify_all()

    def close(self) -> None:
        """Let the threads end once all tasks are done. Can be called repeatedly, and from any thread."""
        if self.inherited:
            return
        with self._turn_changed:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._tasks.put(None)

    def join(self) -> None:
        """Wait until the threads have ended. Raises what `on_exit` raised."""
        for thread in self._threads:
            thread.join()
        self._exited.result()

    def _run(self) -> None:
        """Run tasks until the pool is closed; the last thread calls `on_exit`."""
        while (task := self._tasks.get()) is not None:
            task()
            del task  # drop its references before waiting for the next task
        with self._turn_changed:
            self._running -= 1
            if self._running:
                return
        try:
            self._on_exit()
        except BaseException as error:  # `join` raises it
            self._exited.set_exception(error)
        else:
            self._exited.set_result(None)
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """Leave the job in order, as other workers may still need this worker's last packets.

        A script that exits during a task has failed. It does not leave, so that others notice its end.
        """
        if self.turn == self.submitted and not self.inherited:
            self.close()
            self.join()


class _ThreadState(threading.local):
    """The work that the current thread runs."""

    #: The ticket of the work; -1 for none.
    ticket = -1
    #: The number of changes of the members when it began, and the members then; () for those of now.
    generation = 0
    members: tuple[int, ...] = ()


class SumQueue:
    """A queue that runs work over `backend`, in order. It is the `Summation` of that work: sums take turns.

    After one failure, all later work fails. Over `MemberChanges`, the loss of a rank is no failure: the sum
    whose turn it is, unless others have its result, and all later ones, which may have begun to encode, begin
    again with the ranks that are left. All work is then a `RepeatableWork`.

    owns_backend: whether the queue closes the backend at its end. It ends at `close`, after a failure, when
    it is unreferenced and its work is done, and at the interpreter's exit unless work is running.
    threads: 2 overlaps encoding with the network; 1 runs all work strictly in order.
    In a forked child every call raises HookError, or returns a future that does.
    """

    def __init__(
        self,
        backend: Summation,
        threads: int = 2,
        *,
        owns_backend: bool,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """on_change: called at every change of the members, before the sums that begin again."""
        #: Sums the words of the work whose turn it is.
        self.backend = backend
        self.lanes = backend.lanes
        self._changes = backend if isinstance(backend, MemberChanges) else None
        if self._changes is not None:
            self._changes.on_change = self._note_change
        self._on_change = on_change
        #: The number of changes. The lock is held while it changes, and while work begins.
        self._generation, self._begin_lock = 0, threading.Lock()
        #: See `ProcessGroupSummation.device`; None with other backends.
        self.device = getattr(backend, "device", None)
        #: The error of the first work that failed, or None.
        self.failure: BaseException | None = None
        self._abort_reason = ""
        self._current = _ThreadState()
        #: The ticket of the last work that was submitted, by its key.
        self._last_tickets: dict[Hashable, int] = {}
        close_backend = getattr(backend, "close", _do_nothing) if owns_backend else _do_nothing
        self._pool = ThreadPool(threads, close_backend)
        # The pool's own `atexit` handler checks whether work is running.
        weakref.finalize(self, self._pool.close).atexit = False

    @property
    def workers(self) -> int:
        """Number of workers; a change of the members changes it, but not for a sum that has begun."""
        return self.backend.workers if self._changes is None else len(self.members)

    @property
    def worker_id(self) -> int:
        """This worker's number, with the same exception."""
        return self.backend.worker_id if self._changes is None else self.members.index(self._changes.rank)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that sum, as they were at the start; worker i is members[i]."""
        if self._changes is None:
            return tuple(range(self.backend.workers))
        return self._current.members or self._changes.members

    @property
    def rank(self) -> int:
        """This rank's number among `members`."""
        return self.worker_id if self._changes is None else self._changes.rank

    def submit(
        self, work: Callable[[], object], done: Future[None] | None = None, *, key: Hashable = None
    ) -> Future[None]:
        """Queue `work`, whose sums here come after those of all work submitted before; return its future.

        done: the future to complete and return; None makes a new one.
        key: work begins when earlier work of the same key is done.
        Call `submit` from one thread at a time.
        """
        future: Future[None] = Future() if done is None else done
        ticket = self._pool.submitted
        starts_at = self._last_tickets.get(key, -1) + 1
        if self._pool.submit(partial(self._run, ticket, starts_at, work, future)):
            self._last_tickets[key] = ticket
        else:
            future.set_exception(self._refusal())
        return future

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        return self.in_turn(lambda: self.backend.sum_words(parts))

    def reduce_scatter(self, words: Words) -> Words:
        """See `PieceSummation.reduce_scatter`; raises AttributeError if the backend sums only."""
        return self.in_turn(lambda: cast(PieceSummation, self.backend).reduce_scatter(words))

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`; over a backend that sums only, OR each worker's copy."""
        if hasattr(self.backend, "all_gather"):
            return self.in_turn(lambda: cast(PieceSummation, self.backend).all_gather(words))
        return gather_by_or(self, words).reshape(-1)

    def broadcast(self, words: Words, root: int) -> Words:
        """See `PieceSummation.broadcast`."""
        return self.in_turn(lambda: cast(PieceSummation, self.backend).broadcast(words, root))

    def in_turn(self, exchange: Callable[[], T]) -> T:
        """Call `exchange` when it is the turn of the work that runs on this thread; return its result."""
        self._wait_for(self._current.ticket)
        if self._changes is not None and self._current.generation != self._generation:
            raise OutdatedError
        return exchange()

    def begin_step(self, step: int) -> bool:
        """Let ranks that wait for it enter before this step; return whether one has. Call it between sums."""
        changes = self._changes
        if changes is None or changes.failed or not changes.begin_step(step):
            return False
        self.drain()
        try:
            changes.admit()
        except BaseException:
            changes.failed = True
            raise
        self._note_change()
        return bool(changes.lacking)

    def _note_change(self) -> None:
        """Let all sums that have begun begin again."""
        with self._begin_lock:
            self._generation += 1
            self._on_change()

    def drain(self) -> None:
        """Wait until all submitted work is done or has failed."""
        self._check_process()
        self._pool.wait_for(self._pool.submitted)

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Forget keys of `submit`, whose work must be done."""
        for key in keys:
            self._last_tickets.pop(key, None)

    def abort(self, reason: str) -> None:
        """Fail the work that runs and all later work with `reason`, without waiting for other workers.

        The backend, which must be a `SwitchSummation`, is closed soon after, in a thread of the queue.
        """
        self._abort_reason = reason
        cast(SwitchSummation, self.backend).abort(reason)
        self._pool.close()

    def close(self) -> None:
        """End the threads once all work is done. Raises what closing the backend raises."""
        self._check_process()
        self._pool.close()
        self._pool.join()

    def _wait_for(self, ticket: int) -> None:
        """Wait until it is the ticket's turn. Raises HookFailedError after an earlier failure."""
        if self._pool.turn < ticket:
            self._pool.wait_for(ticket)
        if self.failure is not None:
            raise self._refusal()

    def _run(self, ticket: int, starts_at: int, work: Callable[[], object], future: Future[None]) -> None:
        """Run work once the ticket `starts_at` has its turn; complete its future at its own turn."""
        failure: BaseException | None = None
        try:
            self._wait_for(starts_at)
            self._current.ticket = ticket
            if self._changes is None:
                work()
            else:
                self._run_repeatedly(cast(RepeatableWork, work), self._changes)
        except BaseException as error:  # of any kind: the training thread raises it
            failure = error
        if self._pool.turn < ticket:
            self._pool.wait_for(ticket)
        if failure is not None:
            self.failure = self.failure or failure
            if self._changes is not None:
                self._changes.failed = True
            self._pool.close()
        self._pool.next_turn()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    def _run_repeatedly(self, work: RepeatableWork, changes: MemberChanges) -> None:
        """Run work until it has completed with the same members from its begin to its end."""
        while True:
            with self._begin_lock:
                self._current.generation, self._current.members = self._generation, changes.members
                work.begin()
            try:
                work()
            except Exception:
                self._wait_for(self._current.ticket)
                if self._current.generation == self._generation or changes.has_result:
                    raise
            else:
                self._wait_for(self._current.ticket)
                changes.complete()
                return

    def _check_process(self) -> None:
        """Raise HookError in a forked child."""
        if self._pool.inherited:
            raise self._refusal()

    def _refusal(self) -> HookError:
        """Return the error of work that cannot run: in a forked child, after `close` or a failure."""
        if self._pool.inherited:
            return HookError(
                "sum: this process was forked from the one that is connected; sum there, or make a new state "
                "or process group here, for a worker of its own"
            )
        if self.failure is None:
            default_reason = "this worker has left the job; make a new state or process group"
            return HookError(f"sum: {self._abort_reason or default_reason}")
        refusal = HookFailedError(
            f"sum: an earlier sum failed ({self.failure}); start training again from a checkpoint"
        )
        refusal.__cause__ = self.failure
        return refusal


def _do_nothing() -> None:
    """Leave the caller's backend open."""


def chain_future(
    summed: Future[None],
    future: torch.futures.Future[T],
    value: Callable[[], T],
    value_after_error: Callable[[], T] | None = None,
) -> Future[None]:
    """Complete torch's `future` when `summed` completes, with `value()` or with the error.

    value_after_error: returns the value to complete it with after an error, which the caller then reports in
    another way. Returns a future that completes as `summed` does, after all callbacks of `future` have run.
    """
    reported: Future[None] = Future()

    def complete(summed: Future[None]) -> None:
        error = summed.exception()
        try:
            if error is None:
                future.set_result(value())
            elif value_after_error is not None:
                future.set_result(value_after_error())
            else:
                reported_error = error
                if not isinstance(error, Exception):  # the only kind of error that torch's futures accept
                    reported_error = HookFailedError(
                        f"sum: ended by {type(error).__name__} ({error}); start training again"
                    )
                    reported_error.__cause__ = error
                # mypy expects a result of type T; torch documents an exception here.
                future.set_exception(reported_error)  # type: ignore[arg-type]
        except Exception as failure:
            error = error or failure
        if error is None:
            reported.set_result(None)
        else:
            reported.set_exception(error)

    summed.add_done_callback(complete)
    return reported
