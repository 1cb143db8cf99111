"""The threads of a pipeline, and the counts by which they take turns.

They hold nothing of a task that is done, nor of the pipeline: one that nobody holds any more goes away, and
has them end. They refuse to know what a task is.
"""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future


class Crew:
    """Does tasks, taken in their order, with `threads` threads; the last one to end calls `leave`."""

    def __init__(self, threads: int, leave: Callable[[], object]) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._leave = leave
        self._left: Future[None] = Future()
        self._ended = False
        self._submitted = self._turn = 0
        self._turned = threading.Condition()
        # Daemons: a process that ends because of an error must not wait for a sum that never comes.
        self._threads = [
            threading.Thread(target=self._run, name=f"peelsum sums {i}", daemon=True) for i in range(threads)
        ]
        self._at_work = threads
        atexit.register(self._at_exit)
        for thread in self._threads:
            thread.start()

    @property
    def submitted(self) -> int:
        """How many tasks there were: the next one's ticket."""
        return self._submitted

    def submit(self, task: Callable[[], object]) -> bool:
        """Have a task done, which must `pass_on` its turn at its end; False if the crew was told to end."""
        with self._turned:
            if self._ended:
                return False
            self._submitted += 1
            self._tasks.put(task)
            return True

    def wait_for(self, ticket: int) -> None:
        """Until it is that ticket's turn, or has been."""
        with self._turned:
            # A waiter may wake up late, when the next one has passed the turn on already.
            self._turned.wait_for(lambda: self._turn >= ticket)

    def pass_on(self) -> None:
        """Let the next ticket have its turn."""
        with self._turned:
            self._turn += 1
            self._turned.notify_all()

    def end(self) -> None:
        """Have the threads end, once all tasks are done; can be called twice, and from any thread."""
        with self._turned:
            if not self._ended:
                self._ended = True
                for _ in self._threads:
                    self._tasks.put(None)

    def join(self) -> None:
        """Wait until the threads have ended; raises what `leave` raised."""
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
        except BaseException as error:  # for whoever joins
            self._left.set_exception(error)
        else:
            self._left.set_result(None)
        atexit.unregister(self._at_exit)

    def _do_next(self) -> bool:
        """Do a task, unless it was the last. A call of its own, so that nothing is held between tasks."""
        task = self._tasks.get()
        if task is None:
            return False
        task()
        return True

    def _at_exit(self) -> None:
        """Leave: other workers may still wait for this one's last packets.

        Not in the middle of a task: a script that ends there has failed, and should be seen to have ended.
        """
        if self._turn == self._submitted:
            self.end()
            self.join()
