"""What peeling leaves over, by layout, support and size of the sketch: the tables of the codec's page.

Sketches of 6,553,600 elements, 1% of them non-zero, in both layouts (`table` and `curve`): LHC's, which
hashes blocks of `lanes` elements that keep their lanes, and the codec's, which hashes every element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import Experiment, Plot, Size
from benchmarks.rivals.lhc import LhcLayout
from peelsum.bench.codec.rows import peel_sketch
from peelsum.bench.codec.timing import SUPPORTS, positions
from peelsum.bench.point import Support
from peelsum.codec import SketchLayout

ELEMENTS, DENSITY = 6_553_600, 0.01
#: Support, LHC's lanes and cells per candidate of the table's rows; below, sizes of the plot's curves.
TABLE: tuple[tuple[Support, int, float], ...] = (
    ("uniform", 1024, 1.3),
    ("uniform", 256, 1.3),
    ("uniform", 64, 1.3),
    ("rows", 1024, 1.3),
    ("columns", 256, 1.3),
    ("columns", 256, 1.6),
    ("uniform", 256, 1.25),
    ("uniform", 256, 1.4),
)
CURVE_SIZES = tuple(
    round(float(size), 2) for size in (*np.arange(1.0, 1.5, 0.05), *np.arange(1.5, 4.05, 0.1))
)


def measure(seed: int, kind: str, support: Any, lanes: int, cells: float, seeds: int) -> dict[str, float]:
    """Peel sketches without values; return means over seeds: the share of left-over, and peel rounds."""
    outcomes = []
    for number in range(seed, seed + seeds):
        where = positions(support, ELEMENTS, DENSITY, np.random.default_rng([number, ELEMENTS]))
        lhc = LhcLayout(max(round(where.size * cells / lanes), 1), number, lanes).peeled(where)
        ours = peel_sketch(SketchLayout.sized(where.size, number, cells), where)
        outcomes.append((lhc.left_over / where.size, lhc.rounds, ours.left_over / where.size, ours.rounds))
    means = np.mean(outcomes, axis=0).round(6).tolist()
    return dict(zip(("lhc", "lhc_rounds", "ours", "ours_rounds"), means, strict=True))


ALONG: dict[str, Any] = {
    "x": "cells",
    "lines": "support",
    "where": {"kind": "curve"},
    "percent": "y",
    "setting": "Sketches of 6,553,600 elements, 1% of them not zero; means of five seeds. Counted.",
    "xlabel": "Cells per candidate",
    "ylabel": "Candidates that peeling leaves over (%)",
    "names": {"uniform": "anywhere", "rows": "whole rows", "columns": "whole columns"},
}


def peeled_from(medians: Any) -> str:
    """Return from which size on the codec's sketches peel completely, wherever non-zeros are."""
    curves = [medians.by_series[support] for support in SUPPORTS]
    sizes = sorted(map(float, curves[0]))
    unpeeled = [size for size in sizes if any(curve[str(size)] for curve in curves)]
    least = min(size for size in sizes if size > max(unpeeled))
    return f"peelsum's layout peels everything from {least:g} cells per candidate on, wherever non-zeros are"


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "lhc": "share of candidates left over in LHC's layout",
        "lhc_rounds": "peel rounds of LHC's layout",
        "ours": "share of candidates left over in the codec's layout",
        "ours_rounds": "peel rounds of the codec's layout",
    },
    defaults={"seeds": 5},
    sizes={
        "quick": Size([{"kind": "table", "support": "uniform", "lanes": 256, "cells": 1.3, "seeds": 1}], 1),
        "usual": Size(
            [
                *(
                    {"kind": "table", "support": support, "lanes": lanes, "cells": cells}
                    for support, lanes, cells in TABLE
                ),
                {"kind": "curve", "support": SUPPORTS, "lanes": 1024, "cells": CURVE_SIZES},
            ],
            1,
        ),
    },
    plots=[
        Plot(
            "lhc",
            y="lhc",
            finding="""LHC's layout leaves {columns@1.5:.0%} of the candidates over with 1.5 cells each, if
                whole columns are not zero, and {uniform@1.5:.1%} if non-zeros are anywhere""",
            **ALONG,
        ),
        Plot("ours", y="ours", finding=peeled_from, **ALONG),
    ],
    ranges={"seeds": (1, 1000)},
    choices={"support": SUPPORTS},
    timed=False,
)
