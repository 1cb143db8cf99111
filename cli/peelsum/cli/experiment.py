"""`peelsum experiment`: run experiments, show their rows, and compare two runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.bench.output import measuring, print_json, table_of
from peelsum.cli.options import Json, within

if TYPE_CHECKING:
    from peelsum.experiments.comparing import Difference
    from peelsum.experiments.running import Measured, Run, Watch
    from peelsum.experiments.store import Row
    from peelsum.topology.progress import Tell

app = typer.Typer(help="From one command to the figure.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="An experiment's name, or the path of its file.")]
Quick = Annotated[bool, typer.Option("--quick", help="The smallest size.")]
Full = Annotated[bool, typer.Option("--full", help="The largest size.")]
Out = Annotated[Path, typer.Option(help="Folder in which every experiment has a folder.")]
Seed = Annotated[int, typer.Option(help="Seed of the order, and of the first repetition.")]
_OUT = Path("build/experiments")


@app.command("list")
def list_(json: Json = False) -> None:
    """List the experiments, with the rows of each size."""
    from peelsum.experiments import ExperimentError
    from peelsum.experiments.experiment import SIZES
    from peelsum.experiments.loading import catalogue
    from peelsum.experiments.plan import plan

    with measuring(ExperimentError, json=json):
        found = [
            {"name": one.name, "title": one.title, **{size: len(plan(one, size, 0)) for size in SIZES}}
            for one in catalogue()
        ]
    if json:
        print_json(found)
        return
    from rich.console import Console

    table = table_of(("name", "title", *SIZES), left=("name", "title"), caption="rows of each size")
    for row in found:
        table.add_row(*map(str, row.values()))
    Console().print(table)


@app.command("run")
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Names, or paths of files.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all experiments of `list`.")] = False,
    quick: Quick = False,
    full: Full = False,
    out: Out = _OUT,
    seed: Seed = 0,
    calm: Annotated[
        float, typer.Option(help="Share of the processors that others may use during a row.")
    ] = 0.25,
    attempts: Annotated[
        int, typer.Option(help="How often a row is measured at most while others use more.")
    ] = 3,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler whose workers measure the rows.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure the rows of experiments, and write page and figures.

    Rows are kept as soon as they are measured: after an interrupt, the same command goes on.
    """
    from peelsum.experiments import ExperimentError
    from peelsum.experiments.drawing import require_matplotlib
    from peelsum.experiments.loading import known
    from peelsum.experiments.measuring import Care

    within("--seed", seed, 0, 2**31)
    within("--calm", calm, 0, 1)
    within("--attempts", attempts, 1, 100)
    chosen = [*(known() if everything else ()), *(names or ())]
    if not chosen:
        raise typer.BadParameter(
            "NAME: is missing; name an experiment of `peelsum experiment list`, or --all"
        )
    with measuring(ExperimentError, json=json) as tell:
        require_matplotlib()
        whats = [_what(name, quick, full, seed, Care(calm, attempts)) for name in chosen]
        done = [
            _run_one(name, what, out, scheduler, tell, json=json)
            for name, what in zip(chosen, whats, strict=True)
        ]
        if json:
            print_json(done)
    if any(one["failed"] for one in done):
        raise typer.Exit(1)


@app.command("show")
def show(
    name: Name, quick: Quick = False, full: Full = False, out: Out = _OUT, seed: Seed = 0, json: Json = False
) -> None:
    """Print the page of the rows that were measured last, by whatever commit and version of the file."""
    from peelsum.experiments import ExperimentError
    from peelsum.experiments.loading import load
    from peelsum.experiments.results import rendered
    from peelsum.experiments.summaries import grouped

    with measuring(ExperimentError, json=json):
        what, rows = _measured_last(name, quick, full, seed, out)
        if json:
            print_json(grouped(load(what.source), rows))
        else:
            print(rendered(what, rows, name), end="")


