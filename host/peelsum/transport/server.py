"""The aggregation server of one job: it completes the sums that the switch could not.

It has no socket and no clock: the caller passes in packets and the time, and sends `to_send`'s packets.

Theory of operation. For each chunk the server keeps its sum so far, acc, and the set H of workers in that
sum. An arriving packet has the words d and the set P of workers in it: whole racks if its flag SPINE is set,
else workers of the sender's rack. W is the window, and N the newest complete chunk. The same rules hold for
one level of switches and for two.

| event | action |
|---|---|
| malformed; another job, generation or kind; unknown workers, racks or level | drop, count |
| chunk is complete and kept | RESULT to the sender, or to all if P is several or it was the sender's turn |
| a chunk three later is complete; first part, or H contains P | request the missing parts at once |
| chunk not within (N - W, N + W] | drop, count; see `server_rows` |
| P and H disjoint | acc += d (or \\|= d), H \\|= P |
| P contains H | acc = d, H = P |
| H contains P | drop, count |
| overlap, OR | acc \\|= d, H \\|= P |
| overlap, ADD | drop, count |
| H is all workers | keep as the result (2 W are kept), RESULT to all, with CE if any part had it |
| H is incomplete and the chunk's timer expires | request the missing parts |
| a part had FIN, and no part has had it for `stall` | the job is over: a worker left without its FIN |

A request is a RESEND to the switch, which then gives up its partial sum of the chunk. With two levels it goes
to the spine and to the switch of each incomplete rack. From the second request on, all workers also get a
NEED that names the missing workers; a waiting worker names them in its error.

The timer first expires after `need`, then after longer pauses, up to `need_most`. After eight requests, each
further packet of the chunk causes at most one more.

A server that lost its state restarts as a new object of the same generation. Workers resend missing chunks.

Chunks with an owner differ: see "Owned chunks" in docs/reference/protocol.md.
"""

from __future__ import annotations

import numpy as np

from peelsum.transport import server_kernels as kernels
from peelsum.transport.config import JobConfig, numbers_of
from peelsum.transport.events import Event, JobFinished, Stalled
from peelsum.transport.layout import rows_of
from peelsum.transport.server_state import (
    ServerClock,
    ServerCount,
    ServerCursor,
    new_state,
)
from peelsum.transport.stats import ServerStats, counted
from peelsum.wire import Batch, packet_bytes

BATCH = 64
_COUNTS = [count for count in ServerCount if count < ServerCount.MALFORMED]
_DROPS = [count for count in ServerCount if count >= ServerCount.MALFORMED]


class AggregationServer:
    """The aggregation server of one generation of one job. The job's window bounds its memory."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.state = new_state(config)
        self._scratch = np.zeros((BATCH, packet_bytes(config.lanes) // 4), np.uint32)
        self._report_at = -np.inf
        self.finished = False

    def receive(self, batch: Batch, now: float) -> list[Event]:
        """Process received packets, uint8[n, packet_bytes] of any content; return the events."""
        kernels.take(self.state, rows_of(batch), now)
        return self.collect()

    def collect(self) -> list[Event]:
        """Return the events of packets processed since the last call."""
        if self.state.cursors[ServerCursor.FINISHED] and not self.finished:
            self.finished = True
            return [JobFinished(self.config.job_id, confirmed=True)]
        return []

    def to_send(self, now: float, limit: int = BATCH) -> Batch:
        """Return up to `limit` packets to send now, uint8[n, packet_bytes].

        The batch is valid until the next call. Call until it is empty.
        """
        if limit > len(self._scratch):
            self._scratch = np.zeros((limit, self._scratch.shape[1]), np.uint32)
        count = kernels.send(self.state, self._scratch[:limit])
        return self._scratch[:count].view(np.uint8)

    def expire(self, now: float) -> list[Event]:
        """Request missing parts, report a stall or finish, if due. Call once `next_timer` has passed."""
        kernels.expire(self.state, now)
        if now >= self._gives_up_at():
            self.finished = True
            return [JobFinished(self.config.job_id, confirmed=False)]
        if now < self._report_at:
            return []
        stall = self.stalled(now)
        if stall is None or stall.seconds < self.config.timers.stall:
            return []
        self._report_at = now + self.config.timers.stall
        return [stall]

    def next_timer(self) -> float | None:
        """Return the time at which to call `expire` if no packet arrives before, or None for never."""
        due = min(kernels.next_due(self.state), self._gives_up_at())
        return due if due < np.inf else None

    def stalled(self, now: float) -> Stalled | None:
        """Return a `Stalled` event that describes the wait for the oldest incomplete chunk, or None."""
        state = self.state
        row = kernels.oldest_incomplete(state)
        if row < 0:
            return None
        missing = numbers_of(state.expected & ~state.have[row])
        return Stalled(
            self.config.job_id,
            int(state.position[row]) & 0xFFFFFFFF,
            missing,
            float(now - state.since[row]),
            last_seen=tuple(self._unseen_for(worker, now) for worker in missing),
            racks=len(self.config.racks),
        )

    def stats(self) -> ServerStats:
        """Return the counts since the start."""
        counts = self.state.counts
        return ServerStats(**counted(counts, _COUNTS), dropped=counted(counts, _DROPS))

    def _gives_up_at(self) -> float:
        """Return when to stop waiting for workers whose FIN has not come; infinity for never.

        They may have left: a worker without its result of the FIN chunk does so after `linger`.
        """
        fin_at = float(self.state.clock[ServerClock.FIN])
        return np.inf if self.finished or fin_at == -np.inf else fin_at + self.config.timers.stall

    def _unseen_for(self, worker: int, now: float) -> float | None:
        """Return the seconds since a worker's last contribution, or None if there was none."""
        seen_at = float(max(self.state.heard_at[worker], self.state.heard_at[-1]))
        return max(0.0, now - seen_at) if seen_at > -np.inf else None
