"""The aggregation server's state as arrays, and the compiled loops over batches that change it.

Chunk `p` (a position, see `layout.unwrap`) lives in row `p % rows`, rows = 2 * window. A newer chunk takes
its row over: a worker gets that far ahead only when every worker has the older chunk's result. A row's packet
is kept as the RESULT it will become, in wire order, so that a sum complete on arrival is only copied.
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
    SENDER,
    Words,
    compiled,
    get,
    put,
    swap,
    unwrap,
)
from peelsum.wire import EVERYONE as EVERYONE_ID
from peelsum.wire import MAX_WORKERS, Flag, Kind

BYPASS, RESULT, RESEND, NEED = int(Kind.BYPASS), int(Kind.RESULT), int(Kind.RESEND), int(Kind.NEED)
OR, CE, FIN = int(Flag.OR), int(Flag.CE), int(Flag.FIN)
EVERYONE = int(EVERYONE_ID)
#: Bits of `JobState.owed`: below these, one bit per worker that is owed the result.
OWE_ALL, OWE_RESEND, OWE_NEED = 1 << MAX_WORKERS, 2 << MAX_WORKERS, 4 << MAX_WORKERS


class Mark(IntEnum):
    """Positions the loops keep, in `JobState.marks`."""

    ANCHOR = 0  # chunk ids are unwrapped near this; 0 before anything was heard
    NEWEST = 1  # the newest complete chunk; 0 before the first
    QUEUE_HEAD = 2
    QUEUE_TAIL = 3
    FINISHED = 4  # 1 once the FIN chunk is complete


class Count(IntEnum):
    """What the loops count, in `JobState.counts`."""

    IN_SWITCH = 0
    AT_SERVER = 1
    PACKETS = 2
    MERGED = 3
    DUPLICATES = 4
    OVERLAPS = 5
    RESULTS = 6
    REPLIES = 7
    WITHHELD = 8
    RESENDS = 9
    NEEDS = 10
    MALFORMED = 11
    FOREIGN_JOB = 12
    WRONG_GENERATION = 13
    UNEXPECTED_KIND = 14
    FOREIGN_WORKER = 15
    OUT_OF_WINDOW = 16


class JobState(NamedTuple):
    """One array per property of a chunk, one row per chunk kept."""

    packets: NDArray[np.uint32]  # [rows, words]: the RESULT to be: acc, in wire order
    position: NDArray[np.int64]  # [rows]: whose row it is, 0 for nobody's
    have: NDArray[np.int64]  # [rows]: H, the workers whose contributions are in
    done: NDArray[np.bool_]  # [rows]
    deadline: NDArray[np.float64]  # [rows]: when to ask for what is missing; infinity when complete
    since: NDArray[np.float64]  # [rows]: when the first part came
    asked: NDArray[np.int64]  # [rows]: how often it was asked for
    answered_at: NDArray[np.float64]  # [rows, workers]: when the worker was last sent the result
    owed: NDArray[np.int64]  # [rows]: what is to be sent: OWE_* and workers' bits
    queued: NDArray[np.bool_]  # [rows]
    queue: NDArray[np.int64]  # [rows]: ring of rows that owe something
    marks: NDArray[np.int64]  # [Mark]
    counts: NDArray[np.int64]  # [Count]


def new_state(window: int, lanes: int, workers: int) -> JobState:
    """State of a server that has heard nothing."""
    rows = 2 * window
    return JobState(
        packets=np.zeros((rows, HEADER_WORDS + lanes), np.uint32),
        position=np.zeros(rows, np.int64),
        have=np.zeros(rows, np.int64),
        done=np.zeros(rows, np.bool_),
        deadline=np.full(rows, np.inf),
        since=np.zeros(rows),
        asked=np.zeros(rows, np.int64),
        answered_at=np.full((rows, workers), -np.inf),
        owed=np.zeros(rows, np.int64),
        queued=np.zeros(rows, np.bool_),
        queue=np.zeros(rows, np.int64),
        marks=np.zeros(len(Mark), np.int64),
        counts=np.zeros(len(Count), np.int64),
    )


@compiled
def take(
    state: JobState,
    rows: Words,
    bad: NDArray[np.bool_],
    identity: tuple[int, int, int],
    window: int,
    now: float,
    waits: tuple[float, float],
) -> None:
    """Take a batch in: rows uint32[n, words], bad bool[n] for malformed ones.

    identity = (job_id, generation, expected_mask); waits = (need, reply_gap) in seconds.
    """
    counts = state.counts
    counts[Count.PACKETS] += rows.shape[0]
    for i in range(rows.shape[0]):
        packet = rows[i]
        if bad[i]:
            counts[Count.MALFORMED] += 1
        elif get(packet, JOB_ID) != identity[0]:
            counts[Count.FOREIGN_JOB] += 1
        elif get(packet, GENERATION) != identity[1]:
            counts[Count.WRONG_GENERATION] += 1
        elif get(packet, KIND) != BYPASS:
            counts[Count.UNEXPECTED_KIND] += 1
        elif get(packet, BITMAP) == 0 or get(packet, BITMAP) & ~identity[2]:
            counts[Count.FOREIGN_WORKER] += 1
        else:
            row = _row_of(state, get(packet, CHUNK_ID), window)
            if row < 0:
                counts[Count.OUT_OF_WINDOW] += 1
            elif state.done[row]:
                _answer(state, row, get(packet, SENDER), now, waits[1])
            else:
                _merge(state, row, packet, identity[2], now, waits[0])


@compiled
def _row_of(state: JobState, chunk_id: int, window: int) -> int:
    """The chunk's row, taken over from an older chunk if need be; -1 for a chunk nobody can need any more."""
    marks = state.marks
    if marks[Mark.ANCHOR] == 0:
        marks[Mark.ANCHOR] = (1 << 32) + chunk_id
    position = unwrap(chunk_id, marks[Mark.ANCHOR])
    row = position % state.position.shape[0]
    if position <= marks[Mark.NEWEST] - window or position < state.position[row]:
        return -1
    if position > state.position[row]:
        state.position[row] = position
        state.have[row] = 0
        state.done[row] = False
        state.deadline[row] = np.inf
        state.asked[row] = 0
        state.answered_at[row] = -np.inf
        state.owed[row] = 0
    return int(row)


