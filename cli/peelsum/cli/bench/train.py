"""`peelsum bench train`: time of a training iteration through the switch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.bench.output import exit_if, measuring, print_json, table_of
from peelsum.cli.options import Json, within, without_torch
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from rich.table import Table

    from peelsum.bench.train.report import Row
    from peelsum.bench.train.rows import Request
    from peelsum.training import Density

#: Least width of the tables, whatever the terminal's.
_WIDTH = 100


def train(
    model: Annotated[str, typer.Option(help="ncf, lstm, vgg19 or bert.")] = "ncf",
    workers: Annotated[int, typer.Option(help="Processes that train.")] = 4,
    gbps: Annotated[str, typer.Option(help="Rates of every link in Gbit/s, separated by commas.")] = "1,10",
    small: Annotated[
        bool, typer.Option("--small/--full", help="Train a small model, or the published size.")
    ] = True,
    data: Annotated[
        str | None, typer.Option(help="Path of the data; default: data that every machine has.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Timed iterations of each row.")] = 10,
    warm_ups: Annotated[int, typer.Option(help="Iterations before them.")] = 3,
    top_k: Annotated[
        float | None, typer.Option(help="Share of elements to send, the rest later; default: all.")
    ] = None,
    densities: Annotated[
        bool, typer.Option(help="Only show how dense each gradient is, on 2, 4 and 8 workers.")
    ] = False,
    cpu: Annotated[bool, typer.Option(help="Compare CPU time, without rates.")] = False,
    device: Annotated[str, typer.Option(help="cpu, or cuda: one GPU that all workers share.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of the model and its batches.")] = 0,
    json: Json = False,
) -> None:
    """Measure a training iteration through the switch, beside dense sums and gloo, by rate of links."""
    if find_spec("torch") is None:
        raise typer.BadParameter(without_torch("training"))
    from peelsum.bench.devices import NoDeviceError
    from peelsum.bench.train import rows as bench
    from peelsum.training import MODELS, TrainingDataError
    from peelsum.wire import MAX_WORKERS

    within("--workers", workers, 2, MAX_WORKERS)
    within("--steps", steps, 1, 100_000)
    within("--warm-ups", warm_ups, 1, 100_000)
    within("--seed", seed, 0, 2**31 - 1)
    if top_k is not None:
        within("--top-k", top_k, 1e-9, 1)
    chosen = next((known for known in MODELS if known == model), None)
    if chosen is None:
        raise typer.BadParameter(f"--model: {model!r} is unknown; use one of {', '.join(MODELS)}")
    rates = tuple(_rate(text) for text in gbps.split(","))
    request = bench.Request(chosen, workers, rates, small, data, steps, warm_ups, seed, top_k, cpu, device)
    with measuring(TopologyError, TrainingDataError, NoDeviceError, json=json):
        if densities:
            _show_densities(request, json=json)
        else:
            _show_rows(request, json=json)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise typer.BadParameter(f"--gbps: {text!r} is not a rate; write rates like 1,10") from None
    within("--gbps", rate, 0.001, 400)
    return rate


def _show_rows(request: Request, *, json: bool) -> None:
    """Measure and print; end with status 1 if an average was not exact."""
    from rich.console import Console

    with ExitStack() as stack:
        rows = _measured(request, stack)
    if json:
        print_json(rows)
    else:
        console = Console()
        console.width = max(console.width, _WIDTH)
        if request.cpu:
            console.print(_cpu_table(_title(request, rows), rows))
        else:
            console.print(*_tables(_title(request, rows), rows))
            console.print(_beside_the_paper(rows))
    exit_if(any(row.exact is False for row in rows))


def _measured(request: Request, stack: ExitStack) -> list[Row]:
    """Measure, with a progress line on stderr, if that is a terminal, until the stack is closed."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from peelsum.bench.train.rows import Watch, bench_train

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task("")

    class Shown(Watch):
        def starts(self, rows: int, no_rate: TopologyError | None) -> None:
            if no_rate:
                print(f"peelsum: gloo runs over loopback, without a rate limit: {no_rate}", file=sys.stderr)
            progress.update(task, total=rows)
            stack.enter_context(progress)

        def now(self, what: str, *, done: int = 0) -> None:
            progress.update(task, description=what, advance=done)

    return bench_train(request, Shown())


