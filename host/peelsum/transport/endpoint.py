"""A worker's end of the protocol, without socket or clock: tensors in, packets out, results in, sums out.

Theory of operation. A tensor is cut into chunks. The window slides over the chunks of all tensors in order of
submission. `base` is the oldest chunk without its result, W the most chunks outstanding.

| event | action |
|---|---|
| chunk < base + W, unanswered < cwnd <= W | CONTRIBUTION, once |
| nothing received since the oldest chunk was sent, for twice a first answer's time | retransmit it alone |
| no new result for one and a half round trips | retransmit the oldest chunk; more if that helped |
| the result of the third chunk after a contributed one | retransmit the earlier chunk |
| the result of a packet sent after the first retransmission, or none for one and a half round trips | again |
| no result of a chunk for one and a half round trips after a later one | again; in silence, backing off |
| first retransmission of a chunk; later ones, if it is another worker's turn | RETRY |
| any other | RESEND |
| RESULT of this generation, sent chunk, new | store, advance, cwnd grows, or on CE is cut |
| chunks were lost at the first try | cwnd is at most twice what the path holds; see `congestion` |
| RESULT with FIN of a chunk sent without FIN | refuse it, report that a worker left |
| NEED naming this worker, sent chunk >= base - W | RESEND, or BYPASS if already answered |
| joined | go on at `layout.run_start` |
| always | contributions of [base - W, base + W) are kept |
| finish() and all results are there | a FIN chunk; leave on its result or after `linger` |

Chunks with an owner, of SCATTER and GATHER, differ: see "Owned chunks" in docs/reference/protocol.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.summation import Op
from peelsum.transport import congestion
from peelsum.transport import endpoint_kernels as kernels
from peelsum.transport.config import JobConfig, numbers_of
from peelsum.transport.endpoint_state import (
    GATHER,
    SCATTER,
    SUM,
    Clock,
    Column,
    Count,
    Cursor,
    WorkerState,
    new_state,
    with_room,
)
from peelsum.transport.errors import TransportConfigError
from peelsum.transport.events import Event, JobFinished, Stalled, TensorCompleted, WorkerLeft
from peelsum.transport.layout import rows_of, run_start
from peelsum.transport.stats import WorkerStats, counted
from peelsum.wire import Batch, Flag, packet_bytes
from peelsum.wire.mtu import required_mtu

#: Packets per batch: a socket sends as many in one system call.
BATCH = 64
#: All workers contribute one in so many chunks of a GATHER: see `endpoint_kernels.gather`.
PACE = 16
_FLAGS = {"add": Flag.NONE, "or": Flag.OR}
_COUNTS = [count for count in Count if count < Count.MALFORMED]
_DROPS = [count for count in Count if Count.MALFORMED <= count <= Count.OUT_OF_WINDOW]
_RECEIVED = [Count.RESULTS, Count.DUPLICATES, Count.NEEDS, *_DROPS]


@dataclass(eq=False)
class _Tensor:
    """A submitted tensor. `WorkerState.tensors` has the addresses of its words and its result."""

    ticket: int
    number: int
    words: NDArray[np.uint32]
    result: NDArray[np.uint32]


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
        self._mine = config.worker_ids.index(worker_id)
        #: What compiled loops read and change.
        self.state: WorkerState = new_state(config, worker_id)
        self._tensors: deque[_Tensor] = deque()
        self._tickets = 0
        self._scratch = np.zeros((BATCH, packet_bytes(config.lanes) // 4), np.uint32)
        self._pending: list[Event] = []
        self._collected = self._departed = 0
        self._leave_at: float | None = None
        self._finishing, self._linger_s = False, 0.0
        self.finished = False

    def limit_window(self, chunks: int) -> None:
        """Keep at most `chunks` outstanding, e.g. because the socket's buffer holds no more."""
        congestion.limit(self.state.congestion, chunks)

    def start_run(self, number: int) -> None:
        """Continue at a random position: this run's chunk ids then differ from earlier runs'.

        `number` is 32 random bits, equal in all workers. Chunks that an earlier run of the generation left
        in the switch's slots are then not added to. Raises TransportConfigError unless this worker has
        joined and submitted nothing since.
        """
        cursors = self.state.cursors
        end = int(cursors[Cursor.END])
        if self.outstanding or cursors[Cursor.RUN] != cursors[Cursor.FIRST] or end == cursors[Cursor.FIRST]:
            raise TransportConfigError("start_run: join with one sum, and wait for its result, before it")
        start = run_start(end, number, self.config.window)
        cursors[Cursor.JOINED] = end
        cursors[[Cursor.BASE, Cursor.NEXT, Cursor.RUN, Cursor.END]] = start
        cursors[[Cursor.HIGHEST, Cursor.NEEDED]] = start - 1

    def submit(
        self,
        words: NDArray[np.uint32],
        op: Op,
        *,
        urgent: bool = False,
        result: NDArray[np.uint32] | None = None,
        collective: int = SUM,
        root: int | None = None,
    ) -> int:
        """Submit words uint32[n] to be combined over all workers by "add" (modulo 2**32) or "or".

        collective: SCATTER takes the pieces of all workers, end to end, and results in this worker's piece,
        uint32[n / workers]. GATHER, with "or", takes this worker's piece and results in those of all,
        uint32[n * workers]. With a `root`, the number of a worker from 0, GATHER results in the root's alone.
        urgent: whether the compiled loop returns for its result alone, not only once all results are there.
        result: contiguous uint32 of the result's length, which gets the result; None for new memory.
        Returns the ticket of the TensorCompleted event to come. `words` is not copied: leave it unchanged
        until then. Raises TransportConfigError for another dtype, shape, op or root, or after `finish`.
        """
        if self._finishing:
            raise TransportConfigError("submit: the job is being finished; submit before finish()")
        if op not in _FLAGS:
            raise TransportConfigError(f"op: {op!r} is unknown; use {' or '.join(_FLAGS)}")
        if words.dtype != np.uint32 or words.ndim != 1:
            raise TransportConfigError(
                f"words: {words.dtype}[{words.ndim} dimensions] given; pass uint32 of one dimension"
            )
        if not (words.flags.c_contiguous and words.flags.aligned):
            words = np.require(words, requirements=["C", "A"])
        workers = self.config.workers
        if root is not None and not 0 <= root < workers:
            raise TransportConfigError(f"root: {root} is no worker; give a number from 0 to {workers - 1}")
        pieces = 1 if collective == SUM or root is not None else workers
        size, remainder = divmod(words.size, pieces if collective == SCATTER else 1)
        if remainder or (collective == GATHER and op != "or"):
            raise TransportConfigError(
                f"words: {words.size} words, {op!r}: pass a reduce-scatter a piece of equal length for each "
                f"of {pieces} workers, and an all-gather or broadcast the op 'or'"
            )
        if result is None:
            result = buffers.empty(size * pieces if collective == GATHER else size, np.uint32)
        piece = self._mine if root is None else 0 if root == self._mine else -1
        tensor = self._append(words, result, size, _FLAGS[op], urgent, collective, pieces, piece)
        if tensor.number < 0:
            self._pending.append(TensorCompleted(tensor.ticket, tensor.result))
        return tensor.ticket

    def finish(self, now: float, linger_s: float | None = None) -> None:
        """Finish once all results are there, by a last chunk with FIN. No tensor can be submitted afterwards.

        JobFinished is reported at most `linger_s` after this worker's last result; None is `timers.linger`.
        """
        self._finishing = True
        self._linger_s = self.config.timers.linger if linger_s is None else linger_s
        self._start_leaving(now)

    def receive(self, batch: Batch, now: float) -> list[Event]:
        """Process received packets uint8[n, packet_bytes], of any content; return the events."""
        kernels.take(self.state, rows_of(batch), now)
        return self.collect(now)

    def collect(self, now: float) -> list[Event]:
        """Return the events of packets that were processed since the last call."""
        counts = self.state.counts
        departed, self._departed = self._departed, int(counts[Count.DEPARTED])
        events: list[Event] = [WorkerLeft(self.config.job_id)] if self._departed > departed else []
        if counts[Count.COMPLETED] > self._collected:
            self._collected = int(counts[Count.COMPLETED])
            if self.outstanding:
                unfinished = self.state.tensors[:, Column.LEFT]
                done = [tensor for tensor in self._tensors if not unfinished[tensor.number % len(unfinished)]]
                self._tensors = deque(tensor for tensor in self._tensors if tensor not in done)
            else:
                done, self._tensors = list(self._tensors), deque()
            events += map(self._completed, done)
        self._start_leaving(now)
        return events

    def to_send(self, now: float, limit: int = BATCH) -> Batch:
        """Return up to `limit` packets to send now, uint8[n, packet_bytes].

        The batch is valid until the next call. Call until it is empty.
        """
        if limit > len(self._scratch):
            self._scratch = np.zeros((limit, self._scratch.shape[1]), np.uint32)
        kernels.begin(self.state, now)
        count = kernels.resend(self.state, now, self._scratch[:limit])
        if count:
            return self._scratch[:count].view(np.uint8)
        count = kernels.gather(self.state, now, self._scratch[:limit])
        if count:
            return self._scratch[:count].view(np.uint8)
        first, count = kernels.contribute(self.state, limit, now)
        return self.state.packets[first : first + count].view(np.uint8)

    def expire(self, now: float) -> list[Event]:
        """Queue retransmissions, report a stall or leave, as is due. Call once `next_timer` has passed."""
        events, self._pending = self._pending, []
        kernels.expire(self.state, now)
        clock = self.state.clock
        if self._leave_at is not None and now >= self._leave_at and not self.finished:
            self.finished = True
            events.append(JobFinished(self.config.job_id, confirmed=False))
        elif now - clock[Clock.MOVED] >= self.config.timers.stall:
            events.append(self.stalled(now))
            clock[Clock.MOVED] = now
        return events

    def next_timer(self) -> float | None:
        """Return when to call `expire` if nothing arrives before, or None for never."""
        if self.finished and not self._pending:
            return None
        due = min(self.next_report(), kernels.next_due(self.state))
        return due if due < np.inf else None

    def next_report(self) -> float:
        """Return when `expire` has events to return if nothing arrives before; infinity for never."""
        if self._pending:
            return 0.0
        leave_at = np.inf if self._leave_at is None or self.finished else self._leave_at
        return float(min(self.state.clock[Clock.MOVED] + self.config.timers.stall, leave_at))

    @property
    def outstanding(self) -> int:
        """Number of submitted chunks from the oldest one without a result on."""
        cursors = self.state.cursors
        return int(cursors[Cursor.END] - cursors[Cursor.BASE])

    def stalled(self, now: float) -> Stalled:
        """Return a `Stalled` event that describes the current wait."""
        cursors, moved_at = self.state.cursors, float(self.state.clock[Clock.MOVED])
        known = cursors[Cursor.NEEDED] == cursors[Cursor.BASE]
        missing = numbers_of(self.state.missing) if known else ()
        waited = now - moved_at if moved_at < np.inf else 0.0
        oldest, racks = int(cursors[Cursor.BASE]) & 0xFFFFFFFF, len(self.config.racks)
        return Stalled(
            self.config.job_id,
            oldest,
            missing,
            waited,
            racks=racks,
            generation=self.config.generation,
            mtu=0 if self.state.counts[_RECEIVED].any() else required_mtu(packet_bytes(self.config.lanes)),
        )

    def stats(self) -> WorkerStats:
        """Return the counts since the start."""
        counts, clock = self.state.counts, self.state.clock
        measured = clock[Clock.RTT_SAMPLES] > 0
        return WorkerStats(
            **counted(counts, _COUNTS),
            window=congestion.size(self.state.congestion),
            window_cuts=congestion.cuts(self.state.congestion),
            dropped=counted(counts, _DROPS),
            rtt_mean=float(clock[Clock.RTT_SUM] / clock[Clock.RTT_SAMPLES]) if measured else None,
            rtt_least=float(clock[Clock.RTT_LEAST]) if measured else None,
            rtt_most=float(clock[Clock.RTT_MOST]) if measured else None,
        )

    def _append(
        self,
        words: NDArray[np.uint32],
        result: NDArray[np.uint32],
        size: int,
        flags: Flag,
        urgent: bool = False,
        collective: int = SUM,
        pieces: int = 1,
        piece: int = 0,
    ) -> _Tensor:
        """Append a tensor to those to be sent; the last three are as in `Column`."""
        tensor = _Tensor(self._tickets, -1, words, result)
        chunks = pieces * max(-(-size // self.config.lanes), int(bool(flags & Flag.FIN)))
        self._tickets += 1
        if not chunks:
            return tensor
        self.state = state = with_room(self.state)
        cursors = state.cursors
        start, tensor.number = int(cursors[Cursor.END]), int(cursors[Cursor.TENSOR_END])
        addresses = words.ctypes.data, tensor.result.ctypes.data
        serial, window = start & 0xFFFFFFFF, self.config.window
        # A chunk's id gives its owner, so ids must not wrap within the tensor.
        if collective == SCATTER and not self.config.racks and serial + chunks <= 1 << 32:
            flags |= Flag.OWNED
        pace = PACE if window >= 4 * PACE else 1
        reach = window // 2 - pace if pace > 1 else window
        turn = serial % pieces
        row = start, start + chunks, chunks, flags, size, *addresses, urgent, collective, pieces, piece, turn
        state.tensors[tensor.number % len(state.tensors)] = (*row, pace, reach)
        cursors[Cursor.END] += chunks
        cursors[Cursor.TENSOR_END] += 1
        self._tensors.append(tensor)
        return tensor

    def _completed(self, tensor: _Tensor) -> Event:
        if self._leave_at is None:
            return TensorCompleted(tensor.ticket, tensor.result)
        self.finished = True
        return JobFinished(self.config.job_id, confirmed=True)

    def _start_leaving(self, now: float) -> None:
        """Submit the FIN chunk once every result is there. Its result means that all workers have theirs."""
        if self._finishing and self._leave_at is None and not self.outstanding:
            none = np.zeros(0, np.uint32)
            self._append(none, none, 0, Flag.FIN)
            self._leave_at = now + self._linger_s
