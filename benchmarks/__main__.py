"""`python -m benchmarks NAME`: measure an experiment's rows, print them, and write a page and figures.

A parameter of an experiment is an option, too: --lanes 32,256; `list NAME` shows them. Rows are kept as soon
as they are measured: after an interrupt, the same command goes on. Status 1 says that a sum was wrong, or
that rows failed. Other commands: list [NAME], draw NAME....
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import figures
from benchmarks import page as pages
from benchmarks.experiment import Experiment, ExperimentError, Value, find, known, load, plan, text
from benchmarks.rows import Run, measure_missing, read, rows_of_plan
from peelsum.extras import missing_extra_message
from peelsum.processes.progress import progress_reporter, reporting_progress
from peelsum.processes.user_errors import InterruptContext, check_stdout, exit_on_errors


def main(arguments: Sequence[str]) -> None:
    """Run a command. Errors of experiments are one line with status 2; Ctrl-C ends it as shells expect."""
    verbs = {"run": run, "list": list_, "draw": draw}
    verb = arguments[0] if arguments and arguments[0] in verbs else ""
    with check_stdout(), exit_on_errors(ExperimentError), InterruptContext():
        options, others = _parser().parse_known_args(arguments[1:] if verb else arguments)
        verbs[verb or "run"](options, _parameter_texts(others))


def _parser() -> argparse.ArgumentParser:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks", None, __doc__, formatter_class=how, allow_abbrev=False
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a name of `list`, or the path of a file")
    size = parser.add_mutually_exclusive_group()
    for name, points in (("quick", "few points"), ("full", "many points")):
        size.add_argument(
            f"--{name}", dest="size", action="store_const", const=name, default="usual", help=points
        )
    for option, default, meaning in (
        ("--out", Path("build/bench"), "a folder of experiments' folders"),
        ("--seed", 0, "of the order, and of the first repetition"),
        ("--calm", 0.25, "share of the processors that others may use"),
        ("--attempts", 3, "measurements of a row while others use more"),
    ):
        parser.add_argument(option, type=type(default), default=default, help=meaning)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--again", action="store_true", help="measure rows that there are, too")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="Dask's, whose workers measure the rows")
    return parser


def run(options: argparse.Namespace, texts: dict[str, str]) -> None:
    """Measure the rows that each experiment does not have yet."""
    runs = [_run(name, options, texts) for name in _names(options)]
    failed, rows = list[str](), list[dict[str, Value]]()
    with ExitStack() as stack:
        executor = _cluster(options.scheduler, stack) if options.scheduler else None
        for name, measurement in zip(options.names, runs, strict=True):
            rows += _measured(name, measurement, options, failed, executor)
    if failed and not rows:
        raise ExperimentError(failed[0])
    if options.json:
        print(json.dumps([*rows, *({"failure": error} for error in failed)], indent=2))
    if failed or any(row.get("wrong") or row.get("exact") is False for row in rows):
        raise SystemExit(1)


def _measured(
    name: str, measurement: Run, options: argparse.Namespace, failed: list[str], executor: Executor | None
) -> list[dict[str, Value]]:
    """Measure, write page and figures, print the table unless --json; return rows, and add to `failed`."""
    experiment, tell, before = measurement.experiment, progress_reporter(), len(failed)
    folder, done = options.out / experiment.name, 0
    outcomes = measure_missing(measurement, folder / "rows.csv", executor)
    total = next(outcomes)
    try:
        with reporting_progress(experiment.name, lambda text: tell(f"{text}, {done} of {total} points")):
            for outcome in outcomes:
                done += 1
                if isinstance(outcome, str):
                    failed.append(outcome)
                    tell(f"{experiment.name}: failed: {outcome}")
    except KeyboardInterrupt:
        print(f"{experiment.name}: interrupted; the same command goes on", file=sys.stderr)
        raise
    rows = rows_of_plan(measurement, read(folder / "rows.csv"), current_only=True)
    path = _write(name, measurement, rows, folder, failed[before:])
    if not options.json and len(rows):
        print(*pages.table(experiment, pages.summaries(experiment, rows)), sep="\n", flush=True)
    kept = len(measurement.tasks) - total
    points = f"{kept} point{'s' * (kept > 1)}"
    earlier = f", {points} of earlier runs (--again measures them again)" if kept else ""
    print(f"{experiment.name}: {len(rows)} rows{earlier}: {path}", file=sys.stderr)
    names = [*experiment.labels, *experiment.figures]
    return [{name: _value(cell) for name, cell in row.items()} for row in rows[names].to_dict("records")]


def _write(name: str, measurement: Run, rows: pd.DataFrame, folder: Path, failed: Sequence[str] = ()) -> Path:
    """Write page and figures beside the rows; return the page's path."""
    path, text = folder / "page.md", pages.page(measurement, rows, name, failed)
    try:
        if len(rows):
            list(figures.draw(measurement.experiment, pages.summaries(measurement.experiment, rows), folder))
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ExperimentError(f"{folder}: {error.strerror}; pass another --out") from None
    return path


