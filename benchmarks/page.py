"""Make medians with intervals, tables, comparisons and the page of an experiment from its rows.

Equal rows give equal pages.
"""

from __future__ import annotations

import math
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.experiment import FOLDER, Experiment, Plot, at, text
from benchmarks.rows import RESERVED, Run

#: The confidence that an interval should have.
CONFIDENCE = 0.95
_CONDITIONS = """\
## How it was measured

- Command: `{command}`
- Date: {first} to {last}; {seconds:,.0f} s in all rows.
- Machine: {machine}.
- Commit {commit}, experiment's file {source}.
- {versions}.
- [Rows](rows.csv): {count}, in random order; seeds {seed}.
- {repeated}
- Load average: median {load:.1f}, at most {most_load:.1f}."""
_DISTURBED = """
- Other programs used {others:.0%} of the processors (median of rows; at most {most_others:.0%}). \
{disturbed} rows were disturbed in all attempts, of which there were at most {attempts}."""


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Return an interval for the median of the distribution of which these are values, by order statistics.

    It reaches from the k-th smallest to the k-th largest value, for the largest k with which it has
    CONFIDENCE, or else 1. Both ends are off with the binomial probability of fewer than k heads among n coins
    (David and Nagaraja, Order Statistics, 7.1).
    """
    ordered = sorted(values)
    places = range(len(ordered) // 2, 1, -1)
    k = next((place for place in places if confidence(len(ordered), place) >= CONFIDENCE), 1)
    return ordered[k - 1], ordered[-k]


def confidence(count: int, k: int) -> float:
    """Return the confidence of an interval from the k-th smallest of `count` values to the k-th largest."""
    return 1 - math.ldexp(sum(math.comb(count, heads) for heads in range(k)), 1 - count)


def numbers(cells: pd.Series) -> pd.Series:
    """Return the numbers that texts are, NaN where they are none. Booleans are 0 and 1."""
    return pd.to_numeric(cells.replace({"True": "1", "False": "0"}), errors="coerce")


def summaries(experiment: Experiment, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each point, in the order of the experiment's values.

    Parameters and keys are texts. A figure is the median of its numbers, with the ends of their interval in
    NAME_low and NAME_high, or its texts; where some repetitions have no number, the median and their count as
    a text, which no figure draws.
    """
    points, figures = [], experiment.figures if len(rows) else []
    # Converted once, as pandas takes as long for the cells of one point as for whole columns.
    columns = {name: (rows[name].to_numpy(), numbers(rows[name]).to_numpy()) for name in figures}
    rows = rows.reset_index(drop=True)
    for labels, of_point in rows.groupby(experiment.labels, sort=False) if len(rows) else ():
        point: dict[str, Any] = dict(zip(experiment.labels, labels, strict=True))
        for name, (texts, values) in columns.items():
            filled = [row for row in of_point.index if texts[row] != ""]
            if not filled or np.isnan(values[filled]).any():
                point[name] = ", ".join(dict.fromkeys(texts[filled])) or None
            elif len(filled) < len(of_point):
                # Such as times to a target: a median of those that reached it would flatter.
                point[name] = f"{plain(float(np.median(values[filled])))} in {len(filled)} of {len(of_point)}"
            else:
                low, high = interval(values[filled].tolist())
                point |= {name: float(np.median(values[filled])), f"{name}_low": low, f"{name}_high": high}
        modelled = of_point["modelled"].iloc[0] == "True"
        points.append(point | {"modelled": modelled, "notes": [*filter(None, of_point["note"].unique())]})
    frame = pd.DataFrame(points, columns=None if points else [*experiment.labels, *experiment.figures])
    for name in reversed(experiment.parameters):
        values = experiment.values(name)
        if all(isinstance(value, int | float) for value in values):
            values = sorted(values, key=float)
        places = {text(value): place for place, value in enumerate(values)}
        frame = frame.iloc[frame[name].map(places).fillna(-1).argsort(kind="stable")]
    return frame.reset_index(drop=True)


