"""Measure what peeling leaves over, by layout, support, width of a block and size of the sketch.

Peeling needs no values, so only layouts are made. LHC's keeps an element's lane; the codec's rotates it in
every sub-table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from peelsum.allreduce.costs import block_width
from peelsum.bench.codec import SUPPORTS, LhcLayout, Support, peel_sketch, seen
from peelsum.bench.codec.supports import positions
from peelsum.codec import SketchLayout

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


@dataclass(frozen=True)
class LeftOver:
    """The left-over of sketches of one size, as means over seeds."""

    part: Literal["table", "curve"]
    """Whether the row belongs to the table or to the plot."""
    support: Support
    lanes: int
    cells_per_candidate: float
    seeds: int
    kept: float
    """Share of candidates left over where an element keeps its lane, as in LHC's layout."""
    kept_rounds: float
    """Peel rounds of the same layout."""
    rotated: float
    """Share of candidates left over where every sub-table rotates the lane, as in the codec's layout."""
    rotated_rounds: float
    """Peel rounds of the same layout."""


@dataclass(frozen=True)
class NotPeeled:
    """How many sketches of the width that the codec chooses have left-over."""

    part: Literal["aim"]
    support: Support
    density: float
    """Share of elements that are non-zero."""
    lanes: int
    seeds: int
    """Sketches that were peeled."""
    failed: int
    """Sketches with left-over."""


def measure_recovery(seeds: int = 5) -> Iterator[LeftOver | NotPeeled]:
    """Yield the rows of the table, of the curves, and of the aim; `seeds` sketches for each of the first."""
    for support, lanes, cells in TABLE:
        yield left_over("table", support, lanes, cells, seeds)
    for support in SUPPORTS:
        for cells in CURVE_SIZES:
            yield left_over("curve", support, CURVE_LANES, float(cells), seeds)
    for density in AIM_DENSITIES:
        for support in SUPPORTS:
            yield not_peeled(support, density)


def left_over(
    part: Literal["table", "curve"], support: Support, lanes: int, cells: float, seeds: int
) -> LeftOver:
    """Return means over seeds: the share of left-over of both layouts, and peel rounds."""
    outcomes = []
    for seed in range(seeds):
        where = positions(support, ELEMENTS, DENSITY, np.random.default_rng([seed, ELEMENTS]))
        kept = LhcLayout(max(round(where.size * cells / lanes), 1), seed, lanes).peeled(where)
        rotated = peel_sketch(SketchLayout.sized(where.size, lanes, seed, cells), where)
        outcomes.append((kept.left / where.size, kept.rounds, rotated.left / where.size, rotated.rounds))
    means = np.mean(outcomes, axis=0).round(6).tolist()
    return LeftOver(part, support, lanes, round(cells, 2), seeds, *means)


def not_peeled(support: Support, density: float) -> NotPeeled:
    """Count the sketches with left-over, among AIM_SEEDS sketches laid out as the codec does."""
    lanes, failed = block_width(seen(support, AIM_ELEMENTS, density)), 0
    for seed in range(AIM_SEEDS):
        where = positions(support, AIM_ELEMENTS, density, np.random.default_rng([seed, AIM_ELEMENTS]))
        layout = SketchLayout.sized(where.size, lanes, seed, AIM_CELLS)
        failed += peel_sketch(layout, where).left > 0
    return NotPeeled("aim", support, density, lanes, AIM_SEEDS, failed)
