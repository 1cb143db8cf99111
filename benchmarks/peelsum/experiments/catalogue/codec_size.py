"""Words of every form, and of LHC's program and best, over the lower bound.

Words that a worker sends, over the least that non-zeros and their positions need. `lhc` is the layout of
LHC's program, `lhc_fewest` what its paper allows at best. Nothing is timed.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.codec import SUPPORTS
from peelsum.experiments import Column, Experiment, Plot, Size


def measure(seed: int, elements: int, density: float, support: Any) -> Any:
    """Count the words of one tensor."""
    from peelsum.bench.codec.rows import points_of
    from peelsum.bench.codec.sizes import size_rows

    return size_rows(points_of([elements], [density], [support]))


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "form": Column("form of the values"),
        "index": Column("form of the index"),
        "over_lower_bound": Column("size over the lower bound, 32 rho + H(rho)"),
    },
    keys=("form", "index"),
    sizes={
        "quick": Size([{"elements": (2**18,), "density": (0.01,), "support": ("uniform",)}], 1),
        "usual": Size(
            [
                {
                    "elements": (2**22,),
                    "density": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
                    "support": SUPPORTS,
                }
            ],
            1,
        ),
    },
    plots=[
        Plot(f"size_{support}", "density", "over_lower_bound", "form", {"support": support}, "xy")
        for support in SUPPORTS
    ],
    choices={"support": SUPPORTS},
    timed=False,
)
