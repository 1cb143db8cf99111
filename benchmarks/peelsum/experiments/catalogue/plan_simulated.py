"""The cost model against packet-level simulations, in virtual time, of which processors take none.

The simulated endpoints, server and switch program are the real ones; ring and all_gather are models of their
transports on the same links, of which there are two between workers.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.methods.simulated import collectives
from peelsum.experiments import Column, Experiment, Size


def measure(seed: int, workers: int, gbps: float, delay_us: float, words: int) -> Any:
    """Simulate every collective."""
    return collectives(workers, gbps, delay_us, words)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "collective": Column("the collective"),
        "predicted_ms": Column("milliseconds by the cost model", modelled=True),
        "simulated_ms": Column("milliseconds until the slowest worker was done", modelled=True),
        "error": Column("`predicted_ms` over `simulated_ms`, less 1", modelled=True),
        "wrong": Column("wrong sums"),
    },
    keys=("collective",),
    sizes={
        "quick": Size([{"workers": (2,), "gbps": (1.0,), "delay_us": (10.0,), "words": (1000,)}], 1),
        "usual": Size(
            [
                {
                    "workers": (2, 4, 8),
                    "gbps": (0.1, 1.0, 10.0),
                    "delay_us": (10.0, 1000.0),
                    "words": (1_000, 25_000, 100_000),
                }
            ],
            1,
        ),
    },
    timed=False,
)
