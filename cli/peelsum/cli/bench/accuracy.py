"""`peelsum bench accuracy`: what compression costs in accuracy, and on which links it pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.bench.output import measuring, print_json
from peelsum.cli.options import Json, within, without_torch

if TYPE_CHECKING:
    from peelsum.bench.accuracy.rows import Request, Row, Watch
    from peelsum.bench.accuracy.subjects import SubjectName
    from peelsum.bench.accuracy.training import Advance, Setting

#: Methods by default: one for each way to compress.
_METHODS = "dense,exact,top-k:0.01,star:0.01,random-k:0.01,qsgd:4,packed:8,ef-sign,power:2"
_SEEDS = 3


def accuracy(
    model: Annotated[
        str, typer.Option(help="digits, images, ratings, text and transformer, separated by commas.")
    ] = "digits,ratings,text",
    compressor: Annotated[
        str,
        typer.Option(
            help="Methods by commas: NAME or NAME:VALUE or NAME:FIELD=VALUE, "
            "then /no-feedback, /momentum or /bucket."
        ),
    ] = _METHODS,
    workers: Annotated[int, typer.Option(help="Workers that share the data.")] = 4,
    shares: Annotated[
        str, typer.Option(help="Shares by commas: iid, label, or an alpha of Dirichlet's distribution.")
    ] = "iid",
    gbps: Annotated[
        str, typer.Option(help="Rates of the modelled links in Gbit/s, separated by commas.")
    ] = "0.1,1,10",
    latency_us: Annotated[float, typer.Option(help="Microseconds that a modelled message takes.")] = 50.0,
    seeds: Annotated[int | None, typer.Option(help="Runs of each; default: 3, or 1 with --quick.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each run; default: each model's own.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Train 20 steps only, to try the command.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="File in which finished runs are kept; those in it are not repeated.")
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(
            help="Published data of the only model: CIFAR-10's binary files or a folder for images, "
            "MovieLens' ratings.csv for ratings, a file for text. The model then has its published size, and "
            "a worker passes once over the data."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda: a GPU on which models compute.")] = "cpu",
    json: Json = False,
) -> None:
    """Train with each compressor, and compare accuracy, bytes and time to a target with dense training.

    Accuracy, bytes and times of processors are measured, workers being threads of one process. The network's
    time is modelled for each rate.
    """
    if find_spec("torch") is None:
        raise typer.BadParameter(without_torch("training"))
    from peelsum.bench.accuracy import rows as bench
    from peelsum.bench.accuracy.methods import MethodError
    from peelsum.bench.accuracy.shares import SharesError
    from peelsum.bench.devices import NoDeviceError, require_device
    from peelsum.compress import CompressError
    from peelsum.training import TrainingDataError
    from peelsum.wire import MAX_WORKERS

    chosen = _models(model.split(","), path)
    count = seeds or (1 if quick else _SEEDS)
    length = steps or (bench.QUICK_STEPS if quick else None)
    within("--workers", workers, 2, MAX_WORKERS)
    within("--latency-us", latency_us, 0, 1e6)
    within("--seeds", count if seeds is None else seeds, 1, 100)
    if steps is not None:
        within("--steps", steps, 1, 1_000_000)
    rates = tuple(_rate(text) for text in gbps.split(","))
    methods = tuple(compressor.split(","))
    divided, latency_s = tuple(shares.split(",")), latency_us * 1e-6
    request = bench.Request(
        chosen, methods, workers, count, divided, rates, latency_s, length, device, str(path or "")
    )
    mistakes = MethodError, SharesError, CompressError, TrainingDataError, NoDeviceError, bench.KeptRunsError
    with measuring(*mistakes, json=json):
        require_device(device)
        rows = _measured(request, keep)
        if json:
            print_json(rows)
        else:
            print("\n\n".join("\n".join(lines) for lines in tables(rows)))


def tables(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield a Markdown table of each model's rows, with lines above it that explain it."""
    for _, of_model in groupby(rows, lambda row: (row.model, row.workers, row.shares, row.steps)):
        mine = list(of_model)
        one = mine[0]
        rates = list(dict.fromkeys(row.gbps for row in mine))
        headings = [
            *("method", f"{one.metric} at the end", "bytes a step", f"steps to {_number(one.target)}"),
            *("compress ms", *(f"s at {rate:g} Gbit/s" for rate in rates), "pays below Gbit/s"),
        ]
        lines = [*_title(one), "", _line(headings), "|---" * len(headings) + "|"]
        for _, of_method in groupby(mine, lambda row: row.method):
            lines.append(_line(_cells(list(of_method))))
        yield lines


