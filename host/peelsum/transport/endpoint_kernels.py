"""The worker's state as arrays, and the compiled loops over batches that change it.

Everything that happens once per packet or per chunk happens here; decisions per tensor and per batch are
`peelsum.transport.endpoint`'s. Chunks are addressed by position (see `layout.unwrap`); chunk `p` lives in
row `p % rows` of every array, rows = 2 * window, which is what the protocol asks a worker to keep.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.transport.layout import (
    BITMAP,
    CHUNK_ID,
    FLAGS,
    GENERATION,
    HEADER_WORDS,
    JOB_ID,
    KIND,
    Words,
    compiled,
    get,
    put,
    swap,
    unwrap,
)
from peelsum.wire import Flag, Kind

RESULT, NEED, RESEND = int(Kind.RESULT), int(Kind.NEED), int(Kind.RESEND)
CE, FIN, SPINE = int(Flag.CE), int(Flag.FIN), int(Flag.SPINE)
#: A packet counts as lost once a chunk contributed this much later has its result.
REORDERING = 3
#: Doublings of a chunk's timer while other results flow: it is this chunk's packets that are lost.
FLOWING_BACK_OFF = 3
#: The resend timer, in usual round trips.
TIMEOUT_RATIO = 4.0


class Mark(IntEnum):
    """Positions and bitmaps the loops keep, in `WorkerState.marks`."""

    FIRST = 0  # the generation's first chunk
    BASE = 1  # the oldest chunk without its result
    NEXT = 2  # the next chunk to contribute
    HIGHEST = 3  # the newest chunk with its result
    QUEUE_HEAD = 4
    QUEUE_TAIL = 5
    NEEDED = 6  # the chunk of the last NEED
    PROBES = 7  # how many chunks the resend timer resends at once
    RESULTS_BEFORE = 8  # results that had come when it last ran out


class Count(IntEnum):
    """What the loops count, in `WorkerState.counts`."""

    CONTRIBUTIONS = 0
    RESENDS = 1
    RESULTS = 2
    DUPLICATES = 3
    MARKED = 4  # results that carried CE
    LOST = 5  # chunks overtaken by later results
    TIMEOUTS = 6
    NEEDS = 7
    MALFORMED = 8
    FOREIGN_JOB = 9
    WRONG_GENERATION = 10
    UNEXPECTED_KIND = 11
    OUT_OF_WINDOW = 12
    DEPARTED = 13  # results that hold the FIN of a worker that sends no more


class Clock(IntEnum):
    """Times and round-trip times in seconds, in `WorkerState.clock`."""

    LAST_RESULT = 0  # when a new result last came
    RESUMED = 1  # when results last came again after silence
    USUAL = 2  # the RTT when no worker lags, negative before the first sample
    TIMEOUT = 3  # the resend timer made from it
    RTT_LEAST = 4
    RTT_MOST = 5
    RTT_SUM = 6
    RTT_SAMPLES = 7


class WorkerState(NamedTuple):
    """One array per property of a chunk, one row per chunk kept."""

    packets: NDArray[np.uint32]  # [rows, words]: contributions as sent
    answered: NDArray[np.bool_]  # [rows]
    queued: NDArray[np.uint8]  # [rows]: OWN_DOUBT or NEEDED while in the queue
    tries: NDArray[np.int64]  # [rows]: resends so far
    sent_at: NDArray[np.float64]  # [rows]
    overtaken_by: NDArray[np.int64]  # [rows]: the chunk whose result tells that the last packet was lost
    queue: NDArray[np.int64]  # [rows]: ring of positions to resend
    missing: NDArray[np.int64]  # [racks]: the workers that the last NEED named
    marks: NDArray[np.int64]  # [Mark]
    counts: NDArray[np.int64]  # [Count]
    clock: NDArray[np.float64]  # [Clock]


OWN_DOUBT, NEEDED = 1, 2


def new_state(window: int, lanes: int, racks: int, first: int, timeout: float) -> WorkerState:
    """State of a worker that has sent nothing; `first` is a position, `timeout` holds until measured.

    `racks` is 1 where there is one level.
    """
    rows = 2 * window
    marks = np.zeros(len(Mark), np.int64)
    marks[[Mark.FIRST, Mark.BASE, Mark.NEXT]] = first
    marks[[Mark.HIGHEST, Mark.NEEDED]] = first - 1
    marks[Mark.PROBES] = 1
    clock = np.zeros(len(Clock))
    clock[[Clock.LAST_RESULT, Clock.RESUMED]] = -np.inf
    clock[Clock.USUAL] = -1.0
    clock[Clock.TIMEOUT] = timeout
    clock[Clock.RTT_LEAST] = np.inf
    return WorkerState(
        packets=np.zeros((rows, HEADER_WORDS + lanes), np.uint32),
        answered=np.zeros(rows, np.bool_),
        queued=np.zeros(rows, np.uint8),
        tries=np.zeros(rows, np.int64),
        sent_at=np.zeros(rows),
        overtaken_by=np.zeros(rows, np.int64),
        queue=np.zeros(rows, np.int64),
        missing=np.zeros(racks, np.int64),
        marks=marks,
        counts=np.zeros(len(Count), np.int64),
        clock=clock,
    )


@compiled
def contribute(state: WorkerState, header: Words, tensor: Words, offset: int, count: int, now: float) -> None:
    """Pack the next `count` chunks from tensor uint32[n], element `offset` on, and count them as sent."""
    rows, words = state.packets.shape
    lanes = words - HEADER_WORDS
    for k in range(count):
        position = state.marks[Mark.NEXT] + k
        row = position % rows
        packet = state.packets[row]
        packet[:HEADER_WORDS] = header
        put(packet, CHUNK_ID, position & 0xFFFFFFFF)
        first = offset + k * lanes
        filled = max(0, min(lanes, tensor.shape[0] - first))
        source, target = tensor[first : first + filled], packet[HEADER_WORDS : HEADER_WORDS + filled]
        for lane in range(filled):
            target[lane] = swap(source[lane])
        packet[HEADER_WORDS + filled :] = 0
        state.answered[row] = False
        state.queued[row] = 0
        state.tries[row] = 0
        state.sent_at[row] = now
        state.overtaken_by[row] = position + REORDERING
    state.marks[Mark.NEXT] += count
    state.counts[Count.CONTRIBUTIONS] += count


@compiled
def take(
    state: WorkerState,
    rows: Words,
    bad: NDArray[np.bool_],
    identity: tuple[int, int, int, int],
    window: int,
    now: float,
    limits: tuple[float, float],
    at: NDArray[np.int64],
) -> None:
    """Take a batch in: rows uint32[n, words], bad bool[n] for malformed ones.

    identity = (job_id, generation, rack, worker_mask), rack = -1 where there is one level; limits = (least,
    most) of the resend timer. Sets at[i] to the position of the chunk whose result packet i brings, or to -1
    where there is nothing to store.
    """
    counts, marks = state.counts, state.marks
    for i in range(rows.shape[0]):
        at[i] = -1
        packet = rows[i]
        if bad[i]:
            counts[Count.MALFORMED] += 1
        elif get(packet, JOB_ID) != identity[0]:
            counts[Count.FOREIGN_JOB] += 1
        elif get(packet, GENERATION) != identity[1]:
            counts[Count.WRONG_GENERATION] += 1
        else:
            kind = get(packet, KIND)
            position = unwrap(get(packet, CHUNK_ID), marks[Mark.BASE])
            if kind == RESULT:
                if _accept(state, packet, position, window, now, limits):
                    at[i] = position
            elif kind == NEED and (get(packet, FLAGS) & SPINE != 0) == (identity[2] >= 0):
                _need(state, packet, position, window, identity[2], identity[3])
            else:
                counts[Count.UNEXPECTED_KIND] += 1
    _advance(state, now)


@compiled
def _accept(
    state: WorkerState, packet: Words, position: int, window: int, now: float, limits: tuple[float, float]
) -> bool:
    """Whether a RESULT brings something new; if so, book it."""
    counts, marks = state.counts, state.marks
    if position >= marks[Mark.NEXT] or position < marks[Mark.BASE] - window:
        counts[Count.OUT_OF_WINDOW] += 1
        return False
    row = position % state.answered.shape[0]
    if position < marks[Mark.BASE] or state.answered[row]:
        counts[Count.DUPLICATES] += 1
        return False
    if get(packet, FLAGS) & ~get(state.packets[row], FLAGS) & FIN:
        counts[Count.DEPARTED] += 1
        return False
    state.answered[row] = True
    counts[Count.RESULTS] += 1
    if get(packet, FLAGS) & CE:
        counts[Count.MARKED] += 1
    marks[Mark.HIGHEST] = max(marks[Mark.HIGHEST], position)
    clock = state.clock
    if now - clock[Clock.LAST_RESULT] > clock[Clock.TIMEOUT]:
        clock[Clock.RESUMED] = now
    clock[Clock.LAST_RESULT] = now
    if state.tries[row] == 0:  # Karn: the answer to a repeated question measures nothing
        _sample(clock, max(0.0, now - state.sent_at[row]), limits)
    return True


@compiled
def _sample(clock: NDArray[np.float64], rtt: float, limits: tuple[float, float]) -> None:
    """One more measured round trip, into the statistics and the resend timer.

    A round trip here takes all workers: most of it may be spent waiting for one that lags. So the estimate
    follows the quick ones, down at once and up slowly, and the timer is a multiple of it.
    """
    clock[Clock.RTT_LEAST] = min(clock[Clock.RTT_LEAST], rtt)
    clock[Clock.RTT_MOST] = max(clock[Clock.RTT_MOST], rtt)
    clock[Clock.RTT_SUM] += rtt
    clock[Clock.RTT_SAMPLES] += 1
    usual = clock[Clock.USUAL]
    if usual < 0:
        usual = rtt
    elif rtt < usual:
        usual += (rtt - usual) / 8
    else:
        usual += (min(rtt, 2 * usual) - usual) / 128
    clock[Clock.USUAL] = usual
    clock[Clock.TIMEOUT] = min(limits[1], max(limits[0], TIMEOUT_RATIO * usual))


@compiled
def _need(
    state: WorkerState, packet: Words, position: int, window: int, own_rack: int, worker_mask: int
) -> None:
    """Heed a NEED: remember whom the server misses, and resend if it misses us."""
    counts, marks = state.counts, state.marks
    counts[Count.NEEDS] += 1
    if position >= marks[Mark.BASE]:
        marks[Mark.NEEDED] = position
        for rack in range(state.missing.shape[0]):
            state.missing[rack] = _missing(packet, rack)
    least = max(marks[Mark.FIRST], marks[Mark.BASE] - window)
    if _missing(packet, max(0, own_rack)) & worker_mask and least <= position < marks[Mark.NEXT]:
        _enqueue(state, position, NEEDED)


@compiled
def _missing(packet: Words, rack: int) -> int:
    """The workers of a rack that a NEED names: in the bitmap, in two levels in the rack's lane."""
    if get(packet, FLAGS) & SPINE:
        return int(swap(packet[HEADER_WORDS + rack])) if get(packet, BITMAP) >> rack & 1 else 0
    return get(packet, BITMAP)