def shown(point: pd.Series, name: str) -> str:
    """Return a point's figure as text: a median, with its interval in brackets if values differ."""
    value = point[name]
    if not isinstance(value, float) or math.isnan(value):
        return value if isinstance(value, str) else "-"
    middle, low, high = map(plain, (value, point[f"{name}_low"], point[f"{name}_high"]))
    return middle if low == high else f"{middle} [{low}, {high}]"


def plain(value: float) -> str:
    """Return a number with four significant digits, or all digits of a whole number, and no exponent."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.4g}'):.10f}".rstrip("0").rstrip(".")


def tidy(plot: Plot, points: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each median that a plot draws: its x, its series, and the ends of its interval."""
    frames = []
    for column in plot.y.split():
        names = [[column] * len(points)] if " " in plot.y or not plot.lines else []
        middle = pd.to_numeric(points[column], errors="coerce")
        labels = {
            "x": _joined([points[name] for name in plot.x.split()]),
            "series": _joined([*names, *(points[name] for name in plot.lines.split())]),
        }
        ends = {end: points.get(f"{column}_{end}", middle) for end in ("low", "high")}
        frames.append(pd.DataFrame({**labels, "middle": middle, **ends}, index=points.index))
    return pd.concat(frames).dropna(subset="middle").astype({"low": float, "high": float})


def _joined(columns: Sequence[Iterable[Any]]) -> list[str]:
    return [", ".join(map(text, cells)) for cells in zip(*columns, strict=True)]


class Medians(Formatter):
    """The medians that a plot draws, which its finding looks up by `series@x`."""

    def __init__(self, plot: Plot, points: pd.DataFrame) -> None:
        self.points = at(points, plot.where)
        self.by_series: dict[str, dict[str, float]] = {
            series: dict(zip(line["x"], line["middle"].astype(float), strict=True))
            for series, line in tidy(plot, self.points).groupby("series", sort=False)
        }

    def __getitem__(self, place: str) -> float:
        """Return the median of a series at an x; of the only series, at `@x`. Raises LookupError."""
        series, _, x = place.partition("@")
        return self.by_series[series or next(iter(self.by_series), "")][x]

    def of(self, series: str) -> list[float]:
        """Return all medians of a series. Raises LookupError."""
        return list(self.by_series[series].values())

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        """Return the median that a sentence names."""
        return self[field_name], field_name


def title(plot: Plot, points: pd.DataFrame) -> str:
    """Return a plot's finding with the figures of these points.

    If they lack a point that the finding names, return the quantities of both axes instead.
    """
    medians = Medians(plot, points)
    try:
        sentence = plot.finding if isinstance(plot.finding, str) else plot.finding(medians)
        if sentence:
            return medians.format(text(sentence))
    except (LookupError, ValueError, ZeroDivisionError):
        pass  # a run of other parameters lacks the points
    where = ", ".join(f"{name} {value}" for name, value in plot.where.items() if value is not None)
    return (f"{plot.y} by {plot.x}" + (f" ({where})" if where else "")).replace("_", " ")


def table(experiment: Experiment, points: pd.DataFrame) -> Iterator[str]:
    """Yield the lines of a table of all points, in Markdown. Parameters that never vary stand above it."""
    varying = _varying(experiment, points)
    fixed = [f"{name} {points[name].iloc[0]}" for name in experiment.labels if name not in varying]
    yield from [f"{', '.join(fixed)}.", ""] if fixed else []
    # Without underscores, a browser breaks long names.
    yield _line(name.replace("_", " ") for name in (*varying, *experiment.figures))
    yield "|---" * (len(varying) + len(experiment.figures)) + "|"
    for _, point in points.iterrows():
        labels = [point[name] or "-" for name in varying]
        yield _line([*labels, *(shown(point, name) for name in experiment.figures)])
    notes = dict.fromkeys(note for notes in points["notes"] for note in notes)
    yield from ["", f"Missing figures: {'; '.join(notes)}."] if notes else []


