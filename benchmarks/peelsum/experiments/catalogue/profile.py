"""Where the softswitch spends a contribution's time: parts of the program, and of its process.

Serialising readings of the cycle counter are inserted between the parts of the generated function. The cost
of a reading is subtracted; figures are the median of 40 batches. For the process, the main thread's
processor time in the kernel and outside is measured, in a switch on UDP under load for `seconds`. Needs
x86-64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peelsum.experiments import Column, Experiment, Plot, Size
from peelsum.wire import COMPILED_LANES, DEFAULT_LANES, MAX_WORKERS


def measure(seed: int, lanes: int, workers: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Profile the program in memory, then its process over UDP."""
    from peelsum.bench.switch.profile import profile_loop, profile_program, require_counter

    require_counter()
    rate = dict.fromkeys(("packets_per_s", "busy"))
    for part, ns in profile_program(lanes, workers).items():
        yield {"of": "program", "piece": part, "ns": ns, **rate}
    for row in profile_loop(lanes, workers, seconds):
        yield {"of": "process", **row}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "of": Column("`program`, in memory, or `process`, over UDP"),
        "piece": Column("part of the program or of the process"),
        "ns": Column("nanoseconds a contribution, including its share of sums and results"),
        "packets_per_s": Column("contributions per second over UDP"),
        "busy": Column("share of the time that the process spent on a processor"),
    },
    keys=("of", "piece"),
    sizes={
        "quick": Size([{"lanes": 32, "workers": 2, "seconds": 0.2}], 1),
        "usual": Size(
            [
                {"lanes": (32, 64, 128, 256), "workers": 4, "seconds": 2.0},
                {"lanes": DEFAULT_LANES, "workers": (2, 8, 16), "seconds": 2.0},
            ],
            1,
        ),
    },
    plots=[Plot(of, "lanes", "ns", "piece", {"of": of, "workers": 4}, "x") for of in ("program", "process")],
    ranges={"workers": (1, MAX_WORKERS), "seconds": (0.1, 3600)},
    choices={"lanes": COMPILED_LANES},
)
