"""The aggregation server's state: one array per property of a chunk, and the job's constants and cursors.

Chunk `p` (a position, see `layout.unwrap`) has row `p % (2 * window)`. The joining chunks, those of the
generation's first sum, have permanent rows after these. A set of workers is one bitmap per rack; a job of one
level is a single rack.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.transport.config import JobConfig
from peelsum.transport.layout import HEADER_WORDS, SERIAL_BASE
from peelsum.wire import MAX_WORKERS, Flag


class ServerCursor(IntEnum):
    """Indices of positions and constants in `JobState.cursors`."""

    ANCHOR = 0  # the job's position: the newest complete chunk; until SETTLED, the chunk last received
    SETTLED = 1  # 1 once a chunk after the first sum is complete
    QUEUE_HEAD = 2
    QUEUE_TAIL = 3
    FINISHED = 4  # 1 once the FIN chunk is complete
    SUM_BITMAP = 5  # of a complete sum
    SUM_FLAG = 6  # SPINE in two levels, else 0
    FIRST = 7  # the generation's first chunk
    RUN = 8  # the first chunk after the generation's first sum
    ELSEWHERE = 9  # the last chunk received far from ANCHOR; 0 before the first
    UNTOLD = 10  # complete chunks that only their owners know to be complete
    UNTOLD_FROM = 11  # the oldest of them


class ServerCount(IntEnum):
    """Indices of counters in `JobState.counts`."""

    CHUNKS_IN_SWITCH = 0
    CHUNKS_AT_SERVER = 1
    PACKETS = 2
    MERGED = 3
    DUPLICATES = 4
    OVERLAPS = 5
    RESULTS = 6
    REPLIES = 7
    REPLIES_WITHHELD = 8
    RESENDS = 9
    NEEDS = 10
    MALFORMED = 11  # from here on: packets dropped
    FOREIGN_JOB = 12
    WRONG_GENERATION = 13
    UNEXPECTED_KIND = 14
    FOREIGN_WORKER = 15
    OUT_OF_WINDOW = 16  # too old to be needed
    AHEAD_OF_WINDOW = 17  # too new for any worker


class ServerClock(IntEnum):
    """Indices of times, in seconds, in `JobState.clock`."""

    HEARD = 0  # when a chunk near ANCHOR was last received
    ELSEWHERE = 1  # since when all other chunks received were near Cursor.ELSEWHERE
    FIN = 2  # when a part with FIN was last received
    UNTOLD = 3  # when the first of the untold chunks was complete


class ServerSettings(NamedTuple):
    """The job, as packets name it; its window; and the server's timers in seconds, see `Timers`."""

    job_id: int
    generation: int
    window: int
    need: float
    need_most: float
    reply_gap: float


class WorkerSet(NamedTuple):
    """A set of workers, as a packet gives it: some of one rack, or all workers of some racks."""

    bitmap: int  # bits of the rack's workers; of racks if `rack` is RACKS
    rack: int


class JobState(NamedTuple):
    """One array per property of a chunk, one row per chunk kept; the job's own settings and cursors."""

    settings: ServerSettings
    packets: NDArray[np.uint32]  # [rows, words]: the RESULT to be: acc, in wire order
    position: NDArray[np.int64]  # [rows]: the row's chunk, 0 for none
    have: NDArray[np.int64]  # [rows, racks]: H, the workers whose contributions are in
    done: NDArray[np.bool_]  # [rows]
    deadline: NDArray[np.float64]  # [rows]: when to ask for missing packets; infinity for never
    since: NDArray[np.float64]  # [rows]: when the first part arrived
    # [rows]: number of requests sent; once complete, 1 + the worker that requested it first
    asked: NDArray[np.int64]
    repeated_at: NDArray[np.float64]  # [rows]: when a result was last sent to all again, or requested early
    owed: NDArray[np.int64]  # [rows, racks]: the packets to send: OWE_* and workers' bits
    queued: NDArray[np.bool_]  # [rows]
    queue: NDArray[np.int64]  # [rows]: ring of rows that owe something
    # [worker numbers + 1]: when each worker's last contribution arrived; last element: a complete sum
    heard_at: NDArray[np.float64]
    expected: NDArray[np.int64]  # [racks]: all workers of each rack
    cursors: NDArray[np.int64]  # [Cursor]
    counts: NDArray[np.int64]  # [Count]
    clock: NDArray[np.float64]  # [Clock]


def new_state(config: JobConfig) -> JobState:
    """Return the state of a server that has received nothing."""
    masks = config.rack_masks
    rows, racks = 2 * config.window + config.joining_chunks, len(masks)
    numbers = (racks - 1) * MAX_WORKERS + masks[-1].bit_length()
    first, timers = SERIAL_BASE + config.first_chunk, config.timers
    waits = timers.need, timers.need_most, timers.reply_gap
    cursors = np.zeros(len(ServerCursor), np.int64)
    cursors[ServerCursor.SUM_BITMAP] = config.expected_mask
    cursors[ServerCursor.SUM_FLAG] = Flag.SPINE if config.racks else 0
    cursors[[ServerCursor.ANCHOR, ServerCursor.FIRST]] = first
    cursors[ServerCursor.RUN] = first + config.joining_chunks
    return JobState(
        settings=ServerSettings(config.job_id, config.generation, config.window, *waits),
        packets=np.zeros((rows, HEADER_WORDS + config.lanes), np.uint32),
        position=np.zeros(rows, np.int64),
        have=np.zeros((rows, racks), np.int64),
        done=np.zeros(rows, np.bool_),
        deadline=np.full(rows, np.inf),
        since=np.zeros(rows),
        asked=np.zeros(rows, np.int64),
        repeated_at=np.full(rows, -np.inf),
        owed=np.zeros((rows, racks), np.int64),
        queued=np.zeros(rows, np.bool_),
        queue=np.zeros(rows, np.int64),
        heard_at=np.full(numbers + 1, -np.inf),
        expected=np.array(masks, np.int64),
        cursors=cursors,
        counts=np.zeros(len(ServerCount), np.int64),
        clock=np.full(len(ServerClock), -np.inf),
    )
