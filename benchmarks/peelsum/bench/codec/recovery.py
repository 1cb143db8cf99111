"""Measure what peeling leaves over, by layout, support, width of a block and size of the sketch.

Peeling needs no values, so only layouts are made. LHC's keeps an element's lane; the codec's rotates it in
every sub-table.
"""

from __future__ import annotations

import numpy as np

from peelsum.allreduce.costs import block_width
from peelsum.bench.codec import LhcLayout, Support, peel_sketch, seen
from peelsum.bench.codec.supports import positions
from peelsum.codec import SketchLayout

ELEMENTS, DENSITY = 6_553_600, 0.01
#: Support, lanes and cells per candidate of the table's rows; below, sizes of the plot's curves.
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
CURVE_SIZES = tuple(
    round(float(size), 2) for size in (*np.arange(1.0, 1.5, 0.05), *np.arange(1.5, 4.05, 0.1))
)
#: Parameters of the aim: sketches of the width that the codec chooses leave nothing over.
AIM_ELEMENTS, AIM_CELLS = 2**22, 1.3
AIM_DENSITIES = (0.001, 0.01, 0.05, 0.1, 0.2)


def left_over(support: Support, lanes: int, cells: float, seeds: int) -> dict[str, float | None]:
    """Return means over seeds: the share of left-over of both layouts, and peel rounds."""
    outcomes = []
    for seed in range(seeds):
        where = positions(support, ELEMENTS, DENSITY, np.random.default_rng([seed, ELEMENTS]))
        kept = LhcLayout(max(round(where.size * cells / lanes), 1), seed, lanes).peeled(where)
        rotated = peel_sketch(SketchLayout.sized(where.size, lanes, seed, cells), where)
        outcomes.append((kept.left / where.size, kept.rounds, rotated.left / where.size, rotated.rounds))
    means = np.mean(outcomes, axis=0).round(6).tolist()
    names = ("kept", "kept_rounds", "rotated", "rotated_rounds")
    return {"failed": None, **dict(zip(names, means, strict=True))}


def not_peeled(support: Support, density: float, seeds: int) -> dict[str, float | None]:
    """Count the sketches with left-over, among some that are laid out as the codec does."""
    lanes, failed = block_width(seen(support, AIM_ELEMENTS, density)), 0
    for seed in range(seeds):
        where = positions(support, AIM_ELEMENTS, density, np.random.default_rng([seed, AIM_ELEMENTS]))
        layout = SketchLayout.sized(where.size, lanes, seed, AIM_CELLS)
        failed += peel_sketch(layout, where).left > 0
    figures = dict.fromkeys(("kept", "kept_rounds", "rotated", "rotated_rounds"))
    return {"failed": failed, **figures}
