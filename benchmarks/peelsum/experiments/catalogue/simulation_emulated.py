"""Small sums twice: simulated, and emulated by processes and a switch whose ports have a rate.

Processes and a softswitch with ports of `mbit` Mbit/s sum the same words as the simulation. Of five emulated
sums the fastest counts: other load on the machine only adds.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.simulation.emulated import Compared, compared
from peelsum.experiments import Experiment, Size, columns_of


def measure(seed: int, workers: int, mbit: float, elements: int, window: int) -> dict[str, Any]:
    """Sum both ways; of the emulated sums, the fastest counts."""
    found = vars(compared(workers, mbit, elements, window))
    return {("load_average" if name == "load" else name): value for name, value in found.items()}


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(
        Compared, without=("workers", "mbit", "elements", "load"), load_average="load before the case"
    ),
    sizes={
        "quick": Size([{"workers": (2,), "mbit": (20.0,), "elements": (1 << 13,), "window": (128,)}], 1),
        "usual": Size(
            [{"workers": (4, 8), "mbit": (5.0, 10.0, 20.0), "elements": (1 << 16,), "window": (128,)}], 1
        ),
    },
)
