"""Time of a simulated sum by the number of workers: packet by packet, and by formula.

A sum of 2^20 words (4 MiB) over links of 100 Gbit/s, in racks of 32. Slot protocols have one switch.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.simulation import by_formula, measured, scenario_of
from peelsum.experiments import Column, Experiment, Plot, Size

#: The figures of all simulated sums.
COLUMNS = {
    "seconds": Column("simulated seconds of the slowest job"),
    "goodput_gbps": Column("gigabits of a worker's words summed per second, in the slowest job"),
    "in_switch": Column("share of chunks that switches summed, over jobs"),
    "resends": Column("packets sent again"),
    "octets": Column("bytes on all links; 0 by formula"),
    "wrong": Column("wrong sums"),
}
FAR = ("ring", "binomial", "parameter_server", "sharded_server")
WAYS = ("peelsum", "switchml", *FAR)


def measure(seed: int, level: str, workers: int, algorithm: str) -> dict[str, Any]:
    """Simulate a sum, or compute what its formula says."""
    return measured(scenario_of(workers), algorithm) if level == "packet" else by_formula(workers, algorithm)


EXPERIMENT = Experiment(
    measure=measure,
    columns=COLUMNS,
    defaults={"algorithm": WAYS},
    sizes={
        "quick": Size([{"level": ("packet", "formula"), "workers": 4}], 1),
        "usual": Size(
            [
                {"level": "packet", "workers": (4, 8, 16, 32)},
                {"level": "packet", "workers": 64, "algorithm": ("peelsum", *FAR)},
                {"level": "formula", "workers": (4, 8, 16, 32, 64, 128, 256, 512, 1024)},
                {"level": "formula", "workers": 10_000, "algorithm": FAR},
            ],
            1,
        ),
    },
    plots=[
        Plot("packet", "workers", "seconds", "algorithm", {"level": "packet"}, "xy"),
        Plot("formula", "workers", "seconds", "algorithm", {"level": "formula"}, "xy"),
    ],
    timed=False,
)
