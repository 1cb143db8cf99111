"""Draws an experiment's figures from its rows, as SVG and PNG. Needs Matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from peelsum.experiments.experiment import Experiment, ExperimentError, Plot
from peelsum.experiments.store import Row, number
from peelsum.experiments.summaries import Group, Summary, grouped
from peelsum.extras import missing

_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "peelsum",
    "svg.fonttype": "none",
    "font.size": 9,
}


def require_matplotlib() -> None:
    """Raise ExperimentError, which says what to install, if Matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ExperimentError(missing("matplotlib", "plots"))


def draw(experiment: Experiment, rows: Sequence[Row], folder: Path) -> Iterator[Path]:
    """Draw every figure into a folder; yield the files' paths. Equal rows make equal files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    groups = grouped(experiment, rows)
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        for plot in experiment.plots:
            figure = plt.figure(figsize=(6.4, 3.6), layout="constrained")
            figure.suptitle(plot.title, fontweight="bold")
            there = [group for group in groups if group.at(plot.where)]
            if plot.fill is not None:
                plot.fill(figure, there)
            else:
                _fill(figure.subplots(), experiment, plot, there)
            for ending, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
                path = folder / f"{plot.name}.{ending}"
                figure.savefig(path, metadata=metadata, dpi=150)
                yield path
            plt.close(figure)


def _fill(axes: Any, experiment: Experiment, plot: Plot, groups: Sequence[Group]) -> None:
    ticks = list(dict.fromkeys(group.point[plot.x] for group in groups))
    named = any(number(tick) is None for tick in ticks)
    lines: dict[str, list[Group]] = {}
    for group in groups:
        name = ", ".join(group.point[one] for one in plot.lines.split())
        lines.setdefault(name, []).append(group)
    for name, mine in lines.items():
        _line(axes, plot, name, mine, ticks if named else None)
    axes.set(xlabel=plot.x, ylabel="\n".join(wrap(experiment.columns[plot.y].meaning, 36)))
    if named:
        axes.set_xticks(range(len(ticks)), ticks, rotation=20, ha="right")
    elif "x" in plot.log:
        axes.set_xscale(**_logarithmic(ticks))
        axes.set_xticks([number(tick) for tick in ticks], ticks)
        axes.set_xticks([], minor=True)
    if "y" in plot.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    if plot.lines and axes.get_legend_handles_labels()[0]:
        beside = {
            "loc": "center left",
            "bbox_to_anchor": (1, 0.5),
            "fontsize": min(9, 150 / len(lines)),
        }
        axes.legend(title=plot.lines, frameon=False, **beside)


def _logarithmic(ticks: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a logarithmic scale, which is linear near 0 if some values are 0."""
    positive = [value for tick in ticks if (value := number(tick) or 0) > 0]
    if len(positive) == len(ticks):
        return {"value": "log"}
    return {"value": "symlog", "linthresh": min(positive, default=1.0)}


def _line(axes: Any, plot: Plot, name: str, groups: Sequence[Group], ticks: list[str] | None) -> None:
    points = []
    for group in groups:
        figure = group.figures[plot.y]
        x = ticks.index(group.point[plot.x]) if ticks else number(group.point[plot.x])
        if isinstance(figure, Summary) and x is not None:
            points.append((x, figure.median, figure.median - figure.low, figure.high - figure.median))
    if points:
        along, medians, below, above = zip(*sorted(points), strict=True)
        style = "o" if ticks else "--o" if groups[0].modelled else "-o"
        axes.errorbar(
            along, medians, (below, above), fmt=style, markersize=3, capsize=2, linewidth=1, label=name
        )
