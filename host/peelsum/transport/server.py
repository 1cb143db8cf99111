"""The aggregation server of one job: it completes the sums that the switch could not.

It has no socket and no clock: the caller passes in packets and the time, and sends `to_send`'s packets.

Theory of operation. For each chunk the server keeps its sum so far, acc, and the set H of workers in that
sum. An arriving packet has the words d and the set P of workers in it: whole racks if its flag SPINE is set,
else workers of the sender's rack. W is the window, and N the newest complete chunk. The same rules hold for
one level of switches and for two.

| event | action |
|---|---|
| malformed; another job, generation or kind; unknown workers, racks or level | drop, count |
| chunk is complete and kept | RESULT to the sender, or to all if P is several; once per `reply_gap` at most |
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
from peelsum.transport.layout import SERIAL_BASE, rows_of
from peelsum.transport.server_state import (
    Clock,
    CompleteSum,
    Count,
    Cursor,
    Identity,
    JoiningChunks,
    Waits,
    new_state,
)
from peelsum.transport.stats import Progress, ServerStats
from peelsum.wire import Batch, Flag, packet_bytes

BATCH = 64
_DROPS = (
    Count.MALFORMED,
    Count.FOREIGN_JOB,
    Count.WRONG_GENERATION,
    Count.UNEXPECTED_KIND,
    Count.FOREIGN_WORKER,
    Count.OUT_OF_WINDOW,
    Count.AHEAD_OF_WINDOW,
)


class AggregationServer:
    """The aggregation server of one generation of one job. The job's window bounds its memory."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        complete = CompleteSum(config.expected_mask, int(Flag.SPINE) if config.racks else 0)
        joining = JoiningChunks(SERIAL_BASE + config.first_chunk, config.joining_chunks)
        self.state = new_state(config.window, config.lanes, config.rack_masks, complete, joining)
        self.identity = Identity(config.job_id, config.generation)
        timers = config.timers
        self.waits = Waits(timers.need, timers.need_most, timers.reply_gap)
        self._scratch = np.zeros((BATCH, packet_bytes(config.lanes) // 4), np.uint32)
        self._report_at = -np.inf
        self._now = -np.inf
        self.finished = False

    def receive(self, batch: Batch, now: float) -> list[Event]:
        """Process received packets, uint8[n, packet_bytes] of any content; return the events."""
        kernels.take(self.state, rows_of(batch), self.identity, self.config.window, now, self.waits)
        return self.collect(now)

    def collect(self, now: float) -> list[Event]:
        """Return the events of packets processed since the last call; `now` is when the last one was."""
        self._now = now
        if self.state.cursors[Cursor.FINISHED] and not self.finished:
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
        timers = self.config.timers
        self._now = now
        kernels.expire(self.state, now, self.config.window, timers.need, timers.need_most)
        if now >= self._gives_up_at():
            self.finished = True
            return [JobFinished(self.config.job_id, confirmed=False)]
        if now < self._report_at:
            return []
        incomplete, row = kernels.oldest_incomplete(self.state, self.config.window)
        waited = now - self.state.since[row] if incomplete else 0.0
        if waited < timers.stall:
            return []
        self._report_at = now + timers.stall
        stand = self.progress(now)
        return [
            Stalled(
                self.config.job_id,
                stand.oldest_chunk or 0,
                stand.missing_workers,
                float(waited),
                last_seen=stand.last_seen,
                racks=len(self.config.racks),
            )
        ]

    def next_timer(self) -> float | None:
        """Return the time at which to call `expire` if no packet arrives before, or None for never."""
        due = min(kernels.next_due(self.state), self._gives_up_at())
        return due if due < np.inf else None

    def progress(self, now: float | None = None) -> Progress:
        """Return the job's progress as of `now`, by default the time of the last packet or timer."""
        state = self.state
        incomplete, row = kernels.oldest_incomplete(state, self.config.window)
        missing = numbers_of(state.expected & ~state.have[row]) if incomplete else ()
        return Progress(
            job_id=self.config.job_id,
            chunks_complete=self._complete(),
            chunks_incomplete=incomplete,
            oldest_chunk=int(state.position[row]) & 0xFFFFFFFF if incomplete else None,
            missing_workers=missing,
            last_seen=tuple(
                self._unseen_for(worker, self._now if now is None else now) for worker in missing
            ),
            racks=len(self.config.racks),
        )

    def stats(self) -> ServerStats:
        """Return the counts since the start."""
        counts = self.state.counts
        return ServerStats(
            chunks_in_switch=int(counts[Count.IN_SWITCH]),
            chunks_at_server=int(counts[Count.AT_SERVER]),
            packets=int(counts[Count.PACKETS]),
            merged=int(counts[Count.MERGED]),
            duplicates=int(counts[Count.DUPLICATES]),
            overlaps=int(counts[Count.OVERLAPS]),
            results=int(counts[Count.RESULTS]),
            replies=int(counts[Count.REPLIES]),
            replies_withheld=int(counts[Count.WITHHELD]),
            resends=int(counts[Count.RESENDS]),
            needs=int(counts[Count.NEEDS]),
            dropped={reason.name.lower(): int(counts[reason]) for reason in _DROPS},
        )

    def _gives_up_at(self) -> float:
        """Return when to stop waiting for workers whose FIN has not come; infinity for never.

        They may have left: a worker without its result of the FIN chunk does so after `linger`.
        """
        fin_at = float(self.state.clock[Clock.FIN])
        return np.inf if self.finished or fin_at == -np.inf else fin_at + self.config.timers.stall

    def _unseen_for(self, worker: int, now: float) -> float | None:
        """Return the seconds since a worker's last contribution, or None if there was none."""
        seen_at = float(max(self.state.heard_at[worker], self.state.heard_at[-1]))
        return max(0.0, now - seen_at) if seen_at > -np.inf else None

    def _complete(self) -> int:
        counts = self.state.counts
        return int(counts[Count.IN_SWITCH] + counts[Count.AT_SERVER])