def _cluster(scheduler: str, stack: ExitStack) -> Executor:
    """Return the executor of a cluster: each of its workers needs this checkout."""
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise ExperimentError(missing_extra_message("distributed", "cluster")) from None
    try:
        client: Any = stack.enter_context(Client(scheduler, timeout="10s"))  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ExperimentError(f"--scheduler: {error}; start one with `dask scheduler`") from None
    executor: Executor = client.get_executor()
    return executor


def list_(options: argparse.Namespace, texts: dict[str, str]) -> None:
    """List all experiments with the points of each size; or some, with their parameters and columns."""
    for experiment in (load(find(name)) for name in options.names or known()):
        counts = [f"{size} {len(plan(experiment, size, 0))}" for size in ("quick", "usual", "full")]
        print(f"{experiment.name:20} {experiment.title} ({', '.join(counts)})")
        for name in experiment.parameters if options.names else ():
            usual = [part.get(name, ()) for part in experiment.sizes["usual"].grid]
            cells = dict.fromkeys(text(value) or "none" for values in usual for value in values)
            choices, limits = experiment.choices.get(name, ()), experiment.ranges.get(name, ())
            allowed = f" (of {', '.join(map(text, choices))})" if choices else ""
            allowed += f" ({' to '.join(map(text, limits))})" if limits else ""
            print(f"  {pages.option_of(name)} {','.join(cells)}{allowed}")
        for name, meaning in experiment.columns.items() if options.names else ():
            print(f"  {name}: {meaning}")


def draw(options: argparse.Namespace, texts: dict[str, str]) -> None:
    """Write pages and figures again, of the rows that were measured last, by whatever version of the file."""
    for name in _names(options):
        measurement = _run(name, options, texts)
        folder = options.out / measurement.experiment.name
        rows = rows_of_plan(measurement, every_row := read(folder / "rows.csv"))
        if rows.empty and len(every_row):
            sizes = ", ".join(sorted(set(every_row["size"])))
            raise ExperimentError(
                f"{folder / 'rows.csv'}: has rows of size {sizes}, none of size {options.size} with these "
                "values; give the options of the run to be drawn"
            )
        print(_write(name, measurement, rows, folder))


def _names(options: argparse.Namespace) -> list[str]:
    names: list[str] = options.names
    if not names:
        raise ExperimentError(f"NAME: is missing; use the path of a file, or some of {', '.join(known())}")
    return names


def _run(name: str, options: argparse.Namespace, texts: dict[str, str]) -> Run:
    experiment = load(file := find(name))
    values = dict(_parsed(experiment, option, cells) for option, cells in texts.items())
    return Run(file, options.size, options.seed, values, options.calm, options.attempts, options.again)


def _parameter_texts(words: Sequence[str]) -> dict[str, str]:
    """Return the texts of parameters: `--name text`, `--name=text`, or `--name` for True."""
    texts, option = dict[str, str](), ""
    for word in words:
        if word.startswith("--"):
            option, _, value = word[2:].replace("-", "_").partition("=")
            texts[option] = value or "True"
        else:
            texts[option] = word
    return texts


def _parsed(experiment: Experiment, option: str, cells: str) -> tuple[str, Sequence[Value]]:
    """Return the parameter that an option is, and its values, of the kind of the usual ones."""
    fits = [name for name in experiment.parameters if option in (name, name.removesuffix("_each"))]
    if not fits:
        options = ", ".join(map(pages.option_of, experiment.parameters))
        raise ExperimentError(f"--{option}: is no parameter of {experiment.name}; use one of {options}")
    usual = experiment.values(fits[0])
    each = [value for values in usual if isinstance(values, tuple) for value in values]
    values = tuple(_checked(experiment, fits[0], cell, each or usual) for cell in cells.split(","))
    return fits[0], (values,) if each else values


def _checked(experiment: Experiment, name: str, cell: str, usual: Sequence[Value]) -> Value:
    value = None if cell.lower() == "none" and None in usual else _value(cell)
    value = float(value) if type(value) is int and any(isinstance(other, float) for other in usual) else value
    limits, choices = experiment.ranges.get(name), experiment.choices.get(name, (value,))
    number = isinstance(value, int | float)
    if value not in choices or (
        limits and value is not None and not (number and limits[0] <= value <= limits[1])
    ):
        usable = f"{limits[0]} to {limits[1]}" if limits else ", ".join(map(text, choices))
        raise ExperimentError(f"{pages.option_of(name)}: {cell!r} cannot be used; use {usable}")
    kinds = {type(other) for other in usual if other is not None}
    if value is not None and kinds and type(value) not in kinds:
        kind = " or ".join(sorted(kind.__name__ for kind in kinds))
        raise ExperimentError(f"{pages.option_of(name)}: {cell!r} is not of type {kind}; give such a value")
    return value


def _value(cell: str) -> Any:
    """Return the value that a text is, as in Python; numbers separated by commas are a tuple."""
    for kind in (int, float):
        try:
            values = tuple(kind(part) for part in cell.split(","))
            return values if len(values) > 1 else values[0]
        except ValueError:
            continue
    return {"": None, "True": True, "False": False}.get(cell, cell)


if __name__ == "__main__":
    main(sys.argv[1:])
