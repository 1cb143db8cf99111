"""Sums over a star of processes whose ports lose packets.

Switch, controller, server and every worker are separate processes. The switch's UDP ports drop a seeded share
of the packets in each direction.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from peelsum.topology import Child, ProcessError, Seat, Star, StarReport

#: Seconds within which a worker must finish a sum; otherwise the run fails.
_PATIENCE_S = 120.0
_WARM_UPS = 2


@dataclass(frozen=True)
class Run:
    """The result of one network."""

    seconds: list[float]
    """Seconds of each timed sum, of the slowest worker."""
    wrong: int
    """Wrong elements."""
    workers: list[dict[str, Any]]
    """Each worker's counters."""
    star: StarReport
    """The network's counters."""


def run(loss: float, workers: int, lanes: int, elements: int, seconds: float, seed: int) -> Run:
    """Start a network and sum for `seconds`; tell all workers at once to begin each sum.

    Raises ProcessError if a process fails.
    """
    with Star(workers, lanes=lanes, loss=loss, seed=seed) as star, ExitStack() as stack:
        children = [_worker(seat, elements, seed) for seat in star.seats]
        for child in children:
            stack.callback(child.stop)
        for child in children:
            child.ready()
        sums = list(_sums(children, seconds))
        for child in children:
            child.tell(again=False)
        counted = [_line(child) for child in children]
    assert star.report is not None
    timed = sums[_WARM_UPS:]
    slowest = [max(line["seconds"] for line in lines) for lines in timed]
    return Run(slowest, sum(line["wrong"] for lines in sums for line in lines), counted, star.report)


def _sums(children: Sequence[Child], seconds: float) -> Iterator[list[dict[str, Any]]]:
    """Yield every worker's report of each sum, including those to warm up."""
    ends, count = time.monotonic() + seconds, 0
    while count <= _WARM_UPS or time.monotonic() < ends:
        for child in children:
            child.tell(again=True)
        yield [_line(child) for child in children]
        count += 1


def _worker(seat: Seat, elements: int, seed: int) -> Child:
    arguments = json.dumps({"seat": asdict(seat), "elements": elements, "seed": seed})
    command = [sys.executable, "-m", "peelsum.bench.loss.worker", arguments]
    # In a sum it does not read its input, and would outlive a killed parent until the sum stalls.
    return Child(f"worker {seat.worker_id}", command, foreign=True)


def _line(child: Child) -> dict[str, Any]:
    line = child.next_line(_PATIENCE_S)
    if line is None:
        raise ProcessError(f"{child.name}: ended before it finished; run again, it may have been stopped")
    return line
