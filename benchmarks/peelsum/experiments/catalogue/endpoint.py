"""Packets that one core of a worker sends and takes results for, beside bare sockets.

One worker; a second process returns its contributions as results. `memory` is the endpoint alone, of which
only its own calls count, a window at a time; `sockets` the endpoint with socket and clock, as in training;
`bare` sockets that send and receive as many bytes without reading them, in the same process.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench import endpoint
from peelsum.experiments import Column, Experiment, Size
from peelsum.wire import COMPILED_LANES


def measure(seed: int, lanes: int, seconds: float) -> Any:
    """Measure the endpoint in memory, over sockets, and sockets alone. Raises WrongSumError."""
    with endpoint.answering(lanes) as peer:
        spent = {
            "memory": endpoint.in_memory(lanes, seconds),
            "sockets": endpoint.over_sockets(lanes, seconds, peer),
            "bare": endpoint.bare_sockets(lanes, seconds, peer),
        }
    per_core = {way: one.packets / one.cpu_s for way, one in spent.items()}
    for way, one in spent.items():
        yield {
            "way": way,
            "packets_per_core_s": round(per_core[way]),
            "packets_per_s": None if way == "memory" else round(one.packets / one.wall_s),
            "share_of_bare": round(per_core[way] / per_core["bare"], 3),
        }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "way": Column("`memory`, `sockets` or `bare`"),
        "packets_per_core_s": Column("packets per second of the worker's processor time, kernel included"),
        "packets_per_s": Column("packets per second by the clock; in memory it would include making results"),
        "share_of_bare": Column("packets per second of processor time, over those of bare sockets"),
    },
    keys=("way",),
    sizes={
        "quick": Size([{"lanes": 256, "seconds": 0.1}], 1),
        "usual": Size([{"lanes": (COMPILED_LANES[0], COMPILED_LANES[-1]), "seconds": 3.0}], 1),
    },
    ranges={"seconds": (0.1, 3600)},
    choices={"lanes": COMPILED_LANES},
)
