"""`peelsum bench loss`: measure what lost packets cost, compared with the same sums without loss.

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
from statistics import median
from typing import Any

from peelsum.topology import Child, ProcessError, Seat, Star, StarReport
from peelsum.wire import COMPILED_LANES

#: Seconds within which a worker must finish a sum; otherwise the run fails.
_PATIENCE_S = 120.0
_WARM_UPS = 2


@dataclass(frozen=True)
class Row:
    """Sums of `elements` words at one share of loss. Times are the slowest worker's."""

    loss: float
    """Share of packets lost at every port in each direction; a chunk passes 2 * workers + 2 such places."""
    workers: int
    """Workers that sum."""
    lanes: int
    """Words per packet of the pipeline."""
    elements: int
    """Words of a sum."""
    seed: int
    """Seed of the losses."""
    sums: int
    """Sums that were timed."""
    wrong: int
    """Elements that differ from an independent sum on any worker."""
    step_ms: float
    """Median time of a sum."""
    step_least_ms: float
    """Least time of a sum."""
    step_most_ms: float
    """Most time of a sum."""
    rate_gbit_s: float
    """Gigabits of words that a worker had summed per second, at the median."""
    share_lost: float
    """Share of the rate without loss that was lost."""
    lost_packets: int
    """Packets that the ports dropped on purpose."""
    resends: int
    """Packets that workers retransmitted."""
    window_cuts: int
    """Times that a worker cut its window, for ECN marks or many losses; all workers."""
    summed_in_switch: float
    """Share of chunks that the switch summed."""


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


def bench_loss(
    *,
    losses: Sequence[float] = (0.001, 0.01, 0.05),
    workers: int = 4,
    lanes: int = COMPILED_LANES[-1],
    elements: int = 1 << 20,
    seconds: float = 10.0,
    seed: int = 0,
) -> list[Row]:
    """Measure without loss, then at each of `losses`; return the rows, which count wrong elements.

    Sums are repeated for `seconds` at each share, but at least once. `seed` determines words and losses.
    Raises ProcessError if a process fails.
    """
    runs = {loss: run(loss, workers, lanes, elements, seconds, seed) for loss in (0.0, *losses)}
    base = median(runs[0.0].seconds)
    shape = {"workers": workers, "lanes": lanes, "elements": elements, "seed": seed}
    return [row(loss, one, base, shape) for loss, one in runs.items()]


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


def row(loss: float, run: Run, base_s: float, shape: dict[str, Any]) -> Row:
    """Return the row of a run; `base_s` is the median of a sum without loss, in seconds."""
    step_s, server = median(run.seconds), run.star.server
    in_switch = server["chunks_in_switch"]
    return Row(
        loss=loss,
        **shape,
        sums=len(run.seconds),
        wrong=run.wrong,
        step_ms=round(step_s * 1e3, 2),
        step_least_ms=round(min(run.seconds) * 1e3, 2),
        step_most_ms=round(max(run.seconds) * 1e3, 2),
        rate_gbit_s=round(32 * shape["elements"] / step_s / 1e9, 4),
        share_lost=round(1 - base_s / step_s, 4),
        lost_packets=sum(port["lost_in"] + port["lost_out"] for port in run.star.ports.values()),
        resends=sum(worker["resends"] for worker in run.workers),
        window_cuts=sum(worker["window_cuts"] for worker in run.workers),
        summed_in_switch=round(in_switch / max(1, in_switch + server["chunks_at_server"]), 4),
    )
