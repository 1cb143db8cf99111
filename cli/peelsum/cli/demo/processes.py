"""The demo's processes: starts the star and the workers, and collects the workers' reports in step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peelsum.processes import Child, ProcessError
from peelsum.processes.interrupts import Interruption
from peelsum.topology import Star

Reports = list[dict[str, Any]]
_POLL_S = 0.05


class Processes:
    """Training processes at a star. `stack` ends them; `patience_s` is the timeout of each report."""

    def __init__(self, stack: ExitStack, interruption: Interruption, patience_s: float) -> None:
        self._stack, self._interruption, self._patience_s = stack, interruption, patience_s
        self._workers: list[Child] = []
        self._star: Star | None = None

    def start(self, workers: int, steps: int, loss: float, seed: int, form: str) -> Star:
        """Start all processes; return the star once every worker is ready for its first step."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))
        store = Path(folder) / "gloo"
        options = {"workers": workers, "steps": steps, "seed": seed, "store": store, "form": form}
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        for worker in range(workers):  # workers prepare their models while the star starts
            self.start_worker(worker, *arguments)
        self._star = self._stack.enter_context(Star(workers, loss=loss, seed=seed))
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
