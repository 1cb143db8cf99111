"""Lost packets.

Workers sum the same seeded words again and again over a star of processes. Every switch port loses a seeded
share of the packets in each direction; a chunk of four workers crosses ten such places. Two sums to warm up
are not timed, but their packets count. All sums are compared with an independent one.
"""

from __future__ import annotations

from typing import Any

from benchmarks import Experiment, Plot, Size, Value
from benchmarks.summing_workers import sum_repeatedly
from peelsum.topology import Star
from peelsum.wire import packet_bytes


def measure(
    seed: int, loss: float, workers: int, lanes: int, elements: int, seconds: float
) -> dict[str, Value]:
    """Sum words repeatedly over a star whose ports lose packets. Raises ProcessError."""
    star = Star(workers, lanes=lanes, loss=loss, seed=seed)
    figures, packets = sum_repeatedly(star, elements=elements, seed=seed, seconds=seconds)
    return figures | {"bytes_a_sum": packet_bytes(lanes) * packets}


ALONG: dict[str, Any] = {
    "x": "loss",
    "log": "x",
    "percent": "x",
    "setting": ("Four worker processes sum 4 MiB over loopback through the softswitch. Measured."),
    "xlabel": "Packets lost at every port, in each direction (%)",
}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "goodput_gbit_s": "gigabits of words that a worker had summed per second",
        "in_switch": "share of chunks that the switch summed; the server summed the others",
        "packets_over_least": "packets that workers sent, over one for each chunk",
        "bytes_a_sum": "bytes that a worker sent for a sum",
        "window_cuts": "times that a worker cut its window, all workers",
        "wrong": "words that differ from an independent sum",
    },
    defaults={"workers": 4, "lanes": 256},
    sizes={
        "quick": Size([{"loss": (0.0, 0.01, 0.05), "elements": 2**18, "seconds": 1.0}], 2),
        "usual": Size(
            [{"loss": (0.0, 0.001, 0.005, 0.01, 0.02, 0.05), "elements": 2**20, "seconds": 3.0}], 9
        ),
    },
    ranges={"loss": (0, 0.5), "workers": (2, 32), "elements": (1, 1 << 28), "seconds": (0, 3600)},
    plots=[
        Plot(
            "goodput",
            y="goodput_gbit_s",
            finding="""With 1% of packets lost at every port, workers sum {@0.01:.2f} Gbit/s where they sum
                {@0.0:.2f} without loss; with 5%, {@0.05:.2f}""",
            ylabel="Goodput of a worker (Gbit/s)",
            **ALONG,
        ),
        Plot(
            "in_switch",
            y="in_switch",
            finding="""With 5% of packets lost at every port, the switch still sums {@0.05:.1%} of the chunks,
                and the server the others""",
            ylabel="Chunks that the switch sums (%)",
            floor=None,
            **{**ALONG, "percent": "xy"},
        ),
    ],
)
