"""The demo's processes: starts the star and the workers, and collects the workers' reports in step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from peelsum.cli.demo.worker import SentAs
from peelsum.options import Option, Settings
from peelsum.processes import Child, ProcessError
from peelsum.processes.interrupts import Interruption
from peelsum.topology import Star

Reports = list[dict[str, Any]]
_POLL_S = 0.05


_FORM = Option(
    "How sparse gradients are sent: as a sketch, or their non-zeros as they are (compact). With auto, the "
    "cheaper of all forms for each tensor."
)
_LOSS = Option("Share of datagrams that each switch port loses in each direction, up to 0.3.", 0, 0.3)


@dataclass(frozen=True)
class DemoSettings(Settings):
    """What the demo trains."""

    workers: Annotated[int, Option("Number of workers, 2 to 8.", 2, 8)] = 4
    steps: Annotated[int, Option("Training steps, in each of both trainings.", 1, 1_000_000)] = 20
    form: Annotated[SentAs, _FORM] = "sketch"
    loss: Annotated[float, _LOSS] = 0.0
    seed: Annotated[int, Option("Seed of the model, the batches and the lost packets.", 0, 2**31 - 1)] = 0


class Processes:
    """Training processes at a star. `stack` ends them; `patience_s` is the timeout of each report."""

    def __init__(self, stack: ExitStack, interruption: Interruption, patience_s: float) -> None:
        self._stack, self._interruption, self._patience_s = stack, interruption, patience_s
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

        Raises ProcessError as soon as a process has failed, or with the names of silent workers if all have
        printed nothing for too long. Raises Interrupted if a signal was received.
        """
        reports: dict[str, dict[str, Any]] = {}
        asked_at = time.monotonic()
        while silent := [child for child in self._workers if child.name not in reports]:
            self._interruption.check()
            if self._star is not None:
                self._star.check()
            # All workers wait while one compiles.
            heard_at = max(asked_at, *(child.heard_at for child in self._workers))
            if time.monotonic() > heard_at + self._patience_s:
                raise ProcessError(self._silence(silent))
            for child in silent:
                if child.has_line(_POLL_S):
                    reports[child.name] = _next_report(child)
        return [reports[child.name] for child in self._workers]

    def _silence(self, silent: Sequence[Child]) -> str:
        names = ", ".join(child.name + child.busy_with() for child in silent)
        return (
            f"{names}: no answer within {self._patience_s:g} s; check whether it is stopped, or give this "
            "machine fewer --workers"
        )


def _next_report(child: Child) -> dict[str, Any]:
    line = child.next_line(0)
    if line is None:
        raise ProcessError(f"{child.name}: ended early")
    return line
