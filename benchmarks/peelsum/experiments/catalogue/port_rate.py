"""How well a switch port keeps to its rate under 1.3 times the load.

One port of a switch process gets 1.3 times what it may send, for 3 s, over loopback.
"""

from __future__ import annotations

from typing import Any

from peelsum.experiments import Column, Experiment, Size
from peelsum.wire import COMPILED_LANES


def measure(seed: int, mbit: float, lanes: int) -> dict[str, Any]:
    """Flood one port of a switch process, over loopback."""
    from peelsum.bench.fairness.port_rate import measure_port_rate

    return measure_port_rate(mbit, lanes)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "got_mbit": Column("rate at which packets arrived, in Mbit/s"),
        "least_10ms_mbit": Column("5th percentile of the rates in windows of 10 ms, in Mbit/s"),
        "most_10ms_mbit": Column("95th percentile of these rates, in Mbit/s"),
        "dropped": Column("packets that the port dropped"),
    },
    sizes={
        "quick": Size([{"mbit": (100.0,), "lanes": (256,)}], 1),
        "usual": Size([{"mbit": (100.0, 1000.0), "lanes": (256,)}, {"mbit": (1000.0,), "lanes": (32,)}], 1),
    },
    ranges={"mbit": (1, 10_000)},
    choices={"lanes": COMPILED_LANES},
)
