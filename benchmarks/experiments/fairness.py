"""How jobs share a port of the switch, and the port's queue: in virtual time, and over UDP.

Every job has worker ports of its own; one port of `mbit` Mbit/s leads to the servers of all jobs, which
compete for it. It sets ECN marks from `mark_from` waiting packets on. `virtual` is virtual time, `udp` a
process.
"""

from __future__ import annotations

from typing import Any

from benchmarks import Column, Experiment, Size
from benchmarks.rivals.fairness import Scene, over_udp, simulated
from peelsum.wire import COMPILED_LANES

PLAYED = {"virtual": simulated, "udp": over_udp}


def measure(
    seed: int, ports: str, jobs: int, workers: int, lanes: int, mbit: float, mark_from: int, seconds: float
) -> dict[str, Any]:
    """Run one scene."""
    shape = {"workers": workers, "lanes": lanes, "mbit": mbit, "mark_from": mark_from}
    shares = PLAYED[ports](Scene(jobs, **shape, settle_s=seconds / 4, seconds=seconds))  # type: ignore[arg-type]
    return {
        "chunks_per_s": tuple(round(rate, 1) for rate in shares.chunks_per_s),
        "fairness": round(shares.fairness, 4),
        "used": round(shares.used, 4),
        "queue_mean": round(shares.queue.mean, 1),
        "queue_deepest": shares.queue.deepest,
        "queue_dropped": shares.queue.dropped,
        "wrong": shares.wrong,
    }


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
    defaults={"ports": tuple(PLAYED), "workers": 2, "lanes": 256, "mbit": 20.0, "mark_from": 64},
    sizes={
        "quick": Size([{"ports": "virtual", "jobs": 2, "seconds": 0.5}], 1),
        "usual": Size([{"jobs": (2, 4), "seconds": 4.0}], 1),
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
