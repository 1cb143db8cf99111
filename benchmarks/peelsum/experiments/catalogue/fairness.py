"""How jobs share a port of the switch, and the port's queue: in virtual time, and over UDP.

Every job has worker ports of its own; one port of `mbit` Mbit/s leads to the servers of all jobs, which
compete for it. It sets ECN marks from `mark_from` waiting packets on. `virtual` is virtual time, `udp` a
process.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.fairness.rows import PLAYED, figures
from peelsum.bench.fairness.scene import Scene
from peelsum.experiments import Column, Experiment, Size, Value
from peelsum.wire import COMPILED_LANES


def measure(
    seed: int, ports: str, jobs: int, workers: int, lanes: int, mbit: float, mark_from: int, seconds: float
) -> dict[str, Any]:
    """Run one scene."""
    scene = Scene(
        jobs,
        workers=workers,
        lanes=lanes,
        mbit=mbit,
        mark_from=mark_from,
        settle_s=seconds / 4,
        seconds=seconds,
    )
    return figures(PLAYED[ports](scene))


def grid(jobs: tuple[int, ...], seconds: float, ports: tuple[str, ...]) -> list[dict[str, tuple[Value, ...]]]:
    """Return one part."""
    same: dict[str, tuple[Value, ...]] = {"workers": (2,), "lanes": (256,), "mbit": (20.0,)}
    return [{"ports": ports, "jobs": jobs, **same, "mark_from": (64,), "seconds": (seconds,)}]


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "chunks_per_s": Column("chunks summed per second, by job"),
        "fairness": Column("Jain's index of `chunks_per_s`"),
        "used": Column("share of the servers' port's capacity that was used"),
        "queue_mean": Column("mean queue at the servers' port, in packets, since its start"),
        "queue_deepest": Column("deepest queue there"),
        "queue_dropped": Column("packets dropped there"),
        "wrong": Column("sums with a wrong bit"),
    },
    sizes={
        "quick": Size(grid((2,), 0.5, ("virtual",)), 1),
        "usual": Size(grid((2, 4), 4.0, tuple(PLAYED)), 1),
    },
    ranges={
        "workers": (2, 15),
        "jobs": (1, 16),
        "mbit": (1, 10_000),
        "mark_from": (0, 1 << 18),
        "seconds": (0.01, 3600),
    },
    choices={"lanes": COMPILED_LANES, "ports": tuple(PLAYED)},
)
