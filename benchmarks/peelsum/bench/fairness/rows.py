"""How jobs share a port of the switch, in virtual time and over UDP."""

from __future__ import annotations

from typing import Any

from peelsum.bench.fairness.scene import Shares
from peelsum.bench.fairness.udp import over_udp
from peelsum.bench.fairness.virtual import simulated

PLAYED = {"virtual": simulated, "udp": over_udp}


def figures(shares: Shares) -> dict[str, Any]:
    """Return the columns of `peelsum bench fairness`."""
    return {
        "chunks_per_s": tuple(round(rate, 1) for rate in shares.chunks_per_s),
        "fairness": round(shares.fairness, 4),
        "used": round(shares.used, 4),
        "queue_mean": round(shares.queue.mean, 1),
        "queue_deepest": shares.queue.deepest,
        "queue_dropped": shares.queue.dropped,
        "wrong": shares.wrong,
    }