def _title(one: Row) -> list[str]:
    return [
        f"{one.model}: {one.data}. {one.workers} workers, shares {one.shares};",
        f"{one.steps} steps of {one.compute_ms:.1f} ms, {one.seeds} seeds, {one.latency_ms:g} ms a message.",
        "Measured: all but the network's part of the seconds (s) and the last column, which are modelled.",
        "In brackets: dense training's figure over this one.",
        *([f"Published, {one.published}."] if one.published else []),
    ]


def _cells(rows: Sequence[Row]) -> list[str]:
    """Return the cells of one method, whose rows differ in the rate."""
    one = rows[0]
    reached = _number(one.steps_to_target) if one.steps_to_target else f"{one.reached} of {one.seeds} runs"
    compress = max(row.compress_ms for row in rows)
    return [
        f"`{one.method}`",
        _with_spread(one.final, one.final_spread),
        f"{one.bytes_per_step:,} ({one.times_less:.3g}x)",
        reached,
        f"{compress:.1f}",
        *map(_time, rows),
        "-" if one.method == "dense" or one.faster is None else _number(one.pays_below_gbps, "never"),
    ]


def _time(row: Row) -> str:
    faster = "" if row.faster is None or row.method == "dense" else f" ({row.faster:.2f}x)"
    return _with_spread(row.time_s, row.time_spread_s) + faster


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _with_spread(value: float | None, spread: float | None) -> str:
    return _number(value) if spread is None else f"{_number(value)} ± {_number(spread)}"


def _number(value: float | None, missing: str = "-") -> str:
    return missing if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _models(names: Sequence[str], path: Path | None) -> tuple[SubjectName, ...]:
    """Return the chosen models in the order of the catalogue. Raises `typer.BadParameter`."""
    from peelsum.bench.accuracy.subjects import SUBJECTS

    for name in names:
        if name not in SUBJECTS:
            raise typer.BadParameter(f"--model: {name!r} is unknown; use {', '.join(SUBJECTS)}")
    chosen = tuple(known for known in SUBJECTS if known in names)
    if path is not None and len(chosen) > 1:
        raise typer.BadParameter(f"--path: {path} is data of one model; pass --model images, ratings or text")
    return chosen


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise typer.BadParameter(f"--gbps: {text!r} is not a rate; write rates like 1,10") from None
    within("--gbps", rate, 0.001, 1000)
    return rate


def _measured(request: Request, keep: Path | None) -> list[Row]:
    from peelsum.bench.accuracy.rows import bench_accuracy

    with _shown() as watch:
        return bench_accuracy(request, keep, watch)


@contextmanager
def _shown() -> Iterator[Watch]:
    """Show runs and the time that is left on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from peelsum.bench.accuracy.rows import Watch

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")

        class Shown(Watch):
            def starts(self, settings: Sequence[Setting], done: int) -> None:
                progress.update(task, total=len(settings) - done)

            def trains(self, setting: Setting) -> Advance:
                named = f"{setting.model}, {setting.method}, shares {setting.shares}, seed {setting.seed}"
                progress.update(task, description=named)
                return lambda share: progress.advance(task, share)

        yield Shown()
