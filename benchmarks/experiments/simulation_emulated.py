"""Small sums twice: simulated, and emulated by processes and a switch whose ports have a rate.

Processes and a softswitch with ports of `mbit` Mbit/s sum the same words as the simulation. Of five emulated
sums the fastest counts: other load on the machine only adds.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict

from benchmarks import Experiment, Size, Value
from benchmarks.summing_workers import one_sum, started
from peelsum.simulation import Job, NetworkSection, Scenario, simulate
from peelsum.topology import Star

_SUMS = 5


def measure(seed: int, workers: int, mbit: float, elements: int, window: int) -> dict[str, Value]:
    """Sum both ways. Raises TopologyError if a process fails."""
    load = os.getloadavg()[0]
    with Star(workers, window=window, rate_mbit=mbit) as star, ExitStack() as stack:
        children = started(stack, map(asdict, star.seats), elements=elements, seed=seed)
        sums = [one_sum(children) for _ in range(1 + _SUMS)]
        one_sum(children, again=False)
    emulated_s = min(max(line["seconds"] for line in lines) for lines in sums[1:])
    # Loopback has hardly a delay; the switch's process takes about this time for a packet.
    network = NetworkSection(gbps=mbit / 1000, delay_us=50.0)
    job = Job(workers=workers, elements=elements, window=window, initial_window=window)
    row = simulate(Scenario(network=network, jobs=(job,))).jobs[0]
    return {
        "emulated_s": emulated_s,
        "simulated_s": row.seconds,
        "error": (row.seconds - emulated_s) / emulated_s,
        "wrong": row.wrong + sum(line["wrong"] for lines in sums for line in lines),
        "load_average": load,
    }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "emulated_s": "seconds of the fastest emulated sum, of the slowest worker",
        "simulated_s": "simulated seconds",
        "error": "(simulated - emulated) / emulated",
        "wrong": "wrong sums of the simulation, and wrong words of the emulation",
        "load_average": "load before the case",
    },
    defaults={"window": 128},
    sizes={
        "quick": Size([{"workers": 2, "mbit": 20.0, "elements": 1 << 13}], 1),
        "usual": Size([{"workers": (4, 8), "mbit": (5.0, 10.0, 20.0), "elements": 1 << 16}], 1),
    },
)
