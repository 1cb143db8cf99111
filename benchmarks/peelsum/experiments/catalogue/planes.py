"""Several softswitch processes under one load, beside one of them.

`planes` softswitch processes over UDP beside one of them, in five rounds each that take turns. Processor time
is that of the switch processes; by the clock, the switches and the load share the machine's cores.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.switch import planes as scene
from peelsum.bench.switch.rows import in_process
from peelsum.experiments import Column, Experiment, Size
from peelsum.wire import COMPILED_LANES, MAX_WORKERS


def measure(seed: int, planes: int, lanes: int, workers: int, seconds: float) -> Any:
    """Measure one plane and all of them, in rounds that take turns. Raises TopologyError."""
    return in_process(scene.measure, planes, lanes, workers, seconds)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "switches": Column("switch processes under load"),
        "packets_per_cpu_s": Column(
            "contributions summed per second of a process's CPU time; sum over planes"
        ),
        "packets_per_s": Column("contributions summed per second by the clock; sum over planes"),
        "busy": Column("CPU seconds of a switch process per second by the clock, mean over planes"),
        "cpu_to_one": Column("`packets_per_cpu_s` over that of one plane"),
        "clock_to_one": Column("`packets_per_s` over that of one plane"),
        "lost_chunks": Column("chunks that the load gave up after a silence"),
    },
    keys=("switches",),
    sizes={
        "quick": Size([{"planes": 2, "lanes": 32, "workers": 2, "seconds": 0.5}], 1),
        "usual": Size([{"planes": 2, "lanes": COMPILED_LANES, "workers": 4, "seconds": 3.0}], 1),
    },
    ranges={"planes": (2, 64), "workers": (1, MAX_WORKERS), "seconds": (0.1, 3600)},
    choices={"lanes": COMPILED_LANES},
)
