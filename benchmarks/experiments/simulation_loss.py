"""Goodput of simulated sums by loss on every link.

A sum of 2^20 words over links of 100 Gbit/s. Timers are quick, or those by default. ATP has the slots of its
paper.
"""

from __future__ import annotations

from typing import Any

from benchmarks import SERIES, Experiment, Plot, Size
from benchmarks.rivals.slot_protocols import ATP_SLOTS
from benchmarks.rivals.sparse_sums import QUICK, measured, scenario_of
from peelsum.simulation import TimersSection

TIMERS = {"quick": QUICK, "default": TimersSection()}


def measure(seed: int, loss: float, workers: int, algorithm: str, timers: str) -> dict[str, Any]:
    """Simulate a sum."""
    scenario = scenario_of(workers, loss=loss, timers=TIMERS[timers])
    if algorithm == "atp":  # its number of slots is not a power of two as ours
        scenario = scenario.model_copy(update={"slots": ATP_SLOTS})
    return measured(scenario, algorithm)


WAYS = {"algorithm": ("peelsum", "switchml", "atp", "ring"), "timers": "quick"}
SLOW = {"algorithm": "peelsum", "timers": "default"}
LOSSES = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05)
EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "seconds": "simulated seconds of the slowest job",
        "goodput_gbps": "gigabits of a worker's words summed per second, in the slowest job",
        "in_switch": "share of chunks that switches summed, over jobs",
        "resends": "packets sent again",
        "octets": "bytes on all links",
        "wrong": "wrong sums",
    },
    sizes={
        "quick": Size([{"loss": 0.01, "workers": 2, **ways} for ways in (WAYS, SLOW)], 1),
        "usual": Size([{"loss": LOSSES, "workers": 8, **ways} for ways in (WAYS, SLOW)], 1),
    },
    plots=[
        Plot(
            "goodput",
            "loss",
            "goodput_gbps",
            "algorithm",
            {"timers": "quick"},
            names=SERIES,
            percent="x",
            log="x",
            finding="""With 2% of packets lost on every link, peelsum sums {peelsum@0.02:.0f} Gbit/s, SwitchML
                {switchml@0.02:.0f}, ATP {atp@0.02:.0f} and NCCL's ring {ring@0.02:.0f}; with 0.1%, peelsum
                {peelsum@0.001:.0f} and SwitchML {switchml@0.001:.0f}""",
            setting="""Eight workers sum 4 MiB over links of 100 Gbit/s. Simulated packet by packet; the ring
                is a model.""",
            xlabel="Packets lost on every link (%)",
            ylabel="Goodput of a worker (Gbit/s)",
        )
    ],
    ranges={"loss": (0, 0.5), "workers": (2, 32)},
    choices={"timers": tuple(TIMERS)},
    timed=False,
)
