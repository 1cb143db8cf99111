"""Write the pages and figures of committed rows again: `python -m benchmarks.committed`.

The headline shows peelsum beside what users have today, of the rows of two experiments.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd

from benchmarks import figures
from benchmarks.experiment import FOLDER, SERIES, Plot, find, load, text
from benchmarks.page import page, summaries
from benchmarks.rows import Run, read, rows_of_plan

DOCS, RESULTS = FOLDER.parents[1] / "docs", FOLDER.parent / "results"
#: The experiments whose rows `--json` printed, and their files in benchmarks/results.
PRINTED = {name: [name] for name in ("accuracy", "codec_size", "recovery", "simulation_loss", "train")}
PRINTED["switch"] = ["switch", "ports"]
#: The folder of each experiment's figures; with those rows that are a CSV file, and their page.
FOLDERS = {path.parent.name: path.parent for path in sorted(DOCS.glob("results/experiments/*/rows.csv"))}
FOLDERS |= {name: DOCS / "figures" / name for name in PRINTED}
_SETTING = (
    "Left: four workers sum 4 MiB of which 5% is not zero; simulated packet by packet, with measured codec "
    "times. Right: a step of a small LSTM in four processes, measured over shaped links."
)


def rows_of(name: str) -> pd.DataFrame:
    """Return the committed rows of an experiment, as texts."""
    run = Run(find(name))
    if name not in PRINTED:
        return rows_of_plan(run, read(FOLDERS[name] / "rows.csv"))
    rows = list[dict[str, Any]]()
    for file in PRINTED[name]:
        content = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
        # A file may have lists of rows by command.
        rows += [row for group in content.values() for row in group] if isinstance(content, dict) else content
    names = [*run.experiment.labels, *run.experiment.figures, "modelled", "note"]
    return pd.DataFrame([{name: text(row.get(name)) for name in names} for row in rows])


def sums() -> pd.DataFrame:
    """Return the time of a sum by way and link rate, at 5% non-zeros; dense sums do not depend on these."""
    points = summaries(load(find("density")), rows_of("density"))
    points["x"] = points["mbit"].astype(float) / 1000
    points = points[(points["network"] == "simulated") & points["density"].isin(("0.05", "1.0"))]
    shown = points["way"].isin(("compact", "lhc_fastest", "omnireduce", "ring", "switchml"))
    points = points[shown & (points["x"] >= 1)].rename(columns={"way": "series", "time_ms": "middle"})
    return points[["x", "series", "middle"]].astype({"middle": float})


def steps() -> pd.DataFrame:
    """Return the time of a training step of the LSTM by path and link rate."""
    runs = json.loads((RESULTS / "train.json").read_text(encoding="utf-8"))
    rows = pd.DataFrame(runs["peelsum bench train --model lstm --gbps 0.1,1,10 --steps 5 --warm-ups 2"])
    rows = rows.assign(series=rows["path"].map({"switch": "peelsum", "gloo": "gloo"})).dropna(subset="series")
    return rows.rename(columns={"gbps": "x", "iteration_ms": "middle"})[["x", "series", "middle"]]


def headline(folder: Path) -> Path:
    """Draw a sum and a training step by link rate, beside rivals, into a folder; return the SVG's path."""
    medians = {"Time of a sum (ms)": sums(), "Time of a training step (ms)": steps()}
    by_rate, by_gloo = (points.set_index(["series", "x"])["middle"] for points in medians.values())
    winner = "the ring" if by_rate["ring", 100.0] < by_rate["compact", 100.0] else "peelsum"
    finding = (
        f"At 1 Gbit/s a sum takes {by_rate['compact', 1.0]:.0f} ms with peelsum, "
        f"{by_rate['lhc_fastest', 1.0]:.0f} with LHC and {by_rate['ring', 1.0]:.0f} with NCCL's ring, a "
        f"training step {by_gloo['peelsum', 1.0]:.0f} ms instead of gloo's {by_gloo['gloo', 1.0]:.0f}; "
        f"at 100 Gbit/s {winner} wins"
    )
    with mpl.rc_context(figures.style()):
        figure = figures.new_figure(finding, _SETTING, 3.1)
        both = zip(figure.subplots(1, 2, width_ratios=(5, 4)), medians.items(), strict=True)
        for axes, (ylabel, points) in both:
            plot = Plot("headline", "gbps", "ms", "way", log="xy", names=SERIES, ylabel=ylabel)
            plot = replace(plot, xlabel="Rate of the links (Gbit/s)")
            figures.lines(axes, plot, points.assign(low=points["middle"], high=points["middle"]))
        (path,) = figures.save(figure, folder / "headline", ("svg",))
    return path


def main() -> None:
    """Write all committed pages and figures again."""
    for name, folder in FOLDERS.items():
        run, rows = Run(find(name)), rows_of(name)
        list(figures.draw(run.experiment, summaries(run.experiment, rows), folder, ("svg",)))
        if name not in PRINTED:
            (folder / "page.md").write_text(page(run, rows, name), encoding="utf-8")
        print(folder)
    print(headline(DOCS / "results/figures"))


if __name__ == "__main__":
    main()