@compiled
def _answer(state: JobState, row: int, sender: int, now: float, gap: float) -> None:
    """Somebody still works on a complete chunk: send it the result, if that did not just happen."""
    counts = state.counts
    counts[Count.DUPLICATES] += 1
    if sender >= state.answered_at.shape[1]:
        return
    if now - state.answered_at[row, sender] < gap:
        counts[Count.WITHHELD] += 1
        return
    state.answered_at[row, sender] = now
    owe(state, row, 1 << sender)


@compiled
def owe(state: JobState, row: int, what: int) -> None:
    """Queue the row for sending, once, whatever it owes."""
    state.owed[row] |= what
    if not state.queued[row]:
        rows = state.queue.shape[0]
        state.queue[state.marks[Mark.QUEUE_TAIL] % rows] = row
        state.marks[Mark.QUEUE_TAIL] += 1
        state.queued[row] = True


@compiled
def _merge(state: JobState, row: int, packet: Words, expected: int, now: float, need: float) -> None:
    """Merge a sum, complete or partial, of workers P into the chunk's H and acc."""
    arrived, have = get(packet, BITMAP), state.have[row]
    kept = state.packets[row]
    marked = get(packet, FLAGS) & CE
    if have == 0 or (arrived != have and arrived & have == have):
        marked |= get(kept, FLAGS) & CE if have else 0
        kept[:] = packet
    elif arrived & have == arrived:
        state.counts[Count.DUPLICATES] += 1
        return
    elif arrived & have and not get(packet, FLAGS) & OR:
        state.counts[Count.OVERLAPS] += 1  # sums of some workers cannot be taken apart again
        return
    else:
        _combine(kept, packet)
        state.counts[Count.MERGED] += 1
    state.have[row] = have | arrived
    put(kept, FLAGS, get(kept, FLAGS) | marked)
    if state.have[row] == expected:
        _complete(state, row, arrived == expected)
    elif have == 0:
        state.deadline[row] = now + need
        state.since[row] = now


@compiled
def _combine(kept: Words, packet: Words) -> None:
    """kept += packet, or |=, lane by lane; both are in wire order."""
    left, right = kept[HEADER_WORDS:], packet[HEADER_WORDS:]
    if get(packet, FLAGS) & OR:
        for lane in range(left.shape[0]):
            left[lane] |= right[lane]
    else:
        for lane in range(left.shape[0]):
            left[lane] = swap(np.uint32(swap(left[lane]) + swap(right[lane])))


