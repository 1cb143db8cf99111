"""`peelsum bench fairness`: measure how jobs share a port of the switch, in virtual time and over UDP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peelsum.bench.fairness.scene import Scene, Shares
from peelsum.bench.fairness.udp import over_udp
from peelsum.bench.fairness.virtual import simulated

_PLAYED = {"virtual": simulated, "udp": over_udp}


@dataclass(frozen=True)
class Row:
    """One measurement of a number of jobs."""

    ports: str
    """Virtual time ("virtual") or UDP ("udp")."""
    jobs: int
    workers: int
    """Workers per job."""
    lanes: int
    mbit: float
    """Rate of every port in Mbit/s."""
    mark_from: int
    """Packets in a port's queue from which on it sets ECN marks."""
    chunks_per_s: tuple[float, ...]
    """Chunks summed per second, by job."""
    fairness: float
    """Jain's index of `chunks_per_s`."""
    used: float
    """Share of the servers' port's capacity that was used."""
    queue_mean: float
    """Mean queue at the servers' port, in packets, since its start."""
    queue_deepest: int
    """Deepest queue at the servers' port, in packets, since its start."""
    queue_dropped: int
    """Packets dropped at the servers' port since its start."""
    wrong: int
    """Sums with a wrong bit."""


def bench_fairness(
    *,
    jobs: Sequence[int] = (2, 4),
    workers: int = 2,
    lanes: int = 256,
    mbit: float = 20.0,
    mark_from: int = 64,
    seconds: float = 4.0,
) -> list[Row]:
    """Measure every number of jobs; return the rows, which count wrong sums.

    Raises TopologyError if a component fails.
    """
    scenes = [
        Scene(
            count,
            workers=workers,
            lanes=lanes,
            mbit=mbit,
            mark_from=mark_from,
            settle_s=seconds / 4,
            seconds=seconds,
        )
        for count in jobs
    ]
    return [_row(ports, scene, play(scene)) for scene in scenes for ports, play in _PLAYED.items()]


def _row(ports: str, scene: Scene, shares: Shares) -> Row:
    return Row(
        ports=ports,
        jobs=scene.jobs,
        workers=scene.workers,
        lanes=scene.lanes,
        mbit=scene.mbit,
        mark_from=scene.mark_from,
        chunks_per_s=tuple(round(rate, 1) for rate in shares.chunks_per_s),
        fairness=round(shares.fairness, 4),
        used=round(shares.used, 4),
        queue_mean=round(shares.queue.mean, 1),
        queue_deepest=shares.queue.deepest,
        queue_dropped=shares.queue.dropped,
        wrong=shares.wrong,
    )
