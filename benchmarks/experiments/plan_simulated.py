"""The cost model against packet-level simulations, in virtual time, of which processors take none.

The simulated endpoints, server and switch program are the real ones; ring and all_gather are models of their
transports on the same links, of which there are two between workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import Experiment, Size
from benchmarks.rivals.sparse_sums import measured
from peelsum.compress import COLLECTIVES, LinkModel, SwitchPath
from peelsum.simulation import Job, NetworkSection, Scenario
from peelsum.simulation.simulation import frame_bytes

#: The collectives, by the simulation's names and the model's.
SIMULATED = {"peelsum": "switch", "ring": "all_reduce_ring", "all_gather": "all_gather"}
#: Packets that may wait at a port, so many that no queue is ever full.
_QUEUE = 1 << 16


def measure(seed: int, workers: int, gbps: float, delay_us: float, words: int) -> Iterator[dict[str, Any]]:
    """Yield the row of every collective."""
    network = NetworkSection(gbps=gbps, delay_us=delay_us, queue=_QUEUE, mark_from=_QUEUE)
    job = Job(workers=workers, elements=words)
    scenario = Scenario(network=network, jobs=(job,))
    frame_s = 8e-9 * frame_bytes(scenario.lanes) / gbps
    link = LinkModel(2 * (delay_us * 1e-6 + frame_s), gbps)
    for algorithm, name in SIMULATED.items():
        row = measured(scenario, algorithm)
        if algorithm == "peelsum":
            model = SwitchPath(scenario.lanes, job.window, scenario.slots).network(link)
        else:
            model = COLLECTIVES[name](link, workers)
        predicted_s = model.seconds(words, 1)
        yield {
            "collective": name,
            "predicted_ms": 1e3 * predicted_s,
            "simulated_ms": 1e3 * row["seconds"],
            "error": predicted_s / row["seconds"] - 1,
            "wrong": row["wrong"],
        }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "collective": "the collective",
        "predicted_ms": "milliseconds by the cost model",
        "simulated_ms": "milliseconds until the slowest worker was done",
        "error": "`predicted_ms` over `simulated_ms`, less 1",
        "wrong": "wrong sums",
    },
    modelled_columns=("predicted_ms", "simulated_ms", "error"),
    keys=("collective",),
    sizes={
        "quick": Size([{"workers": 2, "gbps": 1.0, "delay_us": 10.0, "words": 1000}], 1),
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
