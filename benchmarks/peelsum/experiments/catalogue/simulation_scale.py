"""Time of a simulated sum by the number of workers: packet by packet, and by formula.

A sum of 2^20 words (4 MiB) over links of 100 Gbit/s, in racks of 32. Slot protocols have one switch.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.simulation.rows import Row, scale_rows
from peelsum.experiments import Experiment, Plot, Size, columns_of

PACKET = (4, 8, 16, 32, 64)


def measure(seed: int, level: str, workers: int) -> Any:
    """Simulate all algorithms, or compute what their formulas say."""
    return scale_rows((workers,), ()) if level == "packet" else scale_rows((), (workers,))


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Row, without=("level", "workers")),
    keys=("algorithm",),
    sizes={
        "quick": Size([{"level": ("packet", "formula"), "workers": (4,)}], 1),
        "usual": Size(
            [
                {"level": ("packet",), "workers": PACKET},
                {"level": ("formula",), "workers": (*PACKET, 128, 256, 512, 1024, 10_000)},
            ],
            1,
        ),
    },
    plots=[
        Plot(level, "workers", "seconds", "algorithm", {"level": level}, "xy")
        for level in ("packet", "formula")
    ],
    timed=False,
)
