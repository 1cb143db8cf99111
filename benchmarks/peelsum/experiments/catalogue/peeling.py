"""Sketch size against peeling.

1% of a tensor's elements are non-zero: anywhere (`uniform`), in whole rows of 64 (`rows`), or in half of
256 columns (`columns`). They are put into three cells each of a sketch with `cells` cells for each
non-zero, and peeled in parallel rounds. An element keeps its lane in all sub-tables (`kept`: LHC's
published layout), or every sub-table rotates it (`rotated`: the codec's). `lanes` is the number of elements
that are hashed together. Only positions matter, so no values are drawn, and nothing depends on the machine.
"""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Size, Value

DENSITY = 0.01


def measure(
    seed: int, support: str, layout: str, lanes: int, cells: float, elements: int
) -> dict[str, Value]:
    """Peel one sketch, without values."""
    import numpy as np

    from peelsum.bench.codec import LhcLayout, peel_sketch
    from peelsum.bench.codec.supports import positions
    from peelsum.codec import SketchLayout

    random = np.random.default_rng([seed, elements])
    where = positions(support, elements, DENSITY, random)  # type: ignore[arg-type]
    if layout == "kept":
        peeled = LhcLayout(max(round(where.size * cells / lanes), 1), seed, lanes).peeled(where)
    else:
        peeled = peel_sketch(SketchLayout.sized(where.size, lanes, seed, cells), where)
    return {"left_over": peeled.left / where.size, "rounds": peeled.rounds}


SUPPORTS = ("uniform", "rows", "columns")
EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "left_over": Column("share of non-zeros that peeling does not recover"),
        "rounds": Column("rounds that recovered something"),
    },
    defaults={"support": SUPPORTS, "layout": ("kept", "rotated"), "lanes": (64, 256, 1024)},
    sizes={
        "quick": Size(
            [{"support": ("uniform", "columns"), "lanes": (64, 256), "cells": (1.3, 2.0), "elements": 2**19}],
            3,
        ),
        "usual": Size([{"cells": (1.2, 1.3, 1.6, 2.0, 3.0), "elements": 2**21}], 7),
        "full": Size(
            [
                {
                    "lanes": (16, 64, 256, 1024),
                    "cells": (1.1, 1.2, 1.25, 1.3, 1.4, 1.6, 2.0, 3.0, 4.0),
                    "elements": 6_553_600,
                }
            ],
            25,
        ),
    },
    plots=[
        Plot(name, "cells", "left_over", "layout", {"support": support, "lanes": 256})
        for name, support in (("left_over", "uniform"), ("left_over_columns", "columns"))
    ],
    timed=False,
)