@compiled
def _enqueue(state: WorkerState, position: int, cause: int) -> None:
    """Queue a chunk for resending, once.

    The queue cannot overflow: a chunk is in it once, and rows are reused only while it is empty, because
    resends leave before contributions.
    """
    rows = state.queue.shape[0]
    row = position % rows
    if not state.queued[row]:
        state.queue[state.marks[Mark.QUEUE_TAIL] % rows] = position
        state.marks[Mark.QUEUE_TAIL] += 1
    state.queued[row] = max(state.queued[row], cause)


@compiled
def _advance(state: WorkerState, now: float) -> None:
    """Move the window past answered chunks, and queue those that later results have overtaken.

    Resends go through the server and may take longer than what is sent after them: they are given a round
    trip's time before they count as lost.
    """
    marks, rows = state.marks, state.answered.shape[0]
    while marks[Mark.BASE] < marks[Mark.NEXT] and state.answered[marks[Mark.BASE] % rows]:
        marks[Mark.BASE] += 1
    for position in range(marks[Mark.BASE], marks[Mark.HIGHEST] - REORDERING + 1):
        row = position % rows
        if state.answered[row] or state.queued[row] or state.overtaken_by[row] > marks[Mark.HIGHEST]:
            continue
        if state.tries[row] == 0 or now - state.sent_at[row] > state.clock[Clock.USUAL]:
            _enqueue(state, position, OWN_DOUBT)
            state.counts[Count.LOST] += 1


