"""`peelsum bench`: measure what is declared in the catalogue, or in a file of one's own, and compare runs.

`peelsum bench NAME` is short for `peelsum bench run NAME`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from peelsum.cli.options import Json, within
from peelsum.cli.output import measuring, print_json, progress_bar, table_of
from peelsum.extras import missing

if TYPE_CHECKING:
    from peelsum.experiments import Experiment, Value
    from peelsum.experiments.running import Measured, Report, Run, Watch
    from peelsum.experiments.store import Row
    from peelsum.processes.progress import Tell


class _Group(TyperGroup):
    """The verbs; a first word that is none of them names what `run` measures."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_Group, help="Measure, from one command to the figure.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A name of `peelsum bench list`, or the path of a file.")]
Quick = Annotated[bool, typer.Option("--quick", help="The smallest size.")]
Full = Annotated[bool, typer.Option("--full", help="The largest size.")]
Out = Annotated[Path, typer.Option(help="Folder in which every measurement has a folder.")]
Seed = Annotated[int, typer.Option(help="Seed of the order, and of the first repetition.")]
_OUT = Path("build/bench")
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="Show the parameters and columns of this one.")] = None,
    json: Json = False,
) -> None:
    """List what can be measured, with the rows of each size; or one, with its parameters and columns."""
    from peelsum.experiments import ExperimentError
    from peelsum.experiments.experiment import SIZES, plan
    from peelsum.experiments.loading import catalogue, find, load

    with measuring(ExperimentError):
        if name is not None:
            print("\n".join(_described(load(find(name)))))
            return
        found = [
            {"name": one.name, "title": one.title, **{size: len(plan(one, size, 0)) for size in SIZES}}
            for one in catalogue()
        ]
    if json:
        print_json(found)
        return
    from rich.console import Console

    table = table_of(("name", "title", *SIZES), left=("name", "title"), caption="points of each size")
    for row in found:
        table.add_row(*map(str, row.values()))
    Console().print(table)


@app.command("run", context_settings=ANYTHING)
def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME... [--PARAMETER VALUE,...]", help="Names, or paths of files."),
    ] = None,
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
    again: Annotated[bool, typer.Option("--again", help="Measure rows that there are, too.")] = False,
    json: Json = False,
) -> None:
    """Measure rows, print them, and write a page and figures.

    Parameters, which `peelsum bench list NAME` shows, are options, too: --lanes 32,256.

    Rows are kept as soon as they are measured: after an interrupt, the same command goes on. Status 1 says
    that a sum was wrong, or that rows failed.
    """
    from peelsum.experiments import ExperimentError
    from peelsum.experiments.loading import find, load
    from peelsum.experiments.measuring import Care
    from peelsum.experiments.running import Run

    within("--seed", seed, 0, 2**31)
    within("--calm", calm, 0, 1)
    within("--attempts", attempts, 1, 100)
    size, (chosen, options) = _size(quick, full), _split(names or [])
    if not chosen:
        raise typer.BadParameter("NAME: is missing; name one of `peelsum bench list`")
    with measuring(ExperimentError) as tell:
        whats = []
        for name in chosen:
            experiment = load(find(name))
            _require(experiment)
            given = _given(experiment, options)
            care = Care(calm, attempts)
            whats.append(Run(find(name), size, seed, care, given, again))
        reports = [
            _measured(name, what, out, tell, json=json, alone=len(whats) == 1)
            for name, what in zip(chosen, whats, strict=True)
        ]
        if json:
            print_json([row for report in reports for row in report])
    if any(_wrong(row) for report in reports for row in report):
        raise typer.Exit(1)


