"""Rate and latency of a switch: the softswitch and BMv2, in memory and on ports, by lanes and workers.

One compiled pipeline in the softswitch, with ports in memory and over UDP, and in BMv2 on virtual Ethernet
pairs. BMv2 needs `simple_switch_grpc` on PATH and root; if it is missing, every row says so, and there are no
ratios. `seconds` is the duration of each row's rate measurement, and of its latency measurement. The first
sums of every run are compared with the sums of what was sent.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.switch.rows import Row, bench_switch
from peelsum.experiments import Experiment, Plot, Size, columns_of
from peelsum.wire import COMPILED_LANES, MAX_WORKERS


def measure(seed: int, lanes: int, workers_each: tuple[int, ...], seconds: float) -> Any:
    """Measure every switch with every number of workers."""
    return bench_switch(lanes=[lanes], workers=workers_each, seconds=seconds)


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Row, without=("lanes",)),
    keys=("target", "ports", "workers"),
    sizes={
        "quick": Size([{"lanes": (32,), "workers_each": ((2,),), "seconds": (0.1,)}], 1),
        "usual": Size([{"lanes": COMPILED_LANES, "workers_each": ((4,),), "seconds": (3.0,)}], 1),
    },
    plots=[
        Plot("by_lanes", "lanes", "packets_per_s", "ports", {"workers": 4}, "xy"),
        Plot("by_workers", "workers", "packets_per_s", "ports", {"lanes": 256}, "xy"),
    ],
    ranges={"seconds": (0.1, 3600), "workers_each": (1, MAX_WORKERS)},
    choices={"lanes": COMPILED_LANES},
)
