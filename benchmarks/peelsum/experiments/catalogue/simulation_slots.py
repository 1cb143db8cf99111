"""Share of chunks that a simulated switch sums, by its slots.

Two workers with links of 15 us and chunks of 8 lanes, so that 8,192 chunks (the window) are under way. The
models have one job. ATP has a row with the slots of its paper.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.simulation.rows import Row, slots_rows
from peelsum.experiments import Experiment, Plot, Size, columns_of
from peelsum.simulation.slot_protocols import ATP_SLOTS


def measure(seed: int, slots: int, jobs: int) -> Any:
    """Simulate one job by all algorithms, or two by ours."""
    return slots_rows(slots, jobs)


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Row, without=("slots", "jobs")),
    keys=("algorithm",),
    sizes={
        "quick": Size([{"slots": (256,), "jobs": (1,)}], 1),
        "usual": Size(
            [
                {"slots": (ATP_SLOTS,), "jobs": (1,)},
                {"slots": (16384, 8192, 4096, 2048, 1024, 512, 256), "jobs": (1, 2)},
            ],
            1,
        ),
    },
    plots=[Plot("in_switch", "slots", "in_switch", "algorithm", {"jobs": 1}, "x")],
    timed=False,
)