@compiled
def store(rows: Words, at: NDArray[np.int64], start: int, stop: int, lanes: int, result: Words) -> int:
    """Copy the sums of chunks at positions [start, stop) into result uint32[n]; how many there were."""
    stored = 0
    for i in range(at.shape[0]):
        if start <= at[i] < stop:
            first = (at[i] - start) * lanes
            target = result[first : min(first + lanes, result.shape[0])]
            source = rows[i, HEADER_WORDS:]
            for lane in range(target.shape[0]):
                target[lane] = swap(source[lane])
            stored += 1
    return stored


@compiled
def next_due(state: WorkerState, patience: float, most: float) -> float:
    """When the oldest chunk is to be resent; infinity without one, or while it is queued.

    Only the oldest has a timer. The others may be waiting for a worker that lags, or computes: a window of
    resends would take all its partial sums out of the switch. Their losses show when they are overtaken.
    """
    base = state.marks[Mark.BASE]
    row = base % state.answered.shape[0]
    if base == state.marks[Mark.NEXT] or state.queued[row]:
        return np.inf
    sent, tries = state.sent_at[row], state.tries[row]
    silence = state.clock[Clock.LAST_RESULT] <= sent
    if silence and tries == 0:
        return float(sent + patience)
    wait = state.clock[Clock.TIMEOUT] * 2.0 ** min(tries, 30 if silence else FLOWING_BACK_OFF)
    return float(max(sent, state.clock[Clock.RESUMED]) + min(most, wait))