def _show_densities(request: Request, *, json: bool) -> None:
    from peelsum.bench.train.rows import measure_densities

    data, found = measure_densities(request)
    if json:
        print_json(found)
    else:
        from rich.console import Console

        Console().print(_densities_table(f"{request.model} on {data}", found))


def _densities_table(what: str, found: Sequence[Density]) -> Table:
    from rich import box
    from rich.table import Table

    unions = (f"any of {count}" for count in found[0].union)
    title = f"{what}: share of elements that are not zero"
    table = Table("tensor", "elements", "a worker", *unions, title=title, box=box.SIMPLE)
    for one in found:
        shares = (one.worker, *one.union.values())
        table.add_row(one.tensor, f"{one.elements:,}", *(f"{share:.2%}" for share in shares))
    return table


def _title(request: Request, rows: Sequence[Row]) -> str:
    ours = next(row for row in rows if row.path == "switch")
    size = "small" if request.small else "published size"
    return (
        f"{request.model}, {size}, {request.workers} workers: {ours.density_worker:.1%} dense, "
        f"{ours.density_union:.1%} over all, sent as {ours.form}"
    )


def _tables(title: str, rows: Sequence[Row]) -> Iterator[Table]:
    """Yield a table of iterations, and one of sums without computation; each has a line for every row."""
    times = ("ms", "least", "most", "compute", "encode", "network", "decode")
    speedups = ("over dense", "over gloo")
    shown = _table(f"{title}\niterations", "MB", *times, *speedups, "exact")
    for row in rows:
        parts = (row.iteration_ms, row.iteration_least_ms, row.iteration_most_ms, row.compute_ms)
        shown.add_row(
            *_which(row),
            f"{row.bytes_per_step / 1e6:.2f}",
            *(f"{ms:.0f}" for ms in (*parts, row.encode_ms, row.network_ms, row.decode_ms)),
            *map(_times, (row.speedup_over_dense, row.speedup_over_gloo)),
            _exact(row),
        )
    yield shown
    shown = _table("sums alone", "ms", "Gbit/s of gradients", *speedups)
    for row in rows:
        ratios = map(_times, (row.aggregation_over_dense, row.aggregation_over_gloo))
        shown.add_row(*_which(row), f"{row.aggregation_ms:.0f}", f"{row.aggregation_gbps:.2f}", *ratios)
    yield shown


def _cpu_table(title: str, rows: Sequence[Row]) -> Table:
    """Return a table of the CPU time beyond computation of every backend."""
    headings = (
        "CPU ms\na step",
        "of it the\nswitch's",
        "of\ngloo's",
        "iteration\nms",
        "compute\nms",
        "MB",
        "exact",
    )
    title = f"{title}\nCPU time of all processes beyond computation"
    shown = table_of(("path", *headings), left=("path",), title=title)
    for row in rows:
        times = (row.cpu_ms, row.switch_cpu_ms)
        shown.add_row(
            row.path,
            *(f"{ms:.1f}" for ms in times),
            _times(row.cpu_of_gloo),
            *(f"{ms:.0f}" for ms in (row.iteration_ms, row.compute_ms)),
            f"{row.bytes_per_step / 1e6:.2f}",
            _exact(row),
        )
    return shown


def _exact(row: Row) -> str:
    return {True: "yes", False: "NO", None: "-"}[row.exact]


def _table(title: str, *headings: str) -> Table:
    table = table_of(("Gbit/s", "path", *headings), left=("Gbit/s", "path"), title=title)
    for column in table.columns:
        column.no_wrap = True
    return table


def _which(row: Row) -> tuple[str, str]:
    return "any" if row.gbps is None else f"{row.gbps:g}", row.path


def _times(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup:.2f}x"


def _beside_the_paper(rows: Sequence[Row]) -> str:
    """Return a sentence with the best speedups of this run, and those of LHC's paper."""
    from peelsum.bench.train.report import PAPER_AGGREGATION, PAPER_ITERATION

    ours = [row for row in rows if row.path == "switch"]
    best = max(ours, key=lambda row: row.speedup_over_dense or 0)
    sums = max(row.aggregation_over_dense or 0 for row in ours)
    return (
        f"Best speedup over dense sums through this switch: {best.speedup_over_dense:.2f} for an iteration, "
        f"at {best.gbps:g} Gbit/s, and {sums:.2f} for aggregation. LHC's paper: up to {PAPER_ITERATION} and "
        f"{PAPER_AGGREGATION}, on GPUs, over its own baselines."
    )
