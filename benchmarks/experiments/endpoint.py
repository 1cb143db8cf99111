"""Packets that one core of a worker sends and takes results for, beside bare sockets.

There is one worker, and a second process that returns its contributions as results. Rows are of three kinds:

- `memory` is the endpoint without sockets. It gets a window of packets at a time; only its calls are timed.
- `sockets` is the endpoint with its socket and clock, as in training.
- `bare` is a socket in the same process that sends and receives as many bytes, and does not read them.
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
