"""`peelsum bench loss`: what lost packets cost, beside the same sums over the same network without loss.

Owns what is measured and how it is shown. Switch, controller, server and every worker are processes of their
own; the switch's UDP ports lose a seeded share of the packets, each way.
"""

from __future__ import annotations

import json as json_format
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from peelsum.topology import Child, ProcessError, Seat, Star, StarReport
from peelsum.wire import COMPILED_LANES

#: A worker's answer must come within this, in seconds, or the run is given up.
_PATIENCE_S = 120.0
_WARM_UPS = 2


@dataclass(frozen=True)
class Row:
    """Sums of `elements` words by all workers at one share of loss.

    loss: of the packets at every switch port, in each direction; a chunk crosses 2 * workers + 2 of them.
    sums, wrong: sums that were timed, and elements that differ from an independent sum on any worker.
    step_ms: median time of a sum, the slowest worker's; step_least_ms, step_most_ms: of all sums.
    rate_gbit_s: bits of words that a worker had summed a second, at the median. share_lost: of the rate
        without loss, in this run.
    lost_packets: all that the ports dropped on purpose. resends: packets that workers sent again.
    window_cuts: times that a worker cut its window, for marks or many losses, all workers.
    summed_in_switch: share of chunks.
    """

    loss: float
    workers: int
    lanes: int
    elements: int
    seed: int
    sums: int
    wrong: int
    step_ms: float
    step_least_ms: float
    step_most_ms: float
    rate_gbit_s: float
    share_lost: float
    lost_packets: int
    resends: int
    window_cuts: int
    summed_in_switch: float


@dataclass(frozen=True)
class Run:
    """What came of one network: seconds of each sum, wrong elements, and what everybody counted."""

    seconds: list[float]
    wrong: int
    workers: list[dict[str, Any]]
    star: StarReport


def bench_loss(
    *,
    losses: Sequence[float] = (0.001, 0.01, 0.05),
    workers: int = 4,
    lanes: int = COMPILED_LANES[-1],
    elements: int = 1 << 20,
    seconds: float = 10.0,
    seed: int = 0,
    json: bool = False,
) -> list[Row]:
    """Measure without loss, then every share of loss in turn; a table or, with `json`, a list of objects.

    seconds: how long sums are repeated at each share; at least one is made. seed: of words and losses.
    Raises ProcessError if a process fails, SystemExit(1) if a sum was wrong.
    """
    runs = {loss: _run(loss, workers, lanes, elements, seconds, seed) for loss in (0.0, *losses)}
    base = median(runs[0.0].seconds)
    shape = {"workers": workers, "lanes": lanes, "elements": elements, "seed": seed}
    rows = [_row(loss, run, base, shape) for loss, run in runs.items()]
    if json:
        sys.stdout.write(json_format.dumps([asdict(row) for row in rows], indent=2) + "\n")
    else:
        Console().print(_table(rows))
    if any(row.wrong for row in rows):
        raise SystemExit(1)
    return rows


def _run(loss: float, workers: int, lanes: int, elements: int, seconds: float, seed: int) -> Run:
    """One network of its own: sums until `seconds` are over, all workers told at once to begin each."""
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
    """What every worker says of each sum, the ones to warm up included."""
    ends, count = time.monotonic() + seconds, 0
    while count <= _WARM_UPS or time.monotonic() < ends:
        for child in children:
            child.tell(again=True)
        yield [_line(child) for child in children]
        count += 1


def _worker(seat: Seat, elements: int, seed: int) -> Child:
    arguments = json_format.dumps({"seat": asdict(seat), "elements": elements, "seed": seed})
    command = [sys.executable, "-m", "peelsum.cli.bench_loss_worker", arguments]
    return Child(f"worker {seat.worker_id}", command)


def _line(child: Child) -> dict[str, Any]:
    line = child.next_line(_PATIENCE_S)
    if line is None:
        raise ProcessError(f"{child.name}: ended before it was done; run again, it may have been stopped")
    return line


def _row(loss: float, run: Run, base_s: float, shape: dict[str, Any]) -> Row:
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


def _table(rows: Sequence[Row]) -> Table:
    first = rows[0]
    caption = (
        f"{first.workers} workers, {first.elements:,} words a sum, {first.lanes} lanes, seed {first.seed}"
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption)
    for heading in (
        "loss",
        "sums",
        "wrong",
        "ms a sum",
        "Gbit/s",
        "rate lost",
        "in switch",
        "resends",
        "cuts",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.loss:.1%}",
            str(row.sums),
            str(row.wrong),
            f"{row.step_ms:,.1f}",
            f"{row.rate_gbit_s:.2f}",
            f"{row.share_lost:.1%}",
            f"{row.summed_in_switch:.1%}",
            f"{row.resends:,}",
            str(row.window_cuts),
        )
    return table
