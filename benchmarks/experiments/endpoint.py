"""Packets that one core of a worker sends and takes results for, beside bare sockets.

One worker; a second process returns its contributions as results. `memory` is the endpoint alone, of which
only its own calls count, a window at a time; `sockets` the endpoint with socket and clock, as in training;
`bare` sockets that send and receive as many bytes without reading them, in the same process.
"""

from __future__ import annotations

from typing import Any

from benchmarks import Experiment, Size
from peelsum.bench import endpoint
from peelsum.wire import COMPILED_LANES, DEFAULT_LANES


def measure(seed: int, lanes: int, seconds: float) -> Any:
    """Measure the endpoint in memory, over sockets, and sockets alone."""
    return endpoint.measure(lanes, seconds)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "way": "`memory`, `sockets` or `bare`",
        "packets_per_core_s": "packets per second of the worker's processor time, kernel included",
        "packets_per_s": "packets per second by the clock; in memory it would include making results",
        "share_of_bare": "packets per second of processor time, over those of bare sockets",
    },
    keys=("way",),
    sizes={
        "quick": Size([{"lanes": 256, "seconds": 0.1}], 1),
        "usual": Size([{"lanes": (COMPILED_LANES[0], DEFAULT_LANES), "seconds": 3.0}], 1),
    },
    ranges={"seconds": (0.1, 3600)},
    choices={"lanes": COMPILED_LANES},
)
