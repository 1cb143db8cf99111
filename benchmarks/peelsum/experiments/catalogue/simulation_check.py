"""The formulas of the simulator beside its packets, and the factors that fit them.

The factors `transfer` and `latency` are fitted to packet-level simulations of 4 to 32 workers. The other
cases only check the formulas.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.simulation.rows import CHECKED, FITTED, Check, calibrated, check_rows
from peelsum.experiments import Experiment, Size, columns_of
from peelsum.simulation.cost_model import ALGORITHMS


def measure(seed: int, algorithm: str, checked: bool) -> Any:
    """Compare one formula on the cases that it was fitted to, or on others."""
    factors = calibrated(algorithm) if not checked else {}
    cases = [(False, CHECKED)] if checked else [(True, FITTED)]
    return [
        {**vars(row), "transfer": None, "latency": None, **factors} for row in check_rows(algorithm, cases)
    ]


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(
        Check,
        without=("algorithm",),
        transfer="the fitted factor of the transfer's time",
        latency="the fitted factor of the latency",
    ),
    keys=("workers", "elements", "gbps"),
    sizes={
        "quick": Size([{"algorithm": ("ring",), "checked": (False,)}], 1),
        "usual": Size([{"algorithm": ALGORITHMS, "checked": (False, True)}], 1),
    },
    timed=False,
)
