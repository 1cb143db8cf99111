"""Draw docs/results/figures/headline.svg, of committed rows: peelsum beside what users have today."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pandas as pd

from benchmarks import figures
from benchmarks.experiment import FOLDER, Plot, find, load
from benchmarks.page import summaries
from benchmarks.rows import Run, of_plan, read

ROOT = FOLDER.parents[1]
_RATES = "Rate of the links (Gbit/s)"
_SETTING = (
    "Left: four workers sum 4 MiB of which 5% is not zero; simulated packet by packet, with measured codec "
    "times; rivals are models. Right: a step of a small LSTM in four processes, measured over shaped links."
)


def sums() -> pd.DataFrame:
    """Return the time of a sum by way and link rate, at 5% non-zeros; dense sums do not depend on these."""
    rows = read(ROOT / "docs/results/experiments/density/rows.csv")
    points = summaries(load(find("density")), of_plan(Run(find("density")), rows))
    points = points[(points["network"] == "simulated") & points["density"].isin(("0.05", "1.0"))]
    points = points[points["mbit"].astype(float) >= 1000]
    points = points[points["way"].isin(("compact", "lhc_fastest", "omnireduce", "ring", "switchml"))]
    ms = points["time_ms"].astype(float)
    ends = {"low": ms, "high": ms}
    return pd.DataFrame(
        {"x": points["mbit"].astype(float) / 1000, "series": points["way"], "middle": ms, **ends}
    )


def steps() -> pd.DataFrame:
    """Return the time of a training step of the LSTM by path and link rate."""
    runs = json.loads((FOLDER.parent / "results/train.json").read_text(encoding="utf-8"))
    rows = runs["peelsum bench train --model lstm --gbps 0.1,1,10 --steps 5 --warm-ups 2"]
    names = {"switch": "peelsum", "gloo": "gloo"}
    chosen = [row for row in rows if row["path"] in names]
    cells = [(row["gbps"], names[row["path"]], *[row["iteration_ms"]] * 3) for row in chosen]
    return pd.DataFrame(cells, columns=["x", "series", "middle", "low", "high"])


def title(by_rate: pd.DataFrame, by_gloo: pd.DataFrame) -> str:
    """Return the finding: times at 1 Gbit/s, and who is faster at 100 Gbit/s."""
    of = by_rate.set_index(["series", "x"])["middle"]
    step = by_gloo.set_index(["series", "x"])["middle"]
    winner = "the ring" if of["ring", 100.0] < of["compact", 100.0] else "peelsum"
    return (
        f"At 1 Gbit/s a sum takes {of['compact', 1.0]:.0f} ms with peelsum, "
        f"{of['lhc_fastest', 1.0]:.0f} with LHC and {of['ring', 1.0]:.0f} with NCCL's ring, a training step "
        f"{step['peelsum', 1.0]:.0f} ms instead of gloo's {step['gloo', 1.0]:.0f}; at 100 Gbit/s {winner} wins"
    )


def draw(folder: Path) -> Iterator[Path]:
    """Draw the figure into a folder, as SVG and PNG; yield the paths."""
    by_rate, by_gloo = sums(), steps()
    shared = {"x": "gbps", "y": "ms", "lines": "way", "log": "xy", "xlabel": _RATES}
    plots = [
        Plot(name, ylabel=ylabel, **shared)  # type: ignore[arg-type]
        for name, ylabel in (("sums", "Time of a sum (ms)"), ("steps", "Time of a training step (ms)"))
    ]
    with mpl.rc_context(figures.style()):
        figure = figures.new_figure(title(by_rate, by_gloo), _SETTING, 3.1)
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        figures.lines(left, plots[0], by_rate)
        figures.lines(right, plots[1], by_gloo)
        yield from figures.save(figure, folder / "headline")


if __name__ == "__main__":
    print(*draw(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs/results/figures"), sep="\n")
