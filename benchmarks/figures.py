"""Draw figures for papers and pages: a finding as the title, direct labels, our series emphasised.

Figures are drawn in the colours of a light page; a style sheet in the SVG replaces them on a dark one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from benchmarks.experiment import COLOURS, Experiment, Plot, Series, at, colour, text
from benchmarks.page import tidy, title

_CYCLE = ("blue", "orange", "teal", "purple", "green", "pink", "brown", "grey", "ink")
_WIDTH_IN, _MARGIN, _GAP_PT = 7.2, 0.012, 11.5
#: Helvetica is narrower than the font by which Matplotlib lays text out, so that no text is cut.
_FONTS = "Helvetica, Arial, 'DejaVu Sans', sans-serif"


def style() -> Any:
    """Return Matplotlib's settings for all figures."""
    ink, muted, grid = colour("ink"), colour("muted"), colour("grid")
    ticks = {"color": muted, "labelcolor": ink, "minor.size": 0}
    spines = dict.fromkeys(("top", "right", "left"), False)
    return {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": ink,
        "axes.edgecolor": muted,
        "axes.labelcolor": ink,
        "axes.titlesize": 9,
        "axes.titlelocation": "left",
        "axes.titlecolor": ink,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "ytick.major.size": 0,
        "legend.frameon": False,
        "lines.solid_capstyle": "round",
        "svg.hashsalt": "peelsum",
        "svg.fonttype": "none",
        **{f"axes.spines.{side}": shown for side, shown in spines.items()},
        **{f"{axis}tick.{name}": value for axis in "xy" for name, value in ticks.items()},
    }


def draw(
    experiment: Experiment, points: pd.DataFrame, folder: Path, endings: Sequence[str] = ("svg", "png")
) -> Iterator[Path]:
    """Draw every figure of an experiment's medians into a folder; yield the files' paths."""
    for plot in experiment.plots:
        chosen = at(points, plot.where)
        medians = tidy(plot, chosen)
        with mpl.rc_context(style()):
            figure = new_figure(title(plot, points), text(plot.setting), plot.height)
            if medians.empty and (chosen.empty or not plot.fill):
                figure.text(0.5, 0.4, "No row has a figure to draw here.", ha="center")
            elif plot.fill:
                plot.fill(figure, chosen)
            else:
                meaning = experiment.columns[plot.y.split()[0]]
                labels: Any = {
                    "xlabel": plot.xlabel or plot.x.replace("_", " "),
                    "ylabel": plot.ylabel or meaning,
                }
                _DRAWN[plot.kind](figure.subplots(), replace(plot, **labels), medians)
            yield from save(figure, folder / plot.name, endings)


def new_figure(title: str, setting: str, height: float) -> Figure:
    """Return an empty figure with its title, and the setting below it. height: of the axes, in inches."""
    titles, settings = wrap(title, 76), wrap(setting, 118)
    height += 0.19 * len(titles) + 0.15 * len(settings)
    figure = Figure(figsize=(_WIDTH_IN, height), facecolor=colour("paper"), layout="constrained")
    top = 1 - 0.09 / height
    for lines, size, weight, name in ((titles, 11, "bold", "ink"), (settings, 8, "normal", "muted")):
        look: Any = {"fontsize": size, "fontweight": weight, "color": colour(name), "va": "top"}
        for line in lines:
            figure.text(_MARGIN, top, line, **look)
            top -= (0.19 if size > 10 else 0.15) / height
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(_MARGIN, 0.01, 1 - 2 * _MARGIN, top - 0.05 / height), w_pad=0.02, h_pad=0.02)
    return figure


