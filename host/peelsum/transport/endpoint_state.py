"""A worker's state: one array per property of a chunk, and the job's positions, counts and times.

Chunk `p` (a position, see `layout.unwrap`) has row `p % rows`. The protocol asks a worker to keep
rows = 2 * window chunks.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.transport.layout import HEADER_WORDS


class Mark(IntEnum):
    """Indices of positions and numbers in `WorkerState.marks`."""

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
    MALFORMED = 8
    FOREIGN_JOB = 9
    WRONG_GENERATION = 10
    UNEXPECTED_KIND = 11
    OUT_OF_WINDOW = 12
    DEPARTED = 13  # results with the FIN of a worker that has finished


class Clock(IntEnum):
    """Indices of times and round-trip times, in seconds, in `WorkerState.clock`."""

    QUIET_SINCE = 0  # when a new result last arrived, or the wait for one began
    USUAL = 1  # the RTT without slow workers, negative before the first sample
    TIMEOUT = 2  # the resend timer made from it
    RTT_LEAST = 3
    RTT_MOST = 4
    RTT_SUM = 5
    RTT_SAMPLES = 6
    ANSWERED = 7  # when the latest of the answered packets was sent


class Identity(NamedTuple):
    """The worker and its job, as packets name them."""

    job_id: int
    generation: int
    rack: int  # -1 with one level
    worker_mask: int


class TimerLimits(NamedTuple):
    """Bounds of the measured resend timer, in seconds."""

    least: float
    most: float


class WorkerState(NamedTuple):
    """One array per property of a chunk, one row per chunk kept."""

    packets: NDArray[np.uint32]  # [rows, words]: contributions as sent
    answered: NDArray[np.bool_]  # [rows]
    queued: NDArray[np.uint8]  # [rows]: OWN_DOUBT or NEEDED while in the queue
    tries: NDArray[np.int64]  # [rows]: retransmissions so far
    sent_at: NDArray[np.float64]  # [rows]
    queue: NDArray[np.int64]  # [rows]: ring of positions to retransmit
    missing: NDArray[np.int64]  # [racks]: the workers that the last NEED for chunk NEEDED named
    marks: NDArray[np.int64]  # [Mark]
    counts: NDArray[np.int64]  # [Count]
    clock: NDArray[np.float64]  # [Clock]


def new_state(window: int, lanes: int, racks: int, first: int, timeout: float) -> WorkerState:
    """Return the state of a worker that has sent nothing.

    racks: 1 with one level. first: a position. timeout: the resend timer until an RTT is measured, seconds.
    """
    rows = 2 * window
    marks = np.zeros(len(Mark), np.int64)
    marks[[Mark.FIRST, Mark.BASE, Mark.NEXT, Mark.JOINED, Mark.RUN]] = first
    marks[[Mark.HIGHEST, Mark.NEEDED]] = first - 1
    marks[Mark.PROBES] = 1
    clock = np.zeros(len(Clock))
    clock[[Clock.QUIET_SINCE, Clock.ANSWERED]] = -np.inf
    clock[Clock.USUAL] = -1.0
    clock[Clock.TIMEOUT] = timeout
    clock[Clock.RTT_LEAST] = np.inf
    return WorkerState(
        packets=np.zeros((rows, HEADER_WORDS + lanes), np.uint32),
        answered=np.zeros(rows, np.bool_),
        queued=np.zeros(rows, np.uint8),
        tries=np.zeros(rows, np.int64),
        sent_at=np.zeros(rows),
        queue=np.zeros(rows, np.int64),
        missing=np.zeros(racks, np.int64),
        marks=marks,
        counts=np.zeros(len(Count), np.int64),
        clock=clock,
    )
