"""Training while a rank is killed again and again.

Four processes train a small classifier of scikit-learn's digits by DDP and SGD, 20 ms or more a step. Every
`every_s` seconds, one of them, chosen by the seed, is killed by SIGKILL. With peelsum, the others go on, and
a new process enters. With torchrun, all ranks start again over gloo, and load the checkpoint that was written
last, one every 50 steps. With torchft, whose lighthouse has its own default times, the others go on over
gloo, and a new replica gets the state from one of them. The loss is that of all images. Time begins with the
first step.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import Experiment, Plot, Series, Size, Value
from benchmarks.experiment import ExperimentError
from benchmarks.served_job import free_port, served_job
from peelsum.processes.children import die_with_parent

_RANKS = 4
#: Seconds within which the first step must have been made.
_PATIENCE_S = 300.0
_TRAINER = [sys.executable, "-m", "benchmarks.killed_trainer"]
#: What can be measured here.
_WAYS = ("peelsum", "restart", "torchft")
_INSTALLED = tuple(way for way in _WAYS if way != "torchft" or find_spec("torchft"))


class _Run:
    """The processes of a run, and the reports that they have printed."""

    def __init__(self, stack: ExitStack, environment: dict[str, str]) -> None:
        self._stack, self._environment = stack, {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
        #: The process id of each rank, and all losses, in order of time.
        self.processes: dict[int, int] = {}
        self.reports: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start(self, *command: str, **environment: str) -> None:
        """Start a process that is killed at the end."""
        variables = {**self._environment, **environment}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=variables, preexec_fn=die_with_parent
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate if "torch.distributed.run" in command else process.kill)
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, output: Any) -> None:
        for line in output:
            self._lines.put(line)

    def read_until(self, deadline: float) -> None:
        """Store what the processes print until `deadline`, by time.monotonic."""
        while (left_s := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                line = self._lines.get(timeout=left_s)
                with suppress(ValueError):  # a line of another program
                    message = json.loads(line)
                    if "process" in message:
                        self.processes[message["rank"]] = message["process"]
                    else:
                        self.reports.append(message)


def measure(seed: int, way: str, every_s: float, seconds: float) -> Iterator[dict[str, Value]]:
    """Train and kill; yield a row for each second. Raises ProcessError, or ExperimentError."""
    if way not in _INSTALLED:
        raise ExperimentError("torchft: is not installed; run: pip install torchft==0.2.0")
    random = Random(seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="peelsum-")))
        job = stack.enter_context(served_job(_RANKS)) if way == "peelsum" else {"GLOO_SOCKET_IFNAME": "lo"}
        run = _Run(stack, job)
        if way == "peelsum":
            seats = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(_RANKS)}
            for rank in range(_RANKS):
                run.start(*_TRAINER, RANK=str(rank), **seats)
        elif way == "torchft":
            (ready := folder / "ready").mkdir()
            lighthouse = ["--min_replicas=1", f"--bind=[::]:{(port := free_port())}"]
            run.start(str(Path(sys.executable).with_name("torchft_lighthouse")), *lighthouse)
            replica = [*_TRAINER, "--torchft", str(ready)]
            # By default, it logs several lines for each step.
            place = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "RUST_LOG": "warn"}
            for rank in range(_RANKS):
                run.start(*replica, REPLICA=str(rank), **place)
        else:
            torchrun = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--monitor-interval=0.1",
            ]
            torchrun += [f"--nproc-per-node={_RANKS}", "--max-restarts=100"]
            run.start(*torchrun, "-m", "benchmarks.killed_trainer", "--checkpoint", str(folder / "saved"))
        deadline = time.monotonic() + _PATIENCE_S
        while not run.reports or len(run.processes) < _RANKS:
            run.read_until(time.monotonic() + 0.05)
            if time.monotonic() > deadline:
                raise ExperimentError(
                    f"{way}: not all ranks have started within {_PATIENCE_S:g} s; see the output above"
                )
        began, kills = run.reports[-1]["time"], 0
        for due_s in np.arange(every_s, seconds, every_s):
            run.read_until(began + due_s)
            victim = random.randrange(_RANKS)
            with suppress(ProcessLookupError):  # the last rank that was killed has not started again
                os.kill(run.processes[victim], signal.SIGKILL)
                kills += 1
            if way == "peelsum":
                run.start(*_TRAINER, "--enter")
            elif way == "torchft":
                run.start(*replica, REPLICA=str(victim), **place)
        run.read_until(began + seconds)
    for second in range(int(seconds) + 1):
        report = [report for report in run.reports if report["time"] <= began + second][-1]
        yield {"second": second, "loss": report["loss"], "step": report["step"], "kills": kills}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "second": "seconds since training began",
        "loss": "loss of all images, as last reported",
        "step": "the step that was reported; after a restart it is lower than before",
        "kills": "processes killed in the run",
    },
    keys=("second",),
    defaults={"way": _WAYS},
    sizes={
        "quick": Size([{"way": _INSTALLED, "every_s": 10.0, "seconds": 15.0}], 1),
        "usual": Size([{"every_s": 20.0, "seconds": 70.0}], 1),
        "full": Size([{"every_s": 20.0, "seconds": 300.0}]),
    },
    choices={"way": _WAYS},
    ranges={"every_s": (1, 3600), "seconds": (2, 86_400)},
    plots=[
        Plot(
            "loss",
            x="second",
            y="loss",
            lines="way",
            log="y",
            names={
                "peelsum": Series("peelsum goes on", "blue", ours=True),
                "restart": Series("torchrun restarts", "grey"),
                "torchft": Series("torchft goes on over gloo", "brown"),
            },
            finding="""With a rank killed every 20 s, training goes on with peelsum: after 70 s the loss is
                {peelsum@70:.2f}, with torchft {torchft@70:.2f}, with restarts {restart@70:.2f}""",
            setting="""Four processes train a classifier of digits, 20 ms or more a step; a killed one is
                replaced at once. Measured.""",
            xlabel="Time (s)",
            ylabel="Training loss",
        )
    ],
)
