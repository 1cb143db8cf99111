"""A worker's state: one array per property of a chunk, and the job's positions, counts and times.

Chunk `p` (a position, see `layout.unwrap`) has row `p % rows`. The protocol asks a worker to keep
rows = 2 * window chunks.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.transport.config import JobConfig
from peelsum.transport.congestion import Window, new_window
from peelsum.transport.layout import HEADER_WORDS, SERIAL_BASE, rows_of
from peelsum.wire import MAX_WORKERS, Kind, pack

#: Tensors for which a new state has room.
_TENSORS = 16


class Cursor(IntEnum):
    """Indices of positions and numbers in `WorkerState.cursors`."""

    FIRST = 0  # the generation's first chunk
    BASE = 1  # the oldest chunk without its result
    NEXT = 2  # the next chunk to contribute
    HIGHEST = 3  # the newest chunk with its result
    QUEUE_HEAD = 4
    QUEUE_TAIL = 5
    NEEDED = 6  # the chunk whose missing workers are known
    PROBES = 7  # how many chunks the resend timer resends at once
    RESULTS_BEFORE = 8  # results received when the timer last ran out
    JOINED = 9  # the first chunk after the joining chunks; FIRST until then
    RUN = 10  # the run's first chunk: FIRST, or as set by `start_run`
    END = 11  # the position after the last submitted chunk
    # Tensors are numbered in order of submission.
    TENSOR_OLDEST = 12  # the oldest tensor that lacks results
    TENSOR_PACKED = 13  # the tensor of the next chunk to contribute
    TENSOR_END = 14  # the next tensor to be submitted
    PLACE = 15  # this worker's number in its rack, or in the job
    PLACES = 16  # workers of its rack, or of the job
    BEGUN = 17  # number of chunks contributed, or left to their owner
    RESULTS_AT_TURN = 18  # results received when the worker last began to send


class Count(IntEnum):
    """Indices of counters in `WorkerState.counts`."""

    CONTRIBUTIONS = 0
    RESENDS = 1
    RESULTS = 2
    DUPLICATES = 3
    MARKED = 4  # results that carried CE
    LOST = 5  # contributions overtaken by later results
    TIMEOUTS = 6
    NEEDS = 7
    MALFORMED = 8  # from here to OUT_OF_WINDOW: packets dropped
    FOREIGN_JOB = 9
    WRONG_GENERATION = 10
    UNEXPECTED_KIND = 11
    OUT_OF_WINDOW = 12
    DEPARTED = 13  # results with the FIN of a worker that has finished
    COMPLETED = 14  # tensors with all their results
    URGENT = 15  # those of them whose result the caller waits for


class Clock(IntEnum):
    """Indices of times and round-trip times, in seconds, in `WorkerState.clock`."""

    QUIET_SINCE = 0  # when a new result last arrived, or the wait for one began
    USUAL = 1  # the RTT without slow workers, negative before the first sample
    RTT_LEAST = 2
    RTT_MOST = 3
    RTT_LAST = 4
    RTT_SUM = 5
    RTT_SAMPLES = 6
    ANSWERED = 7  # when the latest of the answered packets was sent
    MOVED = 8  # when a new result last arrived, or chunks were first outstanding; infinity if none are
    BEGAN = 9  # when the first chunk after an idle time was sent; infinity once any is answered
    FIRST_ANSWER = 10  # how long the first answer after an idle time takes
    SILENCE = 11  # the usual time between new results; the first after an idle time does not count


class Column(IntEnum):
    """Indices of a submitted tensor's numbers in a row of `WorkerState.tensors`."""

    START = 0  # its chunks are [START, STOP), by position
    STOP = 1
    LEFT = 2  # chunks without their results
    FLAGS = 3
    SIZE = 4  # words
    WORDS = 5  # address of the words to be sent
    RESULT = 6  # address of the words to be received
    URGENT = 7  # 1 if the caller waits for its result: loops then return
    COLLECTIVE = 8  # SUM, SCATTER or GATHER
    PIECES = 9  # its chunks are of so many pieces in turn: 1, or one of each worker
    MINE = 10  # the piece that this worker owns; -1 if none
    TURN = 11  # chunk START + i is of piece (i + TURN) mod PIECES
    PACE = 12  # of a GATHER: all workers contribute every so many chunks, beginning with the first
    REACH = 13  # of a GATHER: how many chunks may be begun, from the oldest one without its result on


#: What workers do with a tensor's words. SUM: combine all. SCATTER: combine all, and give each piece to its
#: owner. GATHER: give each piece, its owner's words, to all.
SUM, SCATTER, GATHER = 0, 1, 2


