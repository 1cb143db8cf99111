"""The formulas of the simulator beside its packets, and the factors that fit them.

The factors `transfer` and `latency` are fitted to packet-level simulations of 4 to 32 workers. The other
cases only check the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import Experiment, Size
from benchmarks.rivals.cost_model import ALGORITHMS, CALIBRATION, fitted, parts
from benchmarks.rivals.slot_protocols import PROTOCOLS
from benchmarks.rivals.sparse_sums import measured, scenario_of

#: Cases for fitting: workers, elements, Gbit/s; and others for checking.
FITTED = ((4, 1 << 20, 100.0), (8, 1 << 18, 100.0), (16, 1 << 20, 100.0), (32, 1 << 18, 100.0))
CHECKED = (
    (4, 1 << 18, 400.0),
    (6, 1 << 19, 100.0),
    (12, 1 << 20, 25.0),
    (24, 1 << 19, 100.0),
    (64, 1 << 18, 100.0),
)


def measure(seed: int, algorithm: str, checked: bool) -> Iterator[dict[str, Any]]:
    """Compare one formula on the cases that it was fitted to, or on others."""
    cases, pairs = [], []
    for workers, elements, gbps in CHECKED if checked else FITTED:
        if algorithm in PROTOCOLS and workers > 32:
            continue
        scenario = scenario_of(workers, elements=elements, gbps=gbps)
        cases.append({"workers": workers, "elements": elements, "gbps": gbps})
        pairs.append((parts(scenario, algorithm), measured(scenario, algorithm)["seconds"]))
    factors = fitted(pairs)._asdict() if not checked else {"transfer": None, "latency": None}
    for case, (part, packet_s) in zip(cases, pairs, strict=True):
        formula_s = part.scaled(CALIBRATION[algorithm])
        comparison = {"packet_s": packet_s, "formula_s": formula_s, "error": formula_s / packet_s - 1}
        yield {**case, **comparison, **factors}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "workers": "workers",
        "elements": "words of the sum",
        "gbps": "rate of a host's link",
        "packet_s": "seconds at the packet level",
        "formula_s": "seconds by formula",
        "error": "(formula - packet) / packet",
        "transfer": "the fitted factor of the transfer's time",
        "latency": "the fitted factor of the latency",
    },
    keys=("workers", "elements", "gbps"),
    sizes={
        "quick": Size([{"algorithm": "ring", "checked": False}], 1),
        "usual": Size([{"algorithm": ALGORITHMS, "checked": (False, True)}], 1),
    },
    timed=False,
)
