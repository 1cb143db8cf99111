"""What peeling leaves over, by layout, support and size of the sketch: the tables of the codec's page.

Sketches of 6,553,600 elements, 1% of them non-zero, in both layouts: lanes kept as in LHC's, and rotated as
in the codec's (`table` and `curve`). `aim` counts the sketches of 4,194,304 elements, laid out as the codec
does, that leave anything over.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.codec import SUPPORTS
from peelsum.bench.codec.recovery import AIM_DENSITIES, CURVE_SIZES, TABLE, left_over, not_peeled
from peelsum.experiments import Column, Experiment, Plot, Size


def measure(
    seed: int, kind: str, support: Any, lanes: int | None, cells: float, density: float, seeds: int
) -> Any:
    """Peel sketches without values; return means over seeds."""
    if kind == "aim":
        return not_peeled(support, density, seeds)
    return left_over(support, lanes or 1024, cells, seeds)


def part(kind: str, support: Any, lanes: int | None, cells: Any, density: Any, seeds: int) -> dict[str, Any]:
    """Return one part of the grid."""
    shape = {"support": support, "lanes": (lanes,), "cells": cells, "density": density}
    return {"kind": (kind,), **shape, "seeds": (seeds,)}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "kept": Column("share of candidates left over where an element keeps its lane"),
        "kept_rounds": Column("peel rounds of the same layout"),
        "rotated": Column("share of candidates left over where every sub-table rotates the lane"),
        "rotated_rounds": Column("peel rounds of the same layout"),
        "failed": Column("sketches with left-over, of `aim`"),
    },
    sizes={
        "quick": Size([part("table", ("uniform",), 256, (1.3,), (0.01,), 1)], 1),
        "usual": Size(
            [
                *(part("table", (support,), lanes, (cells,), (0.01,), 5) for support, lanes, cells in TABLE),
                part("curve", SUPPORTS, 1024, CURVE_SIZES, (0.01,), 5),
                part("aim", SUPPORTS, None, (1.3,), AIM_DENSITIES, 100),
            ],
            1,
        ),
    },
    plots=[Plot(layout, "cells", layout, "support", {"kind": "curve"}) for layout in ("kept", "rotated")],
    ranges={"seeds": (1, 1000)},
    choices={"support": SUPPORTS},
    timed=False,
)
