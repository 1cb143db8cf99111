"""Share of chunks that a simulated switch sums, by its slots.

Two workers with links of 15 us and chunks of 8 lanes, so that 8,192 chunks (the window) are under way. The
models have one job. ATP has a row with the slots of its paper.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.simulation import QUICK, measured
from peelsum.experiments import Experiment, Plot, Size
from peelsum.experiments.catalogue.simulation_scale import COLUMNS
from peelsum.simulation import Job, NetworkSection, Scenario
from peelsum.simulation.slot_protocols import ATP_SLOTS

_WINDOW, _LANES = 8192, 8
SLOTS = (16384, 8192, 4096, 2048, 1024, 512, 256)


def measure(seed: int, slots: int, jobs: int, algorithm: str) -> dict[str, Any]:
    """Simulate sums of three windows."""
    elements = 3 * _WINDOW * _LANES
    job = Job(workers=2, elements=elements, window=_WINDOW, initial_window=_WINDOW, timers=QUICK)
    network = NetworkSection(delay_us=15.0, queue=1 << 17, mark_from=1 << 17)
    # A scenario's slots are checked to be a power of two, which ATP's are not.
    scenario = Scenario(lanes=_LANES, network=network, jobs=(job,) * jobs)
    return measured(scenario.model_copy(update={"slots": slots}), algorithm)


EXPERIMENT = Experiment(
    measure=measure,
    columns=COLUMNS,
    sizes={
        "quick": Size([{"slots": 256, "jobs": 1, "algorithm": ("peelsum", "atp", "switchml")}], 1),
        "usual": Size(
            [
                {"slots": ATP_SLOTS, "jobs": 1, "algorithm": "atp"},
                {"slots": SLOTS, "jobs": 1, "algorithm": ("peelsum", "atp", "switchml")},
                {"slots": SLOTS, "jobs": 2, "algorithm": "peelsum"},
            ],
            1,
        ),
    },
    plots=[Plot("in_switch", "slots", "in_switch", "algorithm", {"jobs": 1}, "x")],
    timed=False,
)
