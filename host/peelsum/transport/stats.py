"""What the endpoint and the server counted, as plain values for people and for JSON."""

from __future__ import annotations

from dataclasses import dataclass

from peelsum.transport.events import named


@dataclass(frozen=True)
class WorkerStats:
    """One worker's packets and round-trip times (seconds, None before the first measured one)."""

    contributions: int
    resends: int
    results: int
    duplicates: int
    lost: int
    timeouts: int
    needs: int
    marked: int
    window: int
    window_cuts: int
    dropped: dict[str, int]
    rtt_mean: float | None
    rtt_least: float | None
    rtt_most: float | None


@dataclass(frozen=True)
class ServerStats:
    """One job's chunks and packets at its aggregation server.

    `chunks_in_switch` arrived complete; `chunks_at_server` were completed here, from partial sums.
    """

    chunks_in_switch: int
    chunks_at_server: int
    packets: int
    merged: int
    duplicates: int
    overlaps: int
    results: int
    replies: int
    replies_withheld: int
    resends: int
    needs: int
    dropped: dict[str, int]


@dataclass(frozen=True)
class Progress:
    """Where a job stands at its server. `oldest_chunk` is None when no chunk is incomplete there.

    `last_seen`: how many seconds ago something of each missing worker's last came, None for never.
    `racks`: how many racks the job has, 0 with one level.
    """

    job_id: int
    chunks_complete: int
    chunks_incomplete: int
    oldest_chunk: int | None
    missing_workers: tuple[int, ...]
    last_seen: tuple[float | None, ...] = ()
    racks: int = 0

    def __str__(self) -> str:
        done = f"job {self.job_id}: {self.chunks_complete} chunks summed"
        if self.oldest_chunk is None:
            return done
        who = named(self.missing_workers, self.last_seen, self.racks)
        return (
            f"{done}, {self.chunks_incomplete} incomplete; oldest {self.oldest_chunk} waits for worker {who}"
        )
