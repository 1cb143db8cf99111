"""A worker's end of the protocol, without socket or clock: tensors in, packets out, results in, sums out.

Theory of operation. A tensor is cut into chunks. The window slides over the chunks of all tensors in order of
submission. `base` is the oldest chunk without its result, W the most chunks outstanding.

| event | action |
|---|---|
| chunk < base + W, unanswered < cwnd <= W | CONTRIBUTION, once |
| nothing received for `first_answer` since the oldest chunk was sent | RESEND that chunk alone, backing off |
| no new result for the measured timer | RESEND the oldest chunk, backing off; more if that helped |
| the result of the third chunk after a contributed one | RESEND the earlier chunk |
| the result of a packet sent after a RESEND, or none for half that timer | RESEND that chunk again |
| RESULT of this generation, sent chunk, new | store, advance, cwnd grows, or on CE is cut |
| chunks were lost at the first try | cwnd is W / 4 at the most, or halves if they are more than half |
| RESULT with FIN of a chunk sent without FIN | refuse it, report that a worker left |
| NEED naming this worker, sent chunk >= base - W | RESEND, even if already answered |
| joined | go on at `layout.run_start` |
| always | contributions of [base - W, base + W) are kept |
| finish() and all results are there | a FIN chunk; leave on its result or after `linger` |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.summation import Op
from peelsum.transport import endpoint_kernels as kernels
from peelsum.transport.config import JobConfig, numbers_of
from peelsum.transport.congestion import CongestionWindow
from peelsum.transport.endpoint_state import Clock, Count, Identity, Mark, TimerLimits, new_state
from peelsum.transport.errors import TransportConfigError
from peelsum.transport.events import Event, JobFinished, Stalled, TensorCompleted, WorkerLeft
from peelsum.transport.layout import SERIAL_BASE, Words, header_row, rows_of, run_start
from peelsum.transport.stats import WorkerStats
from peelsum.wire import MAX_WORKERS, Batch, Flag, Kind, malformed, packet_bytes

#: Packets per batch: a socket sends as many in one system call.
BATCH = 64
_FLAGS = {"add": Flag.NONE, "or": Flag.OR}
_DROPS = (
    Count.MALFORMED,
    Count.FOREIGN_JOB,
    Count.WRONG_GENERATION,
    Count.UNEXPECTED_KIND,
    Count.OUT_OF_WINDOW,
)


@dataclass(eq=False)
class _Tensor:
    """A submitted tensor: chunks [start, stop) by position."""

    ticket: int
    start: int
    stop: int
    header: Words
    words: NDArray[np.uint32]
    result: NDArray[np.uint32]
    outstanding: int


class WorkerEndpoint:
    """Worker `worker_id` of a job. All workers submit tensors of equal lengths and ops in the same order.

    Raises TransportConfigError if the job has no such worker.
    """

    def __init__(self, config: JobConfig, worker_id: int) -> None:
        if worker_id not in config.worker_ids:
            have = ", ".join(map(str, config.worker_ids)) if config.racks else f"0 to {config.workers - 1}"
            raise TransportConfigError(f"worker_id: {worker_id} is not one of the job's workers; give {have}")
        self.config = config
        self.worker_id = worker_id
        first, racks = SERIAL_BASE + config.first_chunk, len(config.rack_masks)
        rack, place = divmod(worker_id, MAX_WORKERS)
        self._mask = 1 << place
        self._identity = Identity(config.job_id, config.generation, rack if config.racks else -1, self._mask)
        self._limits = TimerLimits(config.timers.resend_least, config.timers.resend_most)
        self._state = new_state(config.window, config.lanes, racks, first, config.timers.first_answer)
        self._end = first
        self._tensors: deque[_Tensor] = deque()
        self._unpacked: deque[_Tensor] = deque()
        self._tickets = 0
        self._window = CongestionWindow(config.window, config.initial_window)
        self._scratch = np.zeros((BATCH, packet_bytes(config.lanes) // 4), np.uint32)
        self._pending: list[Event] = []
        self._moved_at: float | None = None
        self._leave_at: float | None = None
        self._finishing = False
        self.finished = False

    def limit_window(self, chunks: int) -> None:
        """Keep at most `chunks` outstanding, e.g. because the socket's buffer holds no more."""
        self._window.limit(chunks)

    def start_run(self, number: int) -> None:
        """Continue at a random position, so that this run's chunk ids differ from those of earlier runs.

        `number` is 32 random bits, equal in all workers. Chunks that an earlier run of the generation left
        in the switch's slots are then not added to. Raises TransportConfigError unless this worker has
        joined and submitted nothing since.
        """
        marks = self._state.marks
        if self.outstanding or marks[Mark.RUN] != marks[Mark.FIRST] or self._end == marks[Mark.FIRST]:
            raise TransportConfigError("start_run: join with one sum, and wait for its result, before it")
        start = run_start(self._end, number, self.config.window)
        marks[Mark.JOINED] = self._end
        marks[[Mark.BASE, Mark.NEXT, Mark.RUN]] = start
        marks[[Mark.HIGHEST, Mark.NEEDED]] = start - 1
        self._end = start

    def submit(self, words: NDArray[np.uint32], op: Op) -> int:
        """Submit words uint32[n] to be combined over all workers by "add" (modulo 2**32) or "or".

        Returns the ticket of the TensorCompleted event to come. `words` is not copied: leave it unchanged
        until then. Raises TransportConfigError for another dtype, shape or op, or after `finish`.
        """
        if self._finishing:
            raise TransportConfigError("submit: the job is being finished; submit before finish()")
        if op not in _FLAGS:
            raise TransportConfigError(f"op: {op!r} is unknown; use {' or '.join(_FLAGS)}")
        if words.dtype != np.uint32 or words.ndim != 1:
            raise TransportConfigError(
                f"words: {words.dtype}[{words.ndim} dimensions] given; pass uint32 of one dimension"
            )
        words = np.ascontiguousarray(words)
        tensor = self._append(words, -(-words.size // self.config.lanes), _FLAGS[op])
        if not tensor.outstanding:
            self._pending.append(TensorCompleted(tensor.ticket, tensor.result))
        return tensor.ticket

    def finish(self, now: float) -> None:
        """Finish once all results are there, by a last chunk with FIN. No tensor can be submitted afterwards.

        JobFinished is reported at most `linger` seconds after this worker's last result.
        """
        self._finishing = True
        self._start_leaving(now)

    def receive(self, batch: Batch, now: float) -> list[Event]:
        """Process received packets uint8[n, packet_bytes], of any content; return the events."""
        state = self._state
        rows, before = rows_of(batch), state.counts.copy()
        at = np.empty(len(rows), np.int64)
        kernels.take(
            state,
            rows,
            malformed(batch, self.config.lanes),
            self._identity,
            self.config.window,
            now,
            self._limits,
            at,
        )
        gained = state.counts - before
        events: list[Event] = [WorkerLeft(self.config.job_id)] if gained[Count.DEPARTED] else []
        if not gained[Count.RESULTS]:
            return events
        self._moved_at = now if self.outstanding else None
        self._window.on_results(int(gained[Count.RESULTS]), bool(gained[Count.MARKED]), *self._span())
        if gained[Count.LOST]:
            self._window.on_losses(int(gained[Count.LOST]), *self._span())
        return events + self._deliver(rows, at, now)

    def to_send(self, now: float, limit: int = BATCH) -> Batch:
        """Return up to `limit` packets to send now, uint8[n, packet_bytes].

        The batch is valid until the next call. Call until it is empty.
        """
        if self._moved_at is None and self.outstanding:
            self._moved_at = now
        if limit > len(self._scratch):
            self._scratch = np.zeros((limit, self._scratch.shape[1]), np.uint32)
        count = kernels.resend(self._state, now, self._scratch[:limit])
        packets = self._scratch[:count] if count else self._contribute(now, limit)
        return packets.view(np.uint8)

    def expire(self, now: float) -> list[Event]:
        """Queue retransmissions, report a stall or leave, as is due. Call once `next_timer` has passed."""
        timers = self.config.timers
        events, self._pending = self._pending, []
        losses = kernels.expire(self._state, now, timers.first_answer, timers.resend_most)
        if losses:
            self._window.on_losses(losses, *self._span())
        if self._leave_at is not None and now >= self._leave_at and not self.finished:
            self.finished = True
            events.append(JobFinished(self.config.job_id, confirmed=False))
        elif self._moved_at is not None and now - self._moved_at >= timers.stall:
            events.append(self.stalled(now))
            self._moved_at = now
        return events

    def next_timer(self) -> float | None:
        """Return when to call `expire` if nothing arrives before, or None for never."""
        if self._pending:
            return 0.0
        if self.finished:
            return None
        timers = self.config.timers
        due = kernels.next_due(self._state, timers.first_answer, timers.resend_most)
        if self._leave_at is not None:
            due = min(due, self._leave_at)
        if self._moved_at is not None:
            due = min(due, self._moved_at + timers.stall)
        return due if due < np.inf else None

    @property
    def outstanding(self) -> int:
        """Number of submitted chunks from the oldest one without a result on."""
        return self._end - int(self._state.marks[Mark.BASE])

    def stalled(self, now: float) -> Stalled:
        """Return a `Stalled` event that describes the current wait."""
        marks = self._state.marks
        known = marks[Mark.NEEDED] == marks[Mark.BASE]
        missing = numbers_of(self._state.missing) if known else ()
        waited = 0.0 if self._moved_at is None else now - self._moved_at
        oldest, racks = int(marks[Mark.BASE]) & 0xFFFFFFFF, len(self.config.racks)
        return Stalled(
            self.config.job_id, oldest, missing, waited, racks=racks, generation=self.config.generation
        )

    def stats(self) -> WorkerStats:
        """Return what was counted since the start."""
        counts, clock = self._state.counts, self._state.clock
        measured = clock[Clock.RTT_SAMPLES] > 0
        return WorkerStats(
            contributions=int(counts[Count.CONTRIBUTIONS]),
            resends=int(counts[Count.RESENDS]),
            results=int(counts[Count.RESULTS]),
            duplicates=int(counts[Count.DUPLICATES]),
            lost=int(counts[Count.LOST]),
            timeouts=int(counts[Count.TIMEOUTS]),
            needs=int(counts[Count.NEEDS]),
            marked=int(counts[Count.MARKED]),
            window=self._window.size,
            window_cuts=self._window.cuts,
            dropped={reason.name.lower(): int(counts[reason]) for reason in _DROPS},
            rtt_mean=float(clock[Clock.RTT_SUM] / clock[Clock.RTT_SAMPLES]) if measured else None,
            rtt_least=float(clock[Clock.RTT_LEAST]) if measured else None,
            rtt_most=float(clock[Clock.RTT_MOST]) if measured else None,
        )

    def _span(self) -> tuple[int, int]:
        return int(self._state.marks[Mark.BASE]), int(self._state.marks[Mark.NEXT])

    def _append(self, words: NDArray[np.uint32], chunks: int, flags: Flag) -> _Tensor:
        header = header_row(
            kind=Kind.CONTRIBUTION,
            flags=flags,
            job_id=self.config.job_id,
            generation=self.config.generation,
            sender=self.worker_id,
            bitmap=self._mask,
        )
        tensor = _Tensor(
            self._tickets, self._end, self._end + chunks, header, words, np.empty_like(words), chunks
        )
        self._tickets += 1
        self._end += chunks
        if chunks:
            self._tensors.append(tensor)
            self._unpacked.append(tensor)
        return tensor

    def _contribute(self, now: float, limit: int) -> Words:
        """Pack new chunks into the rows that keep them for retransmission; return these rows."""
        state = self._state
        base, position = self._span()
        row = position % len(state.packets)
        unanswered = int(state.counts[Count.CONTRIBUTIONS] - state.counts[Count.RESULTS])
        room = min(base + self.config.window, self._end) - position
        room = min(room, self._window.size - unanswered)
        count = left = max(0, min(room, limit, len(state.packets) - row))
        while left:
            tensor = self._unpacked[0]
            take = min(left, tensor.stop - position)
            offset = (position - tensor.start) * self.config.lanes
            kernels.contribute(state, tensor.header, tensor.words, offset, take, now)
            position, left = position + take, left - take
            if position == tensor.stop:
                self._unpacked.popleft()
        return state.packets[row : row + count]

    def _deliver(self, rows: Words, at: NDArray[np.int64], now: float) -> list[Event]:
        """Copy the sums with at[i] >= 0 to their tensors' results; return the events."""
        new = at[at >= 0]
        low, high = int(new.min()), int(new.max())
        events: list[Event] = []
        for tensor in self._tensors:
            if tensor.start > high:
                break
            if tensor.stop > low:
                tensor.outstanding -= kernels.store(
                    rows, at, tensor.start, tensor.stop, self.config.lanes, tensor.result
                )
                if not tensor.outstanding:
                    events.append(self._completed(tensor))
        while self._tensors and not self._tensors[0].outstanding:
            self._tensors.popleft()
        self._start_leaving(now)
        return events

    def _completed(self, tensor: _Tensor) -> Event:
        if self._leave_at is None:
            return TensorCompleted(tensor.ticket, tensor.result)
        self.finished = True
        return JobFinished(self.config.job_id, confirmed=True)

    def _start_leaving(self, now: float) -> None:
        """Submit the FIN chunk once every result is there. Its result means that all workers have theirs."""
        if self._finishing and self._leave_at is None and not self.outstanding:
            self._append(np.zeros(0, np.uint32), 1, Flag.FIN)
            self._leave_at = now + self.config.timers.linger
