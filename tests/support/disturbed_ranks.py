"""A run whose ranks, server, switch and controller are killed or stopped in a random order."""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

from coming_ranks import Run
from patience import PATIENCE_S, until
from torch_ranks import run_ranks

RANKS = 4
#: Errors of ranks that enter when the run ends.
TOO_LATE = ("asked to enter has ended", "no run that survives losses")


def sum_until_the_end(_, folder, enters):
    """Sum until a rank has seen the file `end`; return digests by step, and the error that ended it."""
    (folder / f"began {os.getpid()}").touch()
    run: Run | None = None
    error = ""
    try:
        run = Run(enters=enters)
        while not run.ended:
            run.step(ends=(folder / "end").exists())
            if len(run.digests) == 1:
                (folder / f"sums {os.getpid()}").touch()
        run.state.close()
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    (folder / f"ended {os.getpid()}").touch()
    return {"wrong": run.wrong if run else -1, "digests": run.digests if run else {}, "error": error}


class Disturbance:
    """Ranks under a supervisor, which lets another process enter whenever one has been killed."""

    def __init__(self, folder, job, switch, controller, seed):
        self._folder, self._job, self._random = folder, job, Random(seed)
        self._switch, self._controller = switch, controller
        self._pool, self._killed = ThreadPoolExecutor(64), set[int]()
        self._results: list[Future[list[Any]]] = []
        #: What has been done, for the message of a failure.
        self.log: list[str] = []

    def run(self, events, kinds):
        """Disturb the run so many times, then end it; return the results of those that were not killed.

        kinds: the kinds of events, whose methods' names these are.
        """
        self._start(RANKS, enters=False)
        until(lambda: len(self._processes("sums")) == RANKS)
        for _ in range(events):
            kind = self._random.choice(kinds.split())
            self.log.append(kind)
            getattr(self, kind)()
            time.sleep(self._random.choice([0.0, 0.003, 0.02, 0.3]) * self._random.random())
        until(lambda: len(self._processes("sums")) >= RANKS - 1 or self._any_error(), self.log)
        (self._folder / "end").touch()
        results = [result for run in list(self._results) for result in run.result(PATIENCE_S)]
        return [result for result in results if result is not None]

    def rank(self):
        """Kill a rank, if another one has the state."""
        self._kill(self._processes("sums"), least=2)

    def two_ranks(self):
        """Kill two ranks at once."""
        self._kill(self._processes("sums"), least=3)
        self._kill(self._processes("sums"), least=2)

    def joiner(self):
        """Kill a rank that has not entered yet."""
        self._kill(self._processes("began") - self._processes("sums"), least=1)

    def wait(self):
        """Wait until all ranks sum."""
        until(lambda: len(self._processes("sums")) == RANKS or self._any_error(), self.log)

    def server(self):
        """Kill the server, which the controller starts again."""
        for process in self._controller.started[:1]:
            process.kill()

    def switch(self):
        """Kill the switch, and start it again."""
        os.kill(self._switch.pid, signal.SIGKILL)
        self._switch.stop()
        self._switch.start()

    def controller(self):
        """Stop the controller for a while."""
        process = self._controller.child.pid

        def go_on():
            with suppress(ProcessLookupError):  # the run has ended meanwhile
                os.kill(process, signal.SIGCONT)

        os.kill(process, signal.SIGSTOP)
        threading.Timer(self._random.random(), go_on).start()

    def _start(self, ranks, *, enters):
        arguments = self._folder, enters
        environments = [self._job] * ranks
        run: Callable[..., list[Any]] = run_ranks
        running = self._pool.submit(run, ranks, sum_until_the_end, *arguments, environments=environments)
        self._results.append(running)

    def _processes(self, kind):
        """Return the process ids of the files of a kind, without those that were killed or have ended."""

        def named(kind):
            return {int(path.name.split()[1]) for path in self._folder.glob(f"{kind} *")}

        return named(kind) - self._killed - named("ended")

    def _any_error(self):
        return any(self._folder.glob("ended *"))

    def _kill(self, processes, *, least):
        if len(processes) < least:
            return
        process = self._random.choice(sorted(processes))
        self._killed.add(process)
        os.kill(process, signal.SIGKILL)
        self._start(1, enters=True)


def check(results):
    """Check that all sums are right, and the same on all ranks; return how many steps there were."""
    digests: dict[int, str] = {}
    for result in results:
        if result["error"]:  # it came when the run ended
            assert any(reason in result["error"] for reason in TOO_LATE), result["error"]
            assert not result["digests"]
        assert result["wrong"] == -1
        for step, digest in result["digests"].items():
            assert digests.setdefault(step, digest) == digest
    first = min(digests)  # those that were there before may have been killed
    assert sorted(digests) == list(range(first, first + len(digests)))
    return len(digests)