@app.command("draw")
def draw(
    names: Annotated[list[str], typer.Argument(help="Names, or paths of files.")],
    quick: Quick = False,
    full: Full = False,
    out: Out = _OUT,
    seed: Seed = 0,
) -> None:
    """Write pages and figures again, of the rows that were measured last; measure nothing."""
    from peelsum.experiments import ExperimentError
    from peelsum.experiments.drawing import require_matplotlib
    from peelsum.experiments.results import write
    from peelsum.experiments.running import Report

    with measuring(ExperimentError, json=False):
        require_matplotlib()
        for name in names:
            what, rows = _measured_last(name, quick, full, seed, out)
            print(write(what, Report(rows, len(rows), []), name, out))


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(help="A file of rows, or the folder of a run.")],
    b: Annotated[Path, typer.Argument(help="Another run of the same experiment.")],
    json: Json = False,
) -> None:
    """Compare two runs of an experiment, point by point: the second over the first."""
    from rich.console import Console

    from peelsum.experiments import ExperimentError, comparing

    with measuring(ExperimentError, json=json):
        found = comparing.compare(a, b)
        if json:
            print_json(found)
        else:
            Console().print(_compared(found))


def _measured_last(name: str, quick: bool, full: bool, seed: int, out: Path) -> tuple[Run, list[Row]]:
    from peelsum.experiments.measuring import Care
    from peelsum.experiments.results import ROWS, folder
    from peelsum.experiments.running import rows_of
    from peelsum.experiments.store import read

    what = _what(name, quick, full, seed, Care())
    return what, rows_of(what, read(folder(out, what) / ROWS))


def _what(name: str, quick: bool, full: bool, seed: int, care: Any) -> Run:
    from peelsum.experiments.loading import find, load
    from peelsum.experiments.running import Run

    if quick and full:
        raise typer.BadParameter("--quick: cannot be used with --full; use one of them")
    source = find(name)
    load(source)
    return Run(source, "quick" if quick else "full" if full else "usual", seed, care)


def _run_one(
    name: str, what: Run, out: Path, scheduler: str | None, tell: Tell, *, json: bool
) -> dict[str, Any]:
    from peelsum.experiments import running
    from peelsum.experiments.dask_cluster import on_cluster
    from peelsum.experiments.loading import load
    from peelsum.experiments.local_pool import on_this_machine
    from peelsum.experiments.results import ROWS, folder, write

    experiment = load(what.source)
    title = experiment.name
    execute = on_cluster(scheduler) if scheduler else on_this_machine(experiment)
    with _shown(title, tell) as watch:
        report = running.run(what, folder(out, what) / ROWS, execute, watch)
    page = write(what, report, name, out)
    if not json:
        print(
            f"{title}: {len(report.rows)} rows, {report.kept} of them from earlier runs: {page}", flush=True
        )
    return {
        "name": title,
        "rows": len(report.rows),
        "kept": report.kept,
        "failed": [asdict(one) for one in report.failed],
        "page": str(page),
    }


@contextmanager
def _shown(title: str, tell: Tell) -> Iterator[Watch]:
    """Show rows and the time that is left: as a bar on a terminal, else as lines."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from peelsum.experiments.running import Failed, Watch

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title)

        class Shown(Watch):
            def starts(self, rows: int) -> None:
                self._rows, self._done, self._began = rows, 0, time.monotonic()
                progress.update(task, total=rows)

            def measured(self, outcome: Measured) -> None:
                self._done += 1
                progress.advance(task)
                if isinstance(outcome[1], Failed):
                    tell(f"{title}: failed: {outcome[1].error}")
                elif not console.is_terminal:
                    left_s = (time.monotonic() - self._began) / self._done * (self._rows - self._done)
                    tell(f"{title}: {self._done} of {self._rows} rows, {left_s:.0f} s left")

        yield Shown()


def _compared(found: Sequence[Difference]) -> Any:
    table = table_of(("point", "column", "a", "b", "b over a", "apart"), left=("point", "column"))
    from peelsum.experiments.page import shown

    for one in found:
        point = ", ".join(f"{name} {value}" for name, value in one.point.items() if value)
        ratio = "-" if one.ratio is None else f"{one.ratio:.3f}"
        table.add_row(point, one.column, shown(one.a), shown(one.b), ratio, "yes" if one.apart else "no")
    return table