@compiled
def expire(state: WorkerState, now: float, patience: float, most: float) -> int:
    """Queue the oldest chunk if its time has come, and some after it. Returns how many count as lost.

    When all that came since the last time was what had been asked for, the tail of a window was lost: then
    twice as many are asked for each time, the oldest first.
    """
    if next_due(state, patience, most) > now:
        return 0
    marks, clock = state.marks, state.clock
    came = state.counts[Count.RESULTS] - marks[Mark.RESULTS_BEFORE]
    marks[Mark.RESULTS_BEFORE] = state.counts[Count.RESULTS]
    probes = 2 * marks[Mark.PROBES] if 0 < came <= 2 * marks[Mark.PROBES] else 1
    marks[Mark.PROBES] = min(probes, state.answered.shape[0])
    queued = lost = 0
    for position in range(marks[Mark.BASE], marks[Mark.NEXT]):
        row = position % state.answered.shape[0]
        late = now - state.sent_at[row] >= clock[Clock.TIMEOUT] or position == marks[Mark.BASE]
        if late and not state.answered[row] and not state.queued[row]:
            lost += clock[Clock.LAST_RESULT] > state.sent_at[row]
            _enqueue(state, position, OWN_DOUBT)
            queued += 1
            if queued == marks[Mark.PROBES]:
                break
    state.counts[Count.TIMEOUTS] += queued
    return lost


@compiled
def resend(state: WorkerState, now: float, out: Words) -> int:
    """Fill out uint32[limit, words] with queued resends; returns how many."""
    marks, rows, filled = state.marks, state.queue.shape[0], 0
    while marks[Mark.QUEUE_HEAD] < marks[Mark.QUEUE_TAIL] and filled < out.shape[0]:
        position = state.queue[marks[Mark.QUEUE_HEAD] % rows]
        marks[Mark.QUEUE_HEAD] += 1
        row = position % rows
        cause, state.queued[row] = state.queued[row], 0
        if state.answered[row] and cause != NEEDED:
            continue
        out[filled] = state.packets[row]
        put(out[filled], KIND, RESEND)
        state.tries[row] += 1
        state.sent_at[row] = now
        state.overtaken_by[row] = marks[Mark.NEXT] + REORDERING - 1
        filled += 1
    state.counts[Count.RESENDS] += filled
    return filled
