"""Measure what peeling leaves over, by layout, support, width of a block and size of the sketch.

Peeling needs no values, so only layouts are made. LHC's keeps an element's lane; the codec's rotates it in
every sub-table. Prints the tables of docs/reference/codec.md; with `--json`, the content of `recovery.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from peelsum.allreduce.costs import block_width
from peelsum.bench.codec import SUPPORTS, LhcLayout, Support, peel_sketch, seen
from peelsum.bench.codec.supports import positions
from peelsum.codec import SketchLayout

Row = dict[str, Any]
ELEMENTS, DENSITY = 6_553_600, 0.01
#: Support, lanes and cells per candidate of the table's rows; below, lanes and sizes of the plot's curves.
TABLE: tuple[tuple[Support, int, float], ...] = (
    ("uniform", 1024, 1.3),
    ("uniform", 256, 1.3),
    ("columns", 256, 1.3),
    ("columns", 256, 1.6),
    ("rows", 1024, 1.3),
    ("uniform", 64, 1.3),
    ("uniform", 256, 1.25),
    ("uniform", 256, 1.4),
    ("uniform", 256, 1.6),
)
CURVE_LANES = 1024
CURVE_SIZES = (*np.arange(1.0, 1.5, 0.05), *np.arange(1.5, 4.05, 0.1))
#: Parameters of the aim: sketches of the width that the codec chooses leave nothing over.
AIM_ELEMENTS, AIM_CELLS, AIM_SEEDS = 2**22, 1.3, 100
AIM_DENSITIES = (0.001, 0.01, 0.05, 0.1, 0.2)


def left_over(support: Support, lanes: int, cells: float, seeds: int) -> Row:
    """Return means over seeds: the share of left-over of both layouts, and peel rounds."""
    outcomes = []
    for seed in range(seeds):
        where = positions(support, ELEMENTS, DENSITY, np.random.default_rng([seed, ELEMENTS]))
        kept = LhcLayout(max(round(where.size * cells / lanes), 1), seed, lanes).peeled(where)
        rotated = peel_sketch(SketchLayout.sized(where.size, lanes, seed, cells), where)
        outcomes.append((kept.left / where.size, kept.rounds, rotated.left / where.size, rotated.rounds))
    names = ("kept", "kept_rounds", "rotated", "rotated_rounds")
    return {
        "support": support,
        "lanes": lanes,
        "cells_per_candidate": round(cells, 2),
        "seeds": seeds,
        **dict(zip(names, np.mean(outcomes, axis=0).round(6).tolist(), strict=True)),
    }


def not_peeled(support: Support, density: float) -> Row:
    """Count the sketches with left-over, among AIM_SEEDS sketches laid out as the codec does."""
    lanes, failed = block_width(seen(support, AIM_ELEMENTS, density)), 0
    for seed in range(AIM_SEEDS):
        where = positions(support, AIM_ELEMENTS, density, np.random.default_rng([seed, AIM_ELEMENTS]))
        layout = SketchLayout.sized(where.size, lanes, seed, AIM_CELLS)
        failed += peel_sketch(layout, where).left > 0
    return {"support": support, "density": density, "lanes": lanes, "seeds": AIM_SEEDS, "failed": failed}


def measured(seeds: int) -> Iterator[Row]:
    """Yield the rows of the first table, of the curves, and of the second table."""
    for support, lanes, cells in TABLE:
        yield {"part": "table", **left_over(support, lanes, cells, seeds)}
    for support in SUPPORTS:
        for cells in CURVE_SIZES:
            yield {"part": "curve", **left_over(support, CURVE_LANES, float(cells), seeds)}
    for density in AIM_DENSITIES:
        for support in SUPPORTS:
            yield {"part": "aim", **not_peeled(support, density)}


def show(rows: Sequence[Row]) -> None:
    """Print the tables as Markdown."""
    print(
        "| support | L | cells per non-zero | lane kept (LHC) | rotated | rounds |\n|---|---|---|---|---|---|"
    )
    for row in rows:
        if row["part"] == "table":
            shares = [f"{row[name]:.2%}" if row[name] else "0" for name in ("kept", "rotated")]
            cells, rounds = f"{row['cells_per_candidate']:.2f}", f"{row['rotated_rounds']:.0f}"
            print("|", " | ".join([row["support"], str(row["lanes"]), cells, *shares, rounds]), "|")
    print(f"\n| density | {' | '.join(SUPPORTS)} |\n|---|---|---|---|")
    aim = {(row["density"], row["support"]): row for row in rows if row["part"] == "aim"}
    for density in AIM_DENSITIES:
        counts = (f"{aim[density, support]['failed']} of {AIM_SEEDS}" for support in SUPPORTS)
        print(f"| {density:.1%} | {' | '.join(counts)} |")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the first table and the curves")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = list(measured(options.seeds))
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main()
