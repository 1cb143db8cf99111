"""Goodput of simulated sums by loss on every link.

A sum of 2^20 words over links of 100 Gbit/s. Timers are quick, or those by default.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.simulation.rows import Row, loss_rows
from peelsum.experiments import Experiment, Plot, Size, columns_of


def measure(seed: int, loss: float, workers: int) -> Any:
    """Simulate all algorithms; peelsum also with its default timers, ATP with its slots."""
    return loss_rows((loss,), workers=workers)


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Row, without=("loss", "workers")),
    keys=("algorithm", "timers"),
    sizes={
        "quick": Size([{"loss": (0.01,), "workers": (2,)}], 1),
        "usual": Size([{"loss": (0.0, 0.001, 0.005, 0.01, 0.02, 0.05), "workers": (8,)}], 1),
    },
    plots=[Plot("goodput", "loss", "goodput_gbps", "algorithm", {"timers": "quick"})],
    ranges={"loss": (0, 0.5), "workers": (2, 32)},
    timed=False,
)
