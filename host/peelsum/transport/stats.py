"""Statistics of the endpoint and the server, as plain values for people and for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WorkerStats:
    """One worker's packets and round-trip times."""

    contributions: int
    """Chunks sent for the first time."""
    resends: int
    """RETRY and RESEND packets sent."""
    results: int
    """Results accepted."""
    duplicates: int
    """Results of chunks that already had theirs."""
    lost: int
    """Contributions found lost because later chunks got their results."""
    timeouts: int
    """Chunks retransmitted by the resend timer."""
    needs: int
    """NEED packets received."""
    marked: int
    """Results that carried an ECN mark (CE)."""
    window: int
    """Congestion window, in chunks."""
    window_cuts: int
    """How often the congestion window was cut."""
    dropped: dict[str, int]
    """Packets dropped, by reason."""
    rtt_mean: float | None
    """Mean round-trip time in seconds; None before the first sample."""
    rtt_least: float | None
    """Shortest round-trip time in seconds; None before the first sample."""
    rtt_most: float | None
    """Longest round-trip time in seconds; None before the first sample."""


def added(planes: Sequence[WorkerStats]) -> WorkerStats:
    """Return the statistics of one worker in all its planes.

    Numbers of packets, chunks and windows add up. The mean round-trip time is weighted by results.
    """
    if len(planes) == 1:
        return planes[0]
    whole = {name: sum(getattr(plane, name) for plane in planes) for name in _NUMBERS}
    measured = [plane for plane in planes if plane.rtt_mean is not None]
    results = sum(plane.results for plane in measured)
    return WorkerStats(
        **whole,
        dropped={reason: sum(plane.dropped[reason] for plane in planes) for reason in planes[0].dropped},
        rtt_mean=sum((plane.rtt_mean or 0.0) * plane.results for plane in measured) / results
        if results
        else None,
        rtt_least=min((plane.rtt_least or 0.0 for plane in measured), default=None),
        rtt_most=max((plane.rtt_most or 0.0 for plane in measured), default=None),
    )


#: The fields of `WorkerStats` that are numbers of packets or chunks.
_NUMBERS = [field.name for field in fields(WorkerStats) if field.type == "int"]


@dataclass(frozen=True)
class ServerStats:
    """One job's chunks and packets at its aggregation server."""

    chunks_in_switch: int
    """Chunks that arrived complete."""
    chunks_at_server: int
    """Chunks that the server completed from partial sums."""
    packets: int
    """Packets received."""
    merged: int
    """Packets combined with the server's partial sum."""
    duplicates: int
    """Packets of complete chunks, or whose workers were all in the chunk's sum already."""
    overlaps: int
    """Partial sums dropped because only some of their workers were in the chunk's sum already."""
    results: int
    """Results sent to all workers."""
    replies: int
    """Results sent to one worker."""
    replies_withheld: int
    """Replies not sent because less than `reply_gap` before, the same one left to the worker, or to all."""
    resends: int
    """RESEND packets sent to switches."""
    needs: int
    """NEED packets sent to workers."""
    dropped: dict[str, int]
    """Packets dropped, by reason."""


def counted(counts: NDArray[np.int64], names: Iterable[IntEnum]) -> dict[str, int]:
    """Return the named counters by their names, as the fields of statistics are called."""
    return {name.name.lower(): int(counts[name]) for name in names}