@compiled
def _complete(state: JobState, row: int, in_switch: bool) -> None:
    """H is everybody: the packet becomes the RESULT, kept for whoever loses it."""
    marks, packet = state.marks, state.packets[row]
    put(packet, KIND, RESULT)
    put(packet, SENDER, EVERYONE)
    put(packet, BITMAP, state.have[row])
    state.counts[Count.IN_SWITCH if in_switch else Count.AT_SERVER] += 1
    state.done[row] = True
    state.deadline[row] = np.inf
    marks[Mark.NEWEST] = max(marks[Mark.NEWEST], state.position[row])
    marks[Mark.ANCHOR] = marks[Mark.NEWEST]
    if get(packet, FLAGS) & FIN:
        marks[Mark.FINISHED] = 1
    owe(state, row, OWE_ALL)


@compiled
def next_due(state: JobState) -> float:
    """The earliest time at which a chunk is to be asked for, or infinity."""
    return float(state.deadline.min())


@compiled
def expire(state: JobState, now: float, window: int, need: float, most: float) -> None:
    """Ask for what is missing from every chunk whose time has come: first the switch, then workers too."""
    for row in range(state.position.shape[0]):
        if state.deadline[row] > now:
            continue
        if state.position[row] <= state.marks[Mark.NEWEST] - window:
            state.deadline[row] = np.inf  # an old packet revived it; nobody waits for it
            continue
        owe(state, row, OWE_RESEND | OWE_NEED if state.asked[row] else OWE_RESEND)
        state.deadline[row] = now + min(most, need * 2.0 ** min(state.asked[row], 30))
        state.asked[row] += 1


@compiled
def oldest_incomplete(state: JobState, window: int) -> tuple[int, int]:
    """How many chunks are incomplete, and the row of the oldest, or -1."""
    incomplete, oldest = 0, -1
    for row in range(state.position.shape[0]):
        current = state.position[row] > max(0, state.marks[Mark.NEWEST] - window)
        if current and not state.done[row] and state.have[row]:
            incomplete += 1
            if oldest < 0 or state.position[row] < state.position[oldest]:
                oldest = row
    return incomplete, oldest


@compiled
def send(state: JobState, expected: int, out: Words) -> int:
    """Fill out uint32[limit, words] with what rows owe, oldest debt first; returns how many."""
    marks, rows, filled = state.marks, state.queue.shape[0], 0
    while marks[Mark.QUEUE_HEAD] < marks[Mark.QUEUE_TAIL]:
        row = state.queue[marks[Mark.QUEUE_HEAD] % rows]
        while state.owed[row]:
            if filled == out.shape[0]:
                return filled
            debt = state.owed[row] & -state.owed[row]
            state.owed[row] ^= debt
            filled += _pay(state, row, debt, expected, out[filled])
        state.queued[row] = False
        marks[Mark.QUEUE_HEAD] += 1
    return filled


@compiled
def _pay(state: JobState, row: int, debt: int, expected: int, packet: Words) -> int:
    """Write the one packet that pays one debt; 0 if the chunk was completed since and nobody needs it."""
    asks = debt in (OWE_RESEND, OWE_NEED)
    if asks and state.done[row]:
        return 0
    packet[:] = state.packets[row]
    if not asks:
        if debt != OWE_ALL:
            put(packet, SENDER, _lowest_bit(debt))
        state.counts[Count.RESULTS if debt == OWE_ALL else Count.REPLIES] += 1
        return 1
    put(packet, KIND, RESEND if debt == OWE_RESEND else NEED)
    put(packet, SENDER, EVERYONE)
    put(packet, FLAGS, get(packet, FLAGS) & ~CE)
    put(packet, BITMAP, 0 if debt == OWE_RESEND else expected & ~state.have[row])
    state.counts[Count.RESENDS if debt == OWE_RESEND else Count.NEEDS] += 1
    return 1


@compiled
def _lowest_bit(value: int) -> int:
    """The number of the lowest bit that is set in `value`, not 0."""
    number = 0
    while not value >> number & 1:
        number += 1
    return number
