"""Training while a rank is killed again and again.

Four processes train a small classifier of scikit-learn's digits by DDP and SGD, 20 ms or more a step. Every
`every_s` seconds, one of them, chosen by the seed, is killed by SIGKILL. With peelsum, the others go on, and
a new process enters. With torchrun, all ranks start again over gloo, and load the checkpoint that was written
last, one every 50 steps. The loss is that of all images. Time begins with the first step.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

from benchmarks import Experiment, Plot, Series, Size, Value
from benchmarks.experiment import ExperimentError
from benchmarks.served_job import free_port, served_job
from peelsum.processes import print_message
from peelsum.processes.children import die_with_parent
from peelsum.torch import SwitchAllreduceState, hook, init_process_group

_RANKS = 4
#: Seconds within which the first step must have been made.
_PATIENCE_S = 300.0
#: A rank's examples in a step, and seconds between reports of the loss.
_BATCH, _REPORT_S = 8, 0.2
_TRAINER = [sys.executable, "-m", "benchmarks.experiments.kills"]


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
    random = Random(seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="peelsum-")))
        job = stack.enter_context(served_job(_RANKS)) if way == "peelsum" else {"GLOO_SOCKET_IFNAME": "lo"}
        run = _Run(stack, job)
        if way == "peelsum":
            seats = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(_RANKS)}
            for rank in range(_RANKS):
                run.start(*_TRAINER, RANK=str(rank), **seats)
        else:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--monitor-interval=0.1"]
            torchrun += [f"--nproc-per-node={_RANKS}", "--max-restarts=100"]
            run.start(sys.executable, *torchrun, *_TRAINER[1:], "--checkpoint", str(folder / "saved"))
        deadline = time.monotonic() + _PATIENCE_S
        while not run.reports:
            run.read_until(time.monotonic() + 0.05)
            if time.monotonic() > deadline:
                raise ExperimentError(f"{way}: no step within {_PATIENCE_S:g} s; see the output above")
        began, kills = run.reports[0]["time"], 0
        for due_s in np.arange(every_s, seconds, every_s):
            run.read_until(began + due_s)
            with suppress(ProcessLookupError):  # the last rank that was killed has not started again
                os.kill(run.processes[random.randrange(_RANKS)], signal.SIGKILL)
                kills += 1
            if way == "peelsum":
                run.start(*_TRAINER, "--enter")
        run.read_until(began + seconds)
    for second in range(int(seconds) + 1):
        report = [report for report in run.reports if report["time"] <= began + second][-1]
        yield {"second": second, "loss": report["loss"], "step": report["step"], "kills": kills}


def train() -> None:
    """Train until the parent ends this process: the program of a rank.

    With `--checkpoint`, it sums by gloo, and begins at the last checkpoint; otherwise over the switch, in a
    run that goes on when ranks are lost. It prints lines of JSON: its process id, and the lowest rank from
    time to time the loss of all images.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds that a step takes at least")
    parser.add_argument("--enter", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.enter:
        store = dist.HashStore()  # type: ignore[attr-defined]  # not exported, but documented
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    else:
        init_process_group("gloo")
    torch.manual_seed(0)
    images, digits = map(torch.from_numpy, load_digits(return_X_y=True))
    images = images.float() / 16
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    loss_of = torch.nn.functional.cross_entropy
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(2):  # DDP orders its buckets after the first
        ddp(images[:_BATCH]).sum().backward()
    ddp.zero_grad()
    state, step = None, 0
    if options.checkpoint is None:
        shared: dict[str, Any] = {"model": model, "optimizer": optimizer}
        named = model.named_parameters()
        state = SwitchAllreduceState(names=named, on_lost="continue", enters=options.enter, shared=shared)
        ddp.register_comm_hook(state, hook)
        state.connect()
    elif options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    rank = dist.get_rank() if state is None else state.rank or 0
    print_message(rank=rank, process=os.getpid())
    reported_at = 0.0
    while True:
        ends_at = time.monotonic() + options.step_s
        step = step if state is None else state.steps
        chosen = torch.Generator().manual_seed(1000 * step + rank)
        batch = torch.randint(len(images), (_BATCH,), generator=chosen)
        optimizer.zero_grad()
        loss_of(ddp(images[batch]), digits[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        lowest = rank == (0 if state is None else state.members[0])
        if lowest and time.monotonic() >= reported_at:
            with torch.no_grad():
                print_message(time=time.monotonic(), step=step, loss=loss_of(model(images), digits).item())
            reported_at = time.monotonic() + _REPORT_S
        step += 1
        if options.checkpoint and rank == 0 and step % options.every == 0:
            written = options.checkpoint.with_suffix(".new")
            values = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(values, written)
            written.rename(options.checkpoint)
        time.sleep(max(0.0, ends_at - time.monotonic()))


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "second": "seconds since the first step",
        "loss": "loss of all images, as last reported",
        "step": "the step that was reported; after a restart it is lower than before",
        "kills": "processes killed in the run",
    },
    keys=("second",),
    defaults={"way": ("peelsum", "restart")},
    sizes={
        "quick": Size([{"every_s": 10.0, "seconds": 15.0}], 1),
        "usual": Size([{"every_s": 20.0, "seconds": 70.0}], 1),
        "full": Size([{"every_s": 20.0, "seconds": 300.0}]),
    },
    choices={"way": ("peelsum", "restart")},
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
            },
            finding="""With a rank killed every 20 s, training goes on with peelsum: after 70 s the loss is
                {peelsum@70:.2f}, with restarts from checkpoints {restart@70:.2f}""",
            setting="""Four processes train a classifier of digits, 20 ms or more a step; a killed one is
                replaced at once. Measured.""",
            xlabel="Time (s)",
            ylabel="Training loss",
        )
    ],
)


if __name__ == "__main__":
    train()