@app.command("show", context_settings=ANYTHING)
def show(
    name: Annotated[list[str], typer.Argument(metavar="NAME [--PARAMETER VALUE,...]")],
    quick: Quick = False,
    full: Full = False,
    out: Out = _OUT,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Print the page of the rows that were measured last, by whatever commit and version of the file."""
    from peelsum.experiments import ExperimentError
    from peelsum.experiments.loading import load
    from peelsum.experiments.results import rendered
    from peelsum.experiments.summaries import grouped

    with measuring(ExperimentError):
        what, rows = _measured_last(name, quick, full, seed, out)
        if json:
            print_json(grouped(load(what.source), rows))
        else:
            print(rendered(what, rows, name[0]), end="")


@app.command("draw")
def draw(
    names: Annotated[list[str], typer.Argument(help="Names, or paths of files.")],
    quick: Quick = False,
    full: Full = False,
    out: Out = _OUT,
    seed: Seed = 0,
    rows: Annotated[
        list[Path] | None, typer.Option(help="Files of rows as --json prints them, to draw instead.")
    ] = None,
) -> None:
    """Write pages and figures again, of the rows that were measured last; measure nothing.

    With --rows, write only the figures of one experiment.
    """
    from peelsum.experiments import ExperimentError, drawing
    from peelsum.experiments.loading import find, load
    from peelsum.experiments.results import read_json, write
    from peelsum.experiments.running import Report

    with measuring(ExperimentError):
        for name in names:
            if rows:
                experiment = load(find(name))
                print(*drawing.draw(experiment, read_json(experiment, rows), out / experiment.name), sep="\n")
                continue
            what, last = _measured_last([name], quick, full, seed, out)
            print(write(what, Report(last, len(last), []), name, out))


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(help="A file of rows, or the folder of a run.")],
    b: Annotated[Path, typer.Argument(help="Another run of the same measurement.")],
    json: Json = False,
) -> None:
    """Compare two runs, point by point: the second over the first."""
    from rich.console import Console

    from peelsum.experiments import ExperimentError, comparing
    from peelsum.experiments.page import shown

    with measuring(ExperimentError):
        found = comparing.compare(a, b)
        if json:
            print_json(found)
            return
        table = table_of(("point", "column", "a", "b", "b over a", "apart"), left=("point", "column"))
        for one in found:
            point = ", ".join(f"{name} {value}" for name, value in one.point.items() if value)
            ratio = "-" if one.ratio is None else f"{one.ratio:.3f}"
            table.add_row(point, one.column, shown(one.a), shown(one.b), ratio, "yes" if one.apart else "no")
        Console().print(table)


def _described(one: Experiment) -> Iterator[str]:
    """Yield the lines about a measurement: its text, its parameters with their usual values, its columns."""
    from peelsum.experiments.results import option_of
    from peelsum.experiments.store import text

    yield from (f"{one.name}: {one.title}", "", one.about.strip(), "", "Parameters, with their usual values:")
    for name in one.parameters:
        usual = dict.fromkeys(value for part in one.size("usual").grid for value in part.get(name, ()))
        limits = one.ranges.get(name)
        known = f"; {limits[0]:g} to {limits[1]:g}" if limits else ""
        known += f"; one of {', '.join(map(text, one.choices[name]))}" if name in one.choices else ""
        yield f"  {option_of(name)} {','.join(text(value) or 'none' for value in usual)}{known}"
    yield from ("", "Columns:", *(f"  {name}: {column.meaning}" for name, column in one.columns.items()))


def _split(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return names, and the texts of each parameter: `--name text`, `--name=text`, or `--name` for True."""
    names, options, last = list[str](), dict[str, list[str]](), ""
    for word in words:
        if word.startswith("--"):
            last, equals, value = word[2:].replace("-", "_").partition("=")
            options.setdefault(last, [])
            options[last] += [value] if equals else []
            last = "" if equals else last
        elif last:
            options[last].append(word)
            last = ""
        else:
            names.append(word)
    return names, {name: texts or ["True"] for name, texts in options.items()}


def _given(experiment: Experiment, options: Mapping[str, Sequence[str]]) -> dict[str, Sequence[Value]]:
    """Return the values of parameters that options give. Raises typer.BadParameter."""
    from peelsum.experiments.results import option_of

    given: dict[str, Sequence[Value]] = {}
    for option, texts in options.items():
        fits = [
            name for name in experiment.parameters if option in (name, option_of(name)[2:].replace("-", "_"))
        ]
        if len(fits) != 1:
            known = ", ".join(map(option_of, experiment.parameters))
            raise typer.BadParameter(f"--{option}: is no parameter of {experiment.name}; use one of {known}")
        cells = [cell for text in texts for cell in text.split(",")]
        (name,), usual = fits, experiment.values(fits[0])
        if any(isinstance(value, tuple) for value in usual):
            kind = next((one for value in usual if isinstance(value, tuple) for one in value), "")
            given[name] = (tuple(_parsed(experiment, name, option, cell, [kind]) for cell in cells),)
        else:
            given[name] = tuple(_parsed(experiment, name, option, cell, usual) for cell in cells)
    return given


def _parsed(experiment: Experiment, name: str, option: str, text: str, usual: Sequence[Value]) -> Value:
    """Return the value that a text is, of the kind of the usual ones. Raises typer.BadParameter."""
    shown = f"--{option.replace('_', '-')}"
    kinds = {type(value) for value in usual if value is not None}
    if text.lower() == "none" and None in usual:
        return None
    if kinds <= {bool} and kinds and text in ("True", "False"):
        return text == "True"
    value: Value = text
    if kinds & {int, float} or name in experiment.ranges:
        try:
            value = int(text) if kinds == {int} else float(text)
        except ValueError:
            raise typer.BadParameter(f"{shown}: {text!r} is no number; write numbers like 1,10") from None
    if name in experiment.ranges and isinstance(value, int | float):
        within(shown, value, *experiment.ranges[name])
    if value not in experiment.choices.get(name, (value,)):
        known = ", ".join(map(str, experiment.choices[name]))
        raise typer.BadParameter(f"{shown}: {text!r} is unknown; use one of {known}")
    return value


def _require(experiment: Experiment) -> None:
    from peelsum.experiments import ExperimentError
    from peelsum.experiments.drawing import require_matplotlib

    if experiment.plots:
        require_matplotlib()
    for package in experiment.needs:
        if find_spec(package) is None:
            extra = "rivals" if package in ("lz4", "zstandard") else "training"
            raise ExperimentError(missing(package, extra))


def _size(quick: bool, full: bool) -> str:
    if quick and full:
        raise typer.BadParameter("--quick: cannot be used with --full; use one of them")
    return "quick" if quick else "full" if full else "usual"


def _measured_last(
    words: Sequence[str], quick: bool, full: bool, seed: int, out: Path
) -> tuple[Run, list[Row]]:
    from peelsum.experiments.loading import find, load
    from peelsum.experiments.results import ROWS, folder
    from peelsum.experiments.running import Run, rows_of
    from peelsum.experiments.store import read

    (name, *_), options = _split(words)
    source = find(name)
    what = Run(source, _size(quick, full), seed, given=_given(load(source), options))
    return what, rows_of(what, read(folder(out, what) / ROWS))


def _measured(
    name: str, what: Run, out: Path, tell: Tell, *, json: bool, alone: bool
) -> list[dict[str, Value]]:
    """Measure, write page and figures, print the table unless `json`; return the rows.

    Raises ExperimentError if all rows failed, and there is no other measurement to go on with.
    """
    from peelsum.experiments import ExperimentError, running
    from peelsum.experiments.loading import load
    from peelsum.experiments.page import objects, text_of
    from peelsum.experiments.results import ROWS, folder, write

    experiment = load(what.source)
    with _shown(experiment.name, tell) as watch:
        report = running.run(what, folder(out, what) / ROWS, watch)
    page = write(what, report, name, out)
    if report.failed and not report.rows and alone:
        raise ExperimentError(report.failed[0].error)
    if not json:
        if report.rows:
            print(text_of(experiment, report.rows), flush=True)
        print(f"{experiment.name}: {_counted(report)}: {page}", file=sys.stderr)
    found = objects(experiment, report.rows)
    return found + [{"failure": one.error} for one in report.failed]


def _counted(report: Report) -> str:
    kept = f", {report.kept} of them from earlier runs (--again measures them again)" if report.kept else ""
    return f"{len(report.rows)} rows{kept}"


def _wrong(row: Mapping[str, Any]) -> bool:
    """Return whether a row failed, or says that sums were wrong."""
    return "failure" in row or bool(row.get("wrong")) or row.get("exact") is False


@contextmanager
def _shown(title: str, tell: Tell) -> Iterator[Watch]:
    """Show points and the time that is left: as a bar on a terminal, else as lines."""
    import time

    from rich.console import Console

    from peelsum.experiments.running import Failed, Watch
    from peelsum.processes.progress import taking_time

    console = Console(stderr=True)
    with progress_bar(console) as progress:
        task = progress.add_task(title)

        class Shown(Watch):
            def starts(self, rows: int) -> None:
                self._rows, self._done, self._began = rows, 0, time.monotonic()
                progress.update(task, total=rows)

            def measured(self, outcome: Measured) -> None:
                self._done += 1
                progress.advance(task)
                if isinstance(outcome[1], Failed) and self._rows > 1:  # else the command ends with this error
                    tell(f"{title}: failed: {outcome[1].error}")

            def line(self, taken: str) -> None:
                left_s = (time.monotonic() - self._began) / max(self._done, 1) * (self._rows - self._done)
                left = f", {left_s:.0f} s left" if self._done else ""
                tell(f"{taken}, {self._done} of {self._rows} points{left}")

        shown = Shown()
        shown.starts(0)
        with nullcontext() if console.is_terminal else taking_time(title, shown.line):
            try:
                yield shown
            except KeyboardInterrupt:
                print(f"{title}: interrupted; the same command goes on", file=sys.stderr)
                raise
