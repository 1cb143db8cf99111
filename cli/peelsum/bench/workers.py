"""Reports of worker processes: one from each worker, or an error that names the worker at fault."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from peelsum.processes import Child, ProcessError

Reports = list[dict[str, Any]]
_POLL_S = 0.05


def gather_reports(
    workers: Sequence[Child], check: Callable[[], None] = lambda: None, timeout_s: float = math.inf
) -> Reports:
    """Return the next report of every worker.

    check: called repeatedly until then, to raise an error if another process has failed.
    Raises ProcessError as soon as a worker fails. Raises it with the names of silent workers if no worker
    has printed anything for `timeout_s`: all workers wait while one of them compiles.
    """
    reports: dict[str, dict[str, Any]] = {}
    started = time.monotonic()
    while silent := [worker for worker in workers if worker.name not in reports]:
        check()
        last_output = max(started, *(worker.last_output_at for worker in workers))
        if time.monotonic() > last_output + timeout_s:
            names = ", ".join(worker.name + worker.last_progress() for worker in silent)
            raise ProcessError(
                f"{names}: no answer within {timeout_s:g} s; check whether it is stopped, or give this "
                "machine fewer --workers"
            )
        for worker in silent:
            if worker.has_message(_POLL_S / len(silent)):
                report = worker.next_message(0)
                if report is None:
                    raise ProcessError(f"{worker.name}: ended early; run again, it may have been stopped")
                reports[worker.name] = report
    return [reports[worker.name] for worker in workers]