class Settings(NamedTuple):
    """The worker and its job, as packets name them; the job's window; and times in seconds."""

    job_id: int
    generation: int
    rack: int  # -1 with one level
    worker_mask: int
    window: int  # most outstanding chunks
    least: float  # the least wait of a chunk that was retransmitted many times
    most: float  # the longest wait before a retransmission
    patience: float  # the wait for the first answer


class WorkerState(NamedTuple):
    """One array per property of a chunk, one row per chunk kept; the job's settings, positions and counts."""

    settings: Settings
    packets: NDArray[np.uint32]  # [rows, words]: contributions as sent
    answered: NDArray[np.bool_]  # [rows]
    early: NDArray[np.int64]  # [rows]: the chunk whose result came before this worker began it
    queued: NDArray[np.uint8]  # [rows]: OWN_DOUBT or NEEDED while in the queue
    tries: NDArray[np.int64]  # [rows]: retransmissions so far
    sent_at: NDArray[np.float64]  # [rows]
    queue: NDArray[np.int64]  # [rows]: ring of positions to retransmit
    missing: NDArray[np.int64]  # [racks]: the workers that the last NEED for chunk NEEDED named
    cursors: NDArray[np.int64]  # [Cursor]
    counts: NDArray[np.int64]  # [Count]
    clock: NDArray[np.float64]  # [Clock]
    congestion: Window
    header: NDArray[np.uint32]  # [HEADER_WORDS]: of a contribution without flags
    tensors: NDArray[np.int64]  # [room, Column]: a ring; tensor t has row t % room


def new_state(config: JobConfig, worker_id: int) -> WorkerState:
    """Return the state of a worker that has sent nothing."""
    rows, first = 2 * config.window, SERIAL_BASE + config.first_chunk
    rack, place = divmod(worker_id, MAX_WORKERS)
    timers, own_rack = config.timers, rack if config.racks else -1
    waits = timers.resend_least, timers.resend_most, timers.first_answer
    header = pack(
        np.zeros((1, 0), np.uint32),
        kind=Kind.CONTRIBUTION,
        job_id=config.job_id,
        generation=config.generation,
        sender=worker_id,
        bitmap=1 << place,
    )
    cursors = np.zeros(len(Cursor), np.int64)
    cursors[[Cursor.FIRST, Cursor.BASE, Cursor.NEXT, Cursor.JOINED, Cursor.RUN, Cursor.END]] = first
    cursors[[Cursor.HIGHEST, Cursor.NEEDED]] = first - 1
    cursors[Cursor.PROBES] = 1
    cursors[Cursor.PLACE], cursors[Cursor.PLACES] = place, config.rack_masks[rack].bit_count()
    clock = np.zeros(len(Clock))
    clock[[Clock.QUIET_SINCE, Clock.ANSWERED]] = -np.inf
    clock[Clock.USUAL] = -1.0
    clock[Clock.FIRST_ANSWER] = config.timers.first_answer
    clock[[Clock.RTT_LEAST, Clock.MOVED, Clock.BEGAN]] = np.inf
    return WorkerState(
        settings=Settings(config.job_id, config.generation, own_rack, 1 << place, config.window, *waits),
        packets=np.zeros((rows, HEADER_WORDS + config.lanes), np.uint32),
        answered=np.zeros(rows, np.bool_),
        early=np.zeros(rows, np.int64),
        queued=np.zeros(rows, np.uint8),
        tries=np.zeros(rows, np.int64),
        sent_at=np.zeros(rows),
        queue=np.zeros(rows, np.int64),
        missing=np.zeros(len(config.rack_masks), np.int64),
        cursors=cursors,
        counts=np.zeros(len(Count), np.int64),
        clock=clock,
        congestion=new_window(config.window, config.initial_window),
        header=rows_of(header)[0],
        tensors=np.zeros((_TENSORS, len(Column)), np.int64),
    )


def with_room(state: WorkerState) -> WorkerState:
    """Return the state with room for one more tensor: the same arrays, but a longer ring if it was full."""
    oldest, end = int(state.cursors[Cursor.TENSOR_OLDEST]), int(state.cursors[Cursor.TENSOR_END])
    room = len(state.tensors)
    if end - oldest < room:
        return state
    longer = np.zeros((2 * room, len(Column)), np.int64)
    numbers = np.arange(oldest, end)
    longer[numbers % len(longer)] = state.tensors[numbers % room]
    return state._replace(tensors=longer)
