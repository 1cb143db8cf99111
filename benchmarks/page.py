"""What is made of rows: medians with intervals, tables, figures, the page of an experiment, comparisons.

Equal rows make equal pages and figures.
"""

from __future__ import annotations

import math
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import pandas as pd

from benchmarks.experiment import FOLDER, Experiment, ExperimentError, Plot, Point, Published, load
from benchmarks.rows import PART, RESERVED, Run, read, text

#: The confidence that an interval should have.
CONFIDENCE = 0.95
_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "peelsum",
    "svg.fonttype": "none",
    "font.size": 9,
}


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
    NAME_low and NAME_high, or its texts.
    """
    points = []
    for labels, of_point in rows.groupby(experiment.labels, sort=False) if len(rows) else ():
        point: dict[str, Any] = dict(zip(experiment.labels, labels, strict=True))
        for name in experiment.figures:
            cells = of_point[name][of_point[name] != ""]
            values = numbers(cells)
            if cells.empty or values.isna().any():
                point[name] = ", ".join(cells.unique()) or None
            else:
                low, high = interval(values)
                point |= {name: float(values.median()), f"{name}_low": low, f"{name}_high": high}
        modelled = of_point["modelled"].iloc[0] == "True"
        points.append(point | {"modelled": modelled, "notes": [*filter(None, of_point["note"].unique())]})
    frame = pd.DataFrame(points, columns=None if points else [*experiment.labels, *experiment.figures])
    for name in reversed(experiment.parameters):
        values = experiment.values(name)
        numeric = [value for value in values if isinstance(value, int | float)]
        order = sorted(numeric) if len(numeric) == len(values) else values
        places = {text(value): place for place, value in enumerate(order)}
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


def at(points: pd.DataFrame, where: Point) -> pd.DataFrame:
    """Return the points with these values of parameters."""
    for name, value in where.items():
        points = points[points[name] == text(value)]
    return points


def ours(points: pd.DataFrame, published: Published) -> pd.Series | None:
    """Return the point whose figure stands beside a published one; None if no row has it."""
    among = at(points, published.where)
    values = pd.to_numeric(among[published.column], errors="coerce").dropna()
    if values.empty:
        return None
    return among.loc[values.idxmax() if published.take == "most" else values.idxmin()]


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
    experiment, expected = load(run.source), len(run.tasks)
    points = summaries(experiment, rows)
    said = tomllib.loads((FOLDER.parent / "sentences.toml").read_text(encoding="utf-8")).get(
        experiment.name, {}
    )
    figures = [f"![{plot.title}]({plot.name}.svg)" for plot in experiment.plots if len(rows)]
    tasks = int(rows[PART].str.startswith("1 of ").sum()) if PART in rows else len(rows)
    missing = f"**{expected - tasks} of {expected} rows are missing.** Run the command again to add them."
    missing += f" The first that failed: {failed[0]}." if failed else ""
    options = [] if run.size == "usual" else [f"--{run.size}"]
    options += ["--seed", str(run.seed)] if run.seed else []
    for parameter, values in run.given.items():
        options += [option_of(parameter), ",".join(map(text, values))]
    command = shlex.join(["python", "-m", "benchmarks", name, *options])
    parts = [
        f"# {experiment.title}",
        *figures[:1],
        f"**What was measured.** {said['measured']}" if said else "",
        f"**What it shows.** {said['shows']}" if said else "",
        f"**Where we lose.** {said['loses']}" if said else "",
        f"(Written about the run of {said['run']}.)" if said else "",
        missing if tasks < expected else "",
        experiment.about.strip(),
        "\n".join(_published(experiment, points)),
        *figures[1:],
        "\n".join(table(experiment, points)) if len(rows) else "",
        f"**What it does not show.** {said['does_not_show']}" if said else "",
        f"**What surprised.** {said['surprised']}" if said else "",
        "\n".join(_columns(experiment)),
        "\n".join(_conditions(rows, command)) if len(rows) else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _published(experiment: Experiment, points: pd.DataFrame) -> Iterator[str]:
    for number, published in enumerate(experiment.published if len(points) else ()):
        yield from () if number else ("| | published | ours | ours is |", "|---|---|---|---|")
        point, beside, where = ours(points, published), "-", "no row"
        if point is not None:
            modelled = experiment.columns[published.column].modelled or point["modelled"]
            labels = ", ".join(f"{name} {point[name]}" for name in _varying(experiment, points))
            beside, where = (
                shown(point, published.column),
                f"{'modelled' if modelled else 'measured'} at {labels}",
            )
        yield _line([f"{published.what} ({published.source})", plain(published.value), beside, where])


def _columns(experiment: Experiment) -> Iterator[str]:
    yield "## Columns\n"
    for name, column in experiment.columns.items():
        yield f"- `{name}`, {'modelled' if column.modelled else 'measured'}: {column.meaning}."
    for name, values in experiment.modelled.items():
        chosen = ", ".join(f"`{value}`" for value in values)
        yield f"- In rows with `{name}` {chosen}, all columns are modelled."


def _conditions(rows: pd.DataFrame, command: str) -> Iterator[str]:
    each = {name: "; ".join(sorted(rows[name].unique())) for name in RESERVED}
    loads, others, count = (
        numbers(rows["load"]),
        numbers(rows["others"]).dropna(),
        rows["repetition"].nunique(),
    )
    reached = confidence(count, 1)
    medians = f"Medians of {count} repetitions; in brackets, "
    if count == 1:
        medians = "Each point was measured once, so there are no intervals."
    elif reached >= CONFIDENCE:
        medians += f"{CONFIDENCE:.0%} intervals by order statistics."
    else:
        medians += f"least and most, which hold the true median with a confidence of {reached:.0%}: "
        medians += f"{CONFIDENCE:.0%} takes six repetitions."
    seconds = numbers(rows["wall_s"]).sum()
    yield f"## How it was measured\n\n- Command: `{command}`"
    yield f"- Date: {rows['started'].min()} to {rows['started'].max()}; {seconds:,.0f} s in all rows."
    yield f"- Machine: {each['machine']}."
    yield f"- Commit {each['commit']}, experiment's file {each['source']}."
    yield f"- {each['versions']}."
    yield f"- [Rows](rows.csv): {len(rows)}, in random order; seeds {each['seed']}."
    yield f"- {medians}"
    yield f"- Load average: median {loads.median():.1f}, at most {loads.max():.1f}."
    if len(others):
        disturbed, attempts = (
            (rows["disturbed"] == "True").sum(),
            rows["attempt"].str.split().str[-1].astype(int),
        )
        yield (
            f"- Other programs used {others.median():.0%} of the processors (median of rows; at most "
            f"{others.max():.0%}). {disturbed} rows were disturbed in all attempts, of which there were "
            f"at most {attempts.max()}."
        )


def draw(experiment: Experiment, rows: pd.DataFrame, folder: Path) -> Iterator[Path]:
    """Draw every figure into a folder, as SVG and PNG; yield the files' paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    points = summaries(experiment, rows)
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        for plot in experiment.plots:
            figure = plt.figure(figsize=(6.4, 3.6), layout="constrained")
            figure.suptitle(plot.title, fontweight="bold")
            if plot.fill:
                plot.fill(figure, at(points, plot.where))
            else:
                _fill(figure.subplots(), plot, experiment.columns[plot.y].meaning, at(points, plot.where))
            for ending, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
                path = folder / f"{plot.name}.{ending}"
                figure.savefig(path, metadata=metadata, dpi=150)
                yield path
            plt.close(figure)