def save(figure: Figure, path: Path, endings: Sequence[str]) -> Iterator[Path]:
    """Write a figure as files with these endings, SVG for light and dark pages; yield the paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for ending in endings:
        file = path.with_name(f"{path.name}.{ending}")
        metadata: Any = {"Date": None, "Creator": None} if ending == "svg" else {"Software": None}
        figure.savefig(file, metadata=metadata, dpi=150, facecolor=colour("paper"))
        if ending == "svg":
            file.write_text(themed(file.read_text(encoding="utf-8")), encoding="utf-8")
        yield file


def themed(svg: str) -> str:
    """Return an SVG with a style sheet for dark pages, short numbers, and fonts that browsers have."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in COLOURS.values()
        for kind in ("fill", "stroke")
    )
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", svg)
    svg = re.sub(r"font-family: [^;\"]*", f"font-family: {_FONTS}", svg)
    svg = svg.replace("</style>", f"@media (prefers-color-scheme: dark){{{rules}}}</style>", 1)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _looks(plot: Plot, keys: Sequence[str]) -> dict[str, Series]:
    """Return how each series looks: as the plot says, or in the next colour of the cycle."""
    if len(keys) == 1 and keys[0] not in plot.names:
        return {keys[0]: Series(keys[0], "blue", ours=True)}
    unused = iter(_CYCLE * (1 + len(keys) // len(_CYCLE)))
    names = {key: plot.names.get(key, key) for key in keys}
    return {
        key: look if isinstance(look, Series) else Series(look, next(unused)) for key, look in names.items()
    }


def lines(axes: Any, plot: Plot, medians: pd.DataFrame) -> None:
    """Draw a line for each series, named at its right end; series in `flat` are level lines."""
    looks = _looks(plot, list(medians["series"].unique()))
    medians = medians.assign(x=pd.to_numeric(medians["x"]) * (100 if "x" in plot.percent else 1))
    medians[["middle", "low", "high"]] *= 100 if "y" in plot.percent else 1
    ends: list[tuple[float, float, Series]] = []
    moving = medians[~medians["series"].isin(plot.flat)]
    names = medians["series"].map(lambda key: looks[key].name)
    for _, line in medians.groupby(names, sort=False):
        line, look = line.sort_values("x"), looks[line["series"].iloc[0]]
        shape = {"color": colour(look.colour), "linestyle": look.dash, "linewidth": 2.2 if look.ours else 1.3}
        if line["series"].iloc[0] in plot.flat:
            axes.axhline(line["middle"].iloc[0], **shape)
            ends.append((moving["x"].max(), line["middle"].iloc[0], look))
            continue
        mark = {"marker": "o", "markersize": 4.5 if look.ours else 3.2, "markeredgewidth": 0}
        axes.plot(line["x"], line["middle"], zorder=3 if look.ours else 2, **shape, **mark)
        apart = line[line["low"] < line["high"]]
        axes.vlines(apart["x"], apart["low"], apart["high"], colour(look.colour), linewidth=1.2)
        ends.append((line["x"].iloc[-1], line["middle"].iloc[-1], look))
    if plot.reference:
        level, name = plot.reference
        axes.axhline(level, color=colour("muted"), linewidth=1, linestyle=":")
        ends.append((moving["x"].max(), level, Series(name, "muted")))
    _scales(axes, plot, moving, medians)
    axes.set_xlabel(plot.xlabel)
    axes.set_title(plot.ylabel, pad=8)
    if plot.lines or plot.reference or " " in plot.y:
        _name_at_right(axes, ends)


def _scales(axes: Any, plot: Plot, moving: pd.DataFrame, medians: pd.DataFrame) -> None:
    """Set scales, limits, and ticks with plain numbers."""
    places = sorted(moving["x"].unique())
    positive = [place for place in places if place > 0]
    if "x" in plot.log and positive:
        axes.set_xscale(
            **({"value": "log"} if positive == places else {"value": "symlog", "linthresh": positive[0]})
        )
    if "x" in plot.log or len(places) <= 6:
        axes.set_xticks(places, [f"{place:,.10g}" for place in places])
    axes.set_xticks([], minor=True)
    levels = [plot.reference[0]] if plot.reference else []
    least, most = min(medians["low"].min(), *levels, math.inf), max(medians["high"].max(), *levels, 0)
    if "y" in plot.log:
        axes.set_yscale("log")
        margin = max(0.06 * math.log10(most / least), 0.05)
        low, high = math.log10(least) - margin, math.log10(most) + margin
        steps = (1, 1.5, 2, 3, 5, 7) if high - low < 1.1 else (1, 2, 5) if high - low < 2.6 else (1,)
        ticks = [step * 10.0**place for place in range(int(low) - 2, int(high) + 2) for step in steps]
        axes.set_ylim(10**low, 10**high)
        axes.set_yticks([tick for tick in ticks if low <= math.log10(tick) <= high], minor=False)
        axes.set_yticks([], minor=True)
    elif plot.floor is not None:
        axes.set_ylim(plot.floor, most + (0.05 * (most - plot.floor) or 1))
    axes.yaxis.set_major_formatter(lambda value, _: plain_tick(value))


def plain_tick(value: float) -> str:
    """Return the text of a tick: no exponent, and M for millions."""
    return f"{value / 1e6:,.10g} M" if abs(value) >= 1e6 else f"{value:,.10g}"


def _name_at_right(axes: Any, ends: Sequence[tuple[float, float, Series]]) -> None:
    """Write each series' name right of the axes, at the height of its end, but none over another."""
    right = axes.get_xlim()[1]
    texts = []
    for _, y, look in ends:
        shape = {"color": colour(look.colour), "fontweight": "bold" if look.ours else "normal"}
        texts.append(
            axes.text(1.035, y, look.name, transform=axes.get_yaxis_transform(), va="center", **shape)
        )
    axes.figure.canvas.draw()  # the layout, which the names' widths determine
    points = axes.figure.dpi / 72
    heights = axes.transData.transform([(right, y) for _, y, _ in ends])[:, 1]
    apart = spread(heights, _GAP_PT * points)
    for label, (x, y, look), height in zip(texts, ends, apart, strict=True):
        along = axes.transAxes.inverted().transform((0, height))[1]
        label.set_transform(axes.transAxes)
        label.set_y(along)
        start = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
        path = [start[0], 0.99, 1.03], [start[1], start[1], along]
        lead = {"transform": axes.transAxes, "clip_on": False, "linewidth": 0.7, "color": colour(look.colour)}
        axes.plot(*path, **lead, zorder=1, linestyle=(0, (1, 2)) if start[0] < 0.9 else "-")


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Return places at least `gap` apart, in the same order, with the least sum of squared moves."""
    order, ranks = np.argsort(places, kind="stable"), gap * np.arange(len(places))
    apart = np.empty(len(places))
    apart[order] = isotonic_regression(np.asarray(places, float)[order] - ranks).x + ranks
    return apart.tolist()


def _bars(axes: Any, plot: Plot, medians: pd.DataFrame) -> None:
    """Draw horizontal bars, named at their left and with their figures at their right, in groups by x."""
    order = {key: place for place, key in enumerate(plot.names)}
    for label in ("series", "x"):  # in the order of the names
        medians = medians.sort_values(label, key=lambda keys: keys.map(order), kind="stable")
    looks = _looks(plot, list(medians["series"].unique()))
    grouped, scale = medians["series"].nunique() > 1, 100 if "y" in plot.percent else 1
    place, ticks, names = 0.0, list[float](), list[str]()
    most = scale * medians["high"].max()
    for group, bars in medians.groupby("x", sort=False):
        heading = plot.names.get(group, group)
        if grouped:
            axes.text(
                0, place - 0.1, heading, fontweight="bold", va="center", transform=axes.get_yaxis_transform()
            )
            place += 1
        for _, bar in bars.iterrows():
            look, value = looks[bar["series"]], scale * bar["middle"]
            axes.barh(place, value, 0.78, color=colour(look.colour))
            if bar["low"] < bar["high"]:
                axes.hlines(place, scale * bar["low"], scale * bar["high"], colour("ink"), linewidth=1)
            axes.text(max(value, scale * bar["high"]) + 0.01 * most, place, f"{value:,.3g}", va="center")
            ticks.append(place)
            names.append(look.name if grouped else heading)
            place += 1
        place += 0.35 if grouped else 0
    axes.set_yticks(ticks, names)
    axes.set_ylim(place - 0.4, -0.7)
    axes.set_xlim(0, 1.08 * most)
    axes.set_xlabel(plot.ylabel)
    axes.xaxis.set_major_formatter(lambda value, _: plain_tick(value))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.spines["bottom"].set_visible(False)


_DRAWN = {"lines": lines, "bars": _bars}
