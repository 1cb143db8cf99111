"""`peelsum bench train`: what the switch buys a training iteration, beside dense sums and beside gloo.

Owns what is measured and how it is shown. Every worker is a process of its own. The switch is the embedded
one, on loopback, whose ports have the rate; gloo's links are virtual Ethernet with token buckets of the rate.
"""

from __future__ import annotations

import json as json_format
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from peelsum.cli.bench_train_links import ShapedLan
from peelsum.cli.bench_train_worker import FORMS, Job, Measurement
from peelsum.topology import Child, Seat, Star, TopologyError
from peelsum.topology.namespaces import HOST_INTERFACE
from peelsum.training import Density, ModelName, densities, make_task, overall

#: A worker's answer must come within this, in seconds, or the run is given up.
_PATIENCE_S = 1800.0
#: Of the table, in a terminal that does not say how wide it is.
_WIDTH = 120
#: For how many workers the union's density is shown.
UNIONS = (2, 4, 8)
#: What LHC's paper has at best (arXiv 2402.07529): per iteration, and in aggregation throughput.
PAPER_ITERATION, PAPER_AGGREGATION = 3.74, 6.33


@dataclass(frozen=True)
class Row:
    """A training iteration of `workers` workers whose gradients are summed one way.

    gbps: of every link, each way; None where links could not be shaped. path: switch, switch-dense (all of
    every gradient, through the same switch), gloo. form: what gradients were sent as. density_worker,
    density_union: share of all gradients' elements that are not zero on a worker, on any.
    With top-k both are of what is sent. bytes_per_step: what a worker sends; for gloo, a ring's. Times are
    the slowest worker's: iteration_ms and compute_ms (forward, backward, optimizer, with no sums) are medians
    of steps; encode_ms, network_ms and decode_ms are means, of threads that run beside the rest; gloo's
    network is what is left. exact: every average equals that of the workers' integers; None if not compared,
    as for gloo, which adds floats, and for top-k.
    """

    model: str
    workers: int
    gbps: float | None
    path: str
    form: str
    density_worker: float
    density_union: float
    bytes_per_step: int
    iteration_ms: float
    compute_ms: float
    encode_ms: float
    network_ms: float
    decode_ms: float
    speedup_over_dense: float | None
    speedup_over_gloo: float | None
    exact: bool | None


@dataclass(frozen=True)
class Request:
    """What is measured. path: of the data, None for any machine's. top_k: share that `switch` sends."""

    model: ModelName
    workers: int = 4
    gbps: tuple[float, ...] = (1.0, 10.0)
    small: bool = True
    path: str | None = None
    steps: int = 10
    warm_ups: int = 3
    seed: int = 0
    top_k: float | None = None


def bench_train(request: Request, *, json: bool = False) -> list[Row]:
    """Measure each rate in turn; a table or, with `json`, a list of objects.

    Raises ProcessError if a process fails, SystemExit(1) if an average was not exact.
    """
    rows = _compared(list(_rows(request)))
    if json:
        sys.stdout.write(json_format.dumps([asdict(row) for row in rows], indent=2) + "\n")
    else:
        console = Console()
        console.width = max(console.width, _WIDTH)
        console.print(_table(request, rows))
        console.print(_beside_the_paper(rows))
    if any(row.exact is False for row in rows):
        raise SystemExit(1)
    return rows


def show_densities(request: Request, *, json: bool = False) -> list[Density]:
    """How dense every parameter's gradient is, on a worker and on several, without summing anything."""
    task = make_task(request.model, small=request.small, path=request.path, seed=request.seed)
    found = densities(task, UNIONS, seed=request.seed)
    found.append(overall(found))
    if json:
        sys.stdout.write(json_format.dumps([asdict(one) for one in found], indent=2) + "\n")
        return found
    title = f"{request.model} on {task.data}: share of elements that are not zero"
    unions = (f"any of {count}" for count in UNIONS)
    table = Table("tensor", "elements", "a worker", *unions, title=title, box=box.SIMPLE)
    for one in found:
        shares = (one.worker, *one.union.values())
        table.add_row(one.tensor, f"{one.elements:,}", *(f"{share:.2%}" for share in shares))
    Console().print(table)
    return found


def _rows(request: Request) -> Iterator[Row]:
    with ExitStack() as stack:
        lan = _lan(stack, request.workers)  # before anything starts threads
        yield from _by_switch(request)
        yield from _by_gloo(request, lan)


def _lan(stack: ExitStack, workers: int) -> ShapedLan | None:
    try:
        return stack.enter_context(ShapedLan(workers))
    except TopologyError as error:
        print(f"peelsum: gloo runs over loopback, at no set rate: {error}", file=sys.stderr)
        return None


def _by_switch(request: Request) -> Iterator[Row]:
    with ExitStack() as stack:
        children = _crew(stack, request, None)
        for gbps in request.gbps:
            with Star(request.workers, rate_mbit=1000 * gbps) as star:
                for row in _asked(children, request, list(FORMS), star.seats):
                    star.check()
                    yield replace(row, gbps=gbps)


def _by_gloo(request: Request, lan: ShapedLan | None) -> Iterator[Row]:
    with ExitStack() as stack:
        children = _crew(stack, request, lan)
        for gbps in request.gbps if lan else [None]:
            if lan and gbps:
                lan.shape(gbps)
            for row in _asked(children, request, ["gloo"], None):
                yield replace(row, gbps=gbps)