def _fill(axes: Any, plot: Plot, meaning: str, points: pd.DataFrame) -> None:
    """Draw lines of medians with their intervals; a parameter that is a text has places of equal distance."""
    ticks, along = list(points[plot.x].unique()), pd.to_numeric(points[plot.x], errors="coerce")
    named = bool(along.isna().any())
    low = points.get(f"{plot.y}_low", pd.Series(math.nan, points.index))
    points = points.assign(along=points[plot.x].map(ticks.index) if named else along, low=low)
    lines = points.groupby(plot.lines.split(), sort=False) if plot.lines else [((), points)]
    for name, line in lines:
        line = line.dropna(subset="low").sort_values("along")
        if len(line):
            y = line[plot.y].astype(float)
            ends = y - line["low"], line[f"{plot.y}_high"] - y
            style = "o" if named else "--o" if line["modelled"].iloc[0] else "-o"
            look = {"markersize": 3, "capsize": 2, "linewidth": 1}
            axes.errorbar(line["along"], y, ends, fmt=style, label=", ".join(name), **look)
    axes.set(xlabel=plot.x, ylabel="\n".join(wrap(meaning, 36)))
    if named:
        axes.set_xticks(range(len(ticks)), ticks, rotation=20, ha="right")
    elif "x" in plot.log:
        positive = along[along > 0]
        linear = {"value": "symlog", "linthresh": positive.min()}  # near 0
        axes.set_xscale(**({"value": "log"} if len(positive) == len(along) else linear))
        axes.set_xticks([float(tick) for tick in ticks], ticks)
        axes.set_xticks([], minor=True)
    if "y" in plot.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    if plot.lines and axes.get_legend_handles_labels()[0]:
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        axes.legend(title=plot.lines, frameon=False, fontsize=min(9, 150 / len(lines)), **place)


def compare(a: Path, b: Path) -> pd.DataFrame:
    """Return every number that two runs have: both medians, their ratio, and whether the intervals are apart.

    a, b: files of rows, or folders; of each, the rows of the last commit count. Raises ExperimentError.
    """
    both = [read(path / "rows.csv" if path.is_dir() else path) for path in (a, b)]
    columns = list(both[0])
    if columns != list(both[1]):
        raise ExperimentError(f"{b}: has other columns than {a}; compare runs of one experiment")
    labels = columns[: columns.index(RESERVED[0])]
    figures = [name for name in columns[columns.index(RESERVED[-1]) + 1 :] if name != PART]
    sides = []
    for rows in both:
        rows = rows[rows["commit"] == rows["commit"].iloc[-1]].melt(labels, figures, "column")
        groups = rows.assign(value=numbers(rows["value"])).dropna(subset="value").groupby([*labels, "column"])
        sides.append(
            pd.DataFrame([(*key, of["value"].median(), *interval(of["value"])) for key, of in groups])
        )
        sides[-1].columns = [*labels, "column", "median", "low", "high"]
    pair = sides[0].merge(sides[1], on=[*labels, "column"], suffixes=("_a", "_b"))
    pair["ratio"] = pair["median_b"] / pair["median_a"].where(pair["median_a"] != 0)
    return pair.assign(apart=(pair["high_a"] < pair["low_b"]) | (pair["high_b"] < pair["low_a"]))
