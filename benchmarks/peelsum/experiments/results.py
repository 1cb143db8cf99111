"""The files of a run: rows, page and figures, in one folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from peelsum.experiments.drawing import draw
from peelsum.experiments.experiment import Experiment, ExperimentError, Value
from peelsum.experiments.loading import load
from peelsum.experiments.page import page
from peelsum.experiments.running import Failed, Report, Run
from peelsum.experiments.store import Row, text

ROWS, PAGE = "rows.csv", "page.md"


def folder(out: Path, what: Run) -> Path:
    """Return the folder of an experiment's files."""
    return out / load(what.source).name


def rendered(what: Run, rows: Sequence[Row], name: str, failed: Sequence[Failed] = ()) -> str:
    """Return the page of a run's rows; `name` is how the experiment was named on the command line."""
    expected = len(what.tasks)
    return page(load(what.source), rows, command=command(what, name), expected=expected, failed=failed)


def command(what: Run, name: str) -> str:
    """Return the command that repeats a run."""
    size = [] if what.size == "usual" else [f"--{what.size}"]
    seed = [] if what.seed == 0 else ["--seed", str(what.seed)]
    given = [
        cell for one, values in what.given.items() for cell in (option_of(one), ",".join(map(text, values)))
    ]
    return shlex.join(["peelsum", "bench", "run", name, *size, *seed, *given])


def option_of(parameter: str) -> str:
    """Return a parameter's option; that of `NAME_each`, which takes several values at once, is --NAME."""
    return f"--{parameter.removesuffix('_each').replace('_', '-')}"


def read_json(experiment: Experiment, paths: Sequence[Path]) -> list[Row]:
    """Return the rows of files that `--json` printed; a file may also have rows by command."""
    names, found = (*experiment.labels, *experiment.figures), list[dict[str, Value]]()
    for path in paths:
        rows = json.loads(path.read_text(encoding="utf-8"))
        found += [one for each in rows.values() for one in each] if isinstance(rows, dict) else rows
    return [{"modelled": "", "note": "", **{name: text(row.get(name)) for name in names}} for row in found]


def write(what: Run, report: Report, name: str, out: Path) -> Path:
    """Write page and figures beside the rows; return the page's path. Raises ExperimentError."""
    where = folder(out, what)
    try:
        if report.rows and load(what.source).plots:
            list(draw(load(what.source), report.rows, where))
        path = where / PAGE
        path.write_text(rendered(what, report.rows, name, report.failed), encoding="utf-8")
    except OSError as error:
        raise ExperimentError(f"{where}: {error.strerror}; pass another --out") from None
    return path
