"""A thread pool whose tasks run concurrently, but take turns at one resource in the order of submission.

Its threads keep no reference to finished tasks or to the queue of sums, so that an unreferenced queue can be
collected. Its finalizer then ends the threads.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future


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
        self._submitted = self._turn = 0
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

    @property
    def submitted(self) -> int:
        """The number of tasks submitted so far, which is the next task's ticket."""
        return self._submitted

    def submit(self, task: Callable[[], object]) -> bool:
        """Queue a task, which must call `pass_on` at its end. Return False after `end`, and if inherited."""
        if self.inherited:
            return False
        with self._turned:
            if self._ended:
                return False
            self._submitted += 1
            self._tasks.put(task)
            return True

    def wait_for(self, ticket: int) -> None:
        """Wait until the ticket's turn has come, or has passed."""
        if self._turn >= ticket:  # turns only go up
            return
        with self._turned:
            # A waiter may wake up after a later ticket has already passed the turn on.
            self._turned.wait_for(lambda: self._turn >= ticket)

    def pass_on(self) -> None:
        """Give the turn to the next ticket."""
        with self._turned:
            self._turn += 1
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
        while self._do_next():
            pass
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

    def _do_next(self) -> bool:
        """Run one task; return False at the end. A function of its own drops its references between tasks."""
        task = self._tasks.get()
        if task is None:
            return False
        task()
        return True

    def _at_exit(self) -> None:
        """Leave the job in order, as other workers may still need this worker's last packets.

        A script that exits during a task has failed. It does not leave, so that others see it end.
        """
        if self._turn == self._submitted and not self.inherited:
            self.end()
            self.join()
