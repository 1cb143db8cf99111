"""Bursts of losses, packets out of order, and a slow link.

Workers sum the same seeded words again and again over a star of processes, as in the experiment `loss`. Every
switch port loses packets in both directions; packets are late, and links slow, in one, from the switch. Two
sums to warm up are not timed, but their packets count. All sums are compared with an independent one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import Experiment, Plot, Size, Value
from benchmarks.summing_workers import sum_repeatedly
from peelsum.topology import Star

#: Mbit/s of a port whose rate is limited, and of the slow one.
MBIT, SLOW_MBIT = 400.0, 100.0


#: The options of the star by the fault, for a share of the packets and so many workers.
FAULTS: dict[str, Callable[[float, int], dict[str, Any]]] = {
    "none": lambda share, workers: {},
    "alone": lambda share, workers: {"loss": share},
    "bursts of 4": lambda share, workers: {"loss": share, "loss_burst": 4.0},
    "bursts of 32": lambda share, workers: {"loss": share, "loss_burst": 32.0},
    "late": lambda share, workers: {"late": share},
    "all slow": lambda share, workers: {"rate_mbit": SLOW_MBIT},
    "one slow": lambda share, workers: {"rate_mbit": _one_slow(workers)},
    "all slow, alone": lambda share, workers: {"rate_mbit": SLOW_MBIT, "loss": share},
    "one slow, alone": lambda share, workers: {"rate_mbit": _one_slow(workers), "loss": share},
}


def _one_slow(workers: int) -> dict[int, float]:
    """Return the ports' rates with a slow link to worker 0."""
    return {1: SLOW_MBIT, **dict.fromkeys(range(2, workers + 2), MBIT)}


def measure(
    seed: int, fault: str, share: float, workers: int, lanes: int, elements: int, seconds: float
) -> dict[str, Value]:
    """Sum words repeatedly over a star whose links have a fault. Raises ProcessError."""
    star = Star(workers, lanes=lanes, seed=seed, **FAULTS[fault](share, workers))
    figures, _ = sum_repeatedly(star, elements=elements, seed=seed, seconds=seconds)
    assert star.report is not None
    ports = star.report.ports.values()
    return figures | {
        "lost": sum(port["lost_in"] for port in ports)
        / sum(port["received"] + port["lost_in"] for port in ports),
        "late": sum(port["late"] for port in ports) / sum(port["sent"] for port in ports),
    }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "goodput_gbit_s": "gigabits of words that a worker had summed per second",
        "in_switch": "share of chunks that the switch summed; the server summed the others",
        "packets_over_least": "packets that workers sent, over one for each chunk",
        "lost": "share of the packets to the switch that were lost",
        "late": "share of the packets from the switch that were sent after later ones",
        "window_cuts": "times that a worker cut its window, all workers",
        "wrong": "words that differ from an independent sum",
    },
    defaults={"workers": 4, "lanes": 256, "share": 0.01},
    sizes={
        "quick": Size([{"fault": ("bursts of 4", "late"), "elements": 2**16, "seconds": 0.5}], 1),
        "usual": Size([{"fault": tuple(FAULTS), "elements": 2**20, "seconds": 2.0}], 5),
    },
    ranges={"share": (0, 0.5), "workers": (2, 32), "elements": (1, 1 << 28), "seconds": (0, 3600)},
    choices={"fault": tuple(FAULTS)},
    plots=[
        Plot(
            "goodput",
            x="fault",
            y="goodput_gbit_s",
            kind="bars",
            finding="""With 1% of packets lost four in a row, workers sum {@bursts of 4:.2f} Gbit/s, and
                with 1% lost one by one {@alone:.2f}""",
            setting="""Four worker processes sum 4 MiB over loopback through the softswitch; links are
                unlimited, or have 400 Mbit/s, and slow ones 100. Measured.""",
            ylabel="Goodput of a worker (Gbit/s)",
            names={
                "none": "no fault",
                "late": "1% late",
                "alone": "1% lost, one by one",
                "bursts of 4": "1% lost, four in a row",
                "bursts of 32": "1% lost, 32 in a row",
                "all slow": "all links slow",
                "one slow": "one link slow",
                "all slow, alone": "all links slow, 1% lost",
                "one slow, alone": "one link slow, 1% lost",
            },
        )
    ],
)
