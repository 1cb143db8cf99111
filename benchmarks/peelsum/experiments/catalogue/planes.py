"""Several softswitch processes under one load, beside one of them.

`planes` softswitch processes over UDP beside one of them, in five rounds each that take turns. Processor time
is that of the switch processes; by the clock, the switches and the load share the machine's cores.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.switch.planes import PlanesRow, bench_planes
from peelsum.experiments import Experiment, Size, columns_of
from peelsum.wire import COMPILED_LANES, MAX_WORKERS


def measure(seed: int, planes: int, lanes: int, workers: int, seconds: float) -> Any:
    """Measure one plane and all of them, in rounds that take turns."""
    rows = bench_planes(planes, lanes=[lanes], workers=[workers], seconds=seconds)
    return [{**vars(row), "switches": row.planes} for row in rows]


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(PlanesRow, without=("planes", "lanes", "workers"), switches="switch processes"),
    keys=("switches",),
    sizes={
        "quick": Size([{"planes": (2,), "lanes": (32,), "workers": (2,), "seconds": (0.5,)}], 1),
        "usual": Size([{"planes": (2,), "lanes": COMPILED_LANES, "workers": (4,), "seconds": (3.0,)}], 1),
    },
    ranges={"planes": (2, 64), "workers": (1, MAX_WORKERS), "seconds": (0.1, 3600)},
    choices={"lanes": COMPILED_LANES},
)
