"""The demo's processes: starts the star and the workers, and gathers the workers' reports."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from peelsum.bench.workers import Reports, gather_reports
from peelsum.cli.demo.worker import SparseForm
from peelsum.options import Option, Settings
from peelsum.processes import Child
from peelsum.processes.interrupts import Interruption
from peelsum.topology import Star

_FORM = Option(
    "Form of sparse gradients: a sketch, or their non-zeros (compact). With auto, the cheapest of all forms "
    "for each tensor."
)
_LOSS = Option("Share of datagrams that each switch port loses in each direction, up to 0.3.", 0, 0.3)


@dataclass(frozen=True)
class DemoSettings(Settings):
    """The demo's two trainings."""

    workers: Annotated[int, Option("Number of workers, 2 to 8.", 2, 8)] = 4
    steps: Annotated[int, Option("Steps of each of the two trainings.", 1, 1_000_000)] = 20
    form: Annotated[SparseForm, _FORM] = "sketch"
    loss: Annotated[float, _LOSS] = 0.0
    seed: Annotated[int, Option("Seed of the model, the batches and the lost packets.", 0, 2**31 - 1)] = 0


class Processes:
    """Training processes at a star. `stack` ends them; `timeout_s` is how long they may print nothing."""

    def __init__(self, stack: ExitStack, interruption: Interruption, timeout_s: float) -> None:
        self._stack, self._interruption, self._timeout_s = stack, interruption, timeout_s
        self._workers: list[Child] = []
        self._star: Star | None = None

    def start(self, settings: DemoSettings) -> Star:
        """Start all processes; return the star once every worker is ready for its first step."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))
        options = {**asdict(settings), "store": Path(folder) / "gloo"}
        loss = options.pop("loss")
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        for worker in range(settings.workers):  # workers prepare their models while the star starts
            self.start_worker(worker, *arguments)
        star = Star(settings.workers, loss=loss, seed=settings.seed)
        self._star = self._stack.enter_context(star)
        self.gather_reports()
        for child, seat in zip(self._workers, self._star.seats, strict=True):
            child.tell(**asdict(seat))
        self.gather_reports()
        return self._star

    def start_worker(self, worker_id: int, *arguments: str) -> None:
        """Start one worker, which gets its seat later."""
        name = f"worker {worker_id}"
        child = Child.peelsum(name, "demo-worker", "--worker-id", str(worker_id), *arguments)
        self._workers.append(child)
        self._stack.callback(child.stop)

    def gather_reports(self) -> Reports:
        """Return the next report of every worker.

        Raises ProcessError if a process fails or all workers are silent, and Interrupted after a signal.
        """
        return gather_reports(self._workers, self._check, self._timeout_s)

    def _check(self) -> None:
        self._interruption.check()
        if self._star is not None:
            self._star.check()