def _crew(stack: ExitStack, request: Request, lan: ShapedLan | None) -> list[Child]:
    """The workers, ready to be told how to sum."""
    store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))) / "gloo"
    options = {name: getattr(request, name) for name in asdict(request) if name != "gbps"}
    options |= {"store": str(store), "interface": HOST_INTERFACE if lan else "lo"}
    children = []
    for rank in range(request.workers):
        job = Job(rank=rank, **options)
        command = [sys.executable, "-m", "peelsum.cli.bench_train_worker", json_format.dumps(asdict(job))]
        child = Child(f"worker {rank}", [*(lan.prefix(rank) if lan else []), *command])
        stack.callback(child.stop)
        children.append(child)
    for child in children:
        child.ready(_PATIENCE_S)
    return children


def _asked(
    children: Sequence[Child], request: Request, paths: list[str], seats: Sequence[Seat] | None
) -> Iterator[Row]:
    for rank, child in enumerate(children):
        child.tell(paths=paths, seat=None if seats is None else asdict(seats[rank]))
    for _ in paths:
        lines = [child.next_line(_PATIENCE_S) for child in children]
        ended = [child.name for child, line in zip(children, lines, strict=True) if line is None]
        if ended:
            raise TopologyError(f"{', '.join(ended)}: ended early; run again, it may have been stopped")
        yield _row(request, [Measurement(**line) for line in lines if line])


def _row(request: Request, measured: Sequence[Measurement]) -> Row:
    def slowest(name: str) -> float:
        seconds: list[float] = [getattr(one, name) for one in measured]
        return round(1e3 * max(seconds), 2)

    wrong = [one.wrong for one in measured if one.wrong is not None]
    return Row(
        model=request.model,
        workers=request.workers,
        gbps=None,
        path=measured[0].path,
        form=measured[0].form,
        density_worker=round(sum(one.density_worker for one in measured) / len(measured), 5),
        density_union=round(measured[0].density_union, 5),
        bytes_per_step=round(max(one.bytes_sent for one in measured)),
        iteration_ms=slowest("iteration_s"),
        compute_ms=slowest("compute_s"),
        encode_ms=slowest("encode_s"),
        network_ms=slowest("network_s"),
        decode_ms=slowest("decode_s"),
        speedup_over_dense=None,
        speedup_over_gloo=None,
        exact=not any(wrong) if wrong else None,
    )


def _compared(rows: Sequence[Row]) -> list[Row]:
    """The rows by rate, with how many times faster an iteration is than those it is compared with."""
    unshaped = next((row.iteration_ms for row in rows if row.path == "gloo" and row.gbps is None), None)
    times = {(row.path, row.gbps): row.iteration_ms for row in rows}

    def speedup(row: Row, path: str) -> float | None:
        other = times.get((path, row.gbps), unshaped if path == "gloo" else None)
        return None if other is None else round(other / row.iteration_ms, 3)

    return [
        replace(
            row,
            speedup_over_dense=speedup(row, "switch-dense"),
            speedup_over_gloo=speedup(row, "gloo"),
        )
        for row in sorted(rows, key=lambda row: row.gbps or 0)
    ]


def _table(request: Request, rows: Sequence[Row]) -> Table:
    size = "small" if request.small else "published size"
    density = (
        f"{rows[0].density_worker:.1%} dense, {rows[0].density_union:.1%} over {request.workers} workers"
    )
    title = f"{request.model}, {size}: {density}"
    columns = ("Gbit/s", "path", "form", "MB/step", "ms/step", "compute", "encode", "network", "decode")
    table = Table(*columns, "over dense", "over gloo", "exact", title=title, box=box.SIMPLE)
    for row in rows:
        times = (row.iteration_ms, row.compute_ms, row.encode_ms, row.network_ms, row.decode_ms)
        speedups = (row.speedup_over_dense, row.speedup_over_gloo)
        table.add_row(
            "unshaped" if row.gbps is None else f"{row.gbps:g}",
            row.path,
            row.form,
            f"{row.bytes_per_step / 1e6:.2f}",
            *(f"{ms:.1f}" for ms in times),
            *("" if times_ is None else f"{times_:.2f}x" for times_ in speedups),
            {True: "yes", False: "NO", None: "floats"}[row.exact],
        )
    return table


def _beside_the_paper(rows: Sequence[Row]) -> str:
    """The best of this run, and what LHC's paper has."""
    ours = [row for row in rows if row.path == "switch"]
    dense = {row.gbps: row for row in rows if row.path == "switch-dense"}
    best = max(ours, key=lambda row: row.speedup_over_dense or 0)
    sums = max(_sum_ms(dense[row.gbps]) / _sum_ms(row) for row in ours)
    return (
        f"Best here: {best.speedup_over_dense:.2f} times an iteration, at {best.gbps:g} Gbit/s, and "
        f"{sums:.2f} times a sum (encode, network, decode), over dense through this switch. LHC's paper: up "
        f"to {PAPER_ITERATION} and {PAPER_AGGREGATION}, on GPUs, over baselines of its own."
    )


def _sum_ms(row: Row) -> float:
    return row.encode_ms + row.network_ms + row.decode_ms
