"""The network's time of a simulated sparse sum, by density and encoding.

Each element is non-zero at a worker with probability `density`. No time of encoding or decoding is in it. Our
words are those of the planner's smallest form; LHC's are those of its program's layout, and of the best that
its paper allows, in the smallest table that recovers everything.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.simulation.rows import Row, density_rows
from peelsum.experiments import Experiment, Plot, Size, columns_of


def measure(seed: int, density: float, workers: int, elements: int) -> Any:
    """Simulate all encodings."""
    return density_rows((density,), workers, elements)


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Row, without=("density", "workers", "elements")),
    keys=("algorithm",),
    sizes={
        "quick": Size([{"density": (0.01,), "workers": (2,), "elements": (1 << 16,)}], 1),
        "usual": Size([{"density": (0.0001, 0.001, 0.01, 0.1), "workers": (8,), "elements": (1 << 20,)}], 1),
    },
    plots=[Plot("seconds", "density", "seconds", "algorithm", log="xy")],
    timed=False,
)