def _varying(experiment: Experiment, points: pd.DataFrame) -> list[str]:
    return [name for name in experiment.labels if points[name].nunique() > 1]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def option_of(parameter: str) -> str:
    """Return a parameter's option; that of `NAME_each`, which takes several values at once, is --NAME."""
    return f"--{parameter.removesuffix('_each').replace('_', '-')}"


def page(run: Run, rows: pd.DataFrame, name: str, failed: Sequence[str] = ()) -> str:
    """Return the page of a run's rows, in Markdown; `name` is how the experiment was named."""
    experiment, expected = run.experiment, len(run.tasks)
    points = summaries(experiment, rows)
    sentences = tomllib.loads((FOLDER.parent / "sentences.toml").read_text(encoding="utf-8"))
    about_run = sentences.get(experiment.name, {})

    def sentence(heading: str, key: str) -> str:
        return f"**{heading}.** {about_run[key]}" if about_run else ""

    figures = [f"![{title(plot, points)}]({plot.name}.svg)" for plot in experiment.plots if len(rows)]
    tasks = len(rows[[*experiment.parameters, "repetition"]].drop_duplicates())
    missing = f"**{expected - tasks} of {expected} rows are missing.** Run the command again to add them."
    missing += f" The first that failed: {failed[0]}." if failed else ""
    parts = [
        f"# {experiment.title}",
        *figures[:1],
        sentence("What was measured", "measured"),
        sentence("What it shows", "shows"),
        sentence("Where we lose", "loses"),
        f"(Written about the run of {about_run['run']}.)" if about_run else "",
        missing if tasks < expected else "",
        experiment.about.strip(),
        *figures[1:],
        "\n".join(table(experiment, points)) if len(rows) else "",
        sentence("What it does not show", "does_not_show"),
        sentence("What surprised", "surprised"),
        _columns(experiment),
        _conditions(run, rows, name) if len(rows) else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _columns(experiment: Experiment) -> str:
    lines = ["## Columns\n"]
    for name, meaning in experiment.columns.items():
        kind = "modelled" if name in experiment.modelled_columns else "measured"
        lines.append(f"- `{name}`, {kind}: {meaning}.")
    for name, values in experiment.modelled.items():
        chosen = ", ".join(f"`{value}`" for value in values)
        lines.append(f"- In rows with `{name}` {chosen}, all columns are modelled.")
    return "\n".join(lines)


def _conditions(run: Run, rows: pd.DataFrame, name: str) -> str:
    options = [] if run.size == "usual" else [f"--{run.size}"]
    options += ["--seed", str(run.seed)] if run.seed else []
    for parameter, values in run.values.items():
        options += [option_of(parameter), ",".join(map(text, values))]
    count, others = rows["repetition"].nunique(), numbers(rows["others"]).dropna()
    reached = confidence(count, 1)
    repeated = f"Medians of {count} repetitions; in brackets, "
    if count == 1:
        repeated = "Each point was measured once, so there are no intervals."
    elif reached >= CONFIDENCE:
        repeated += f"{CONFIDENCE:.0%} intervals by order statistics."
    else:
        repeated += f"least and most, which hold the true median with a confidence of {reached:.0%}: "
        repeated += f"{CONFIDENCE:.0%} takes six repetitions."
    return (_CONDITIONS + (_DISTURBED if len(others) else "")).format(
        **{name: "; ".join(sorted(rows[name].unique())) for name in RESERVED}
        | {"load": numbers(rows["load"]).median(), "most_load": numbers(rows["load"]).max()}
        | {"others": others.median(), "most_others": others.max()}
        | {"disturbed": (rows["disturbed"] == "True").sum(), "count": len(rows), "repeated": repeated},
        command=shlex.join(["python", "-m", "benchmarks", name, *options]),
        first=rows["started"].min(),
        last=rows["started"].max(),
        seconds=numbers(rows["wall_s"]).sum(),
        attempts=rows["attempt"].str.split().str[-1].astype(int).max(),
    )
