"""Compiled loops over batches that change the aggregation server's state.

A row keeps its packet as the RESULT it will become, in wire order, so that a sum complete on arrival is only
copied. Packets tell one level from two: with SPINE, bits mean whole racks; without it, workers of the
sender's rack. `server_rows` decides which chunks have rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
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
    copy,
    get,
    put,
    swap,
    well_formed,
)
from peelsum.transport.server_rows import ASKS, current, pause, row_of
from peelsum.transport.server_state import (
    JobState,
    ServerClock,
    ServerCount,
    ServerCursor,
    WorkerSet,
)
from peelsum.wire import EVERYONE as EVERYONE_ID
from peelsum.wire import MAX_WORKERS, Flag, Kind

BYPASS, RESULT, RESEND, NEED = int(Kind.BYPASS), int(Kind.RESULT), int(Kind.RESEND), int(Kind.NEED)
OR, CE, FIN, SPINE, OWNED = map(int, (Flag.OR, Flag.CE, Flag.FIN, Flag.SPINE, Flag.OWNED))
EVERYONE = int(EVERYONE_ID)
#: In place of a rack's number: the bitmap's bits are racks.
RACKS = -1
#: All workers are told of chunks whose results only the owners got: once there are so many, or so many
#: seconds after the first; so many chunks before are told of again.
TOLD_TOGETHER, TOLD_AFTER, TOLD_AGAIN = 16, 0.0005, 48
#: An incomplete chunk is overdue once the chunk so many later is complete.
OVERDUE = 3
#: Bits of `JobState.owed`. Each lower bit is a worker of the rack to which the result is owed.
OWE_ALL, OWE_RESEND = 1 << MAX_WORKERS, 2 << MAX_WORKERS
OWE_SPINE_RESEND, OWE_NEED = 4 << MAX_WORKERS, 8 << MAX_WORKERS


@compiled
def take(state: JobState, rows: Words, now: float) -> None:
    """Process received packets, rows uint32[n, words] of any content."""
    counts, settings, two_levels = state.counts, state.settings, state.cursors[ServerCursor.SUM_FLAG] != 0
    counts[ServerCount.PACKETS] += rows.shape[0]
    for i in range(rows.shape[0]):
        packet = rows[i]
        bitmap = get(packet, BITMAP)
        rack = _rack_of(packet, two_levels)
        if not well_formed(packet):
            counts[ServerCount.MALFORMED] += 1
        elif get(packet, JOB_ID) != settings.job_id:
            counts[ServerCount.FOREIGN_JOB] += 1
        elif get(packet, GENERATION) != settings.generation:
            counts[ServerCount.WRONG_GENERATION] += 1
        elif get(packet, KIND) != BYPASS:
            counts[ServerCount.UNEXPECTED_KIND] += 1
        elif not bitmap or bitmap & ~_known(state.expected, state.cursors, rack):
            counts[ServerCount.FOREIGN_WORKER] += 1
        else:
            row = row_of(state, get(packet, CHUNK_ID), now)
            if row < 0:
                continue
            if state.done[row]:
                _answer(state, row, get(packet, SENDER), WorkerSet(bitmap, rack), now)
                continue
            if state.deadline[row] == np.inf:
                state.deadline[row] = now + pause(settings, state.asked[row])
            if get(packet, FLAGS) & FIN:
                state.clock[ServerClock.FIN] = now
            _merge(state, row, packet, WorkerSet(bitmap, rack), now)


@compiled
def _rack_of(packet: Words, two_levels: bool) -> int:
    """Return the rack whose workers are the bits of a packet's bitmap; RACKS if the bits are racks."""
    if get(packet, FLAGS) & SPINE:
        return RACKS
    return get(packet, SENDER) // MAX_WORKERS if two_levels else 0


@compiled
def _known(expected: NDArray[np.int64], cursors: NDArray[np.int64], rack: int) -> int:
    """Return the bits that a bitmap may have: a rack's workers, or the job's racks if it has any."""
    if rack == RACKS:
        return int(cursors[ServerCursor.SUM_BITMAP]) if cursors[ServerCursor.SUM_FLAG] else 0
    return int(expected[rack]) if rack < expected.shape[0] else 0


@compiled
def _part(who: WorkerSet, rack: int, expected: int) -> int:
    """Return the bitmap of one rack's workers, of all its workers `expected`, that are in `who`."""
    if who.rack == RACKS:
        return expected if who.bitmap >> rack & 1 else 0
    return who.bitmap if who.rack == rack else 0


@compiled
def _answer(state: JobState, row: int, sender: int, who: WorkerSet, now: float) -> None:
    """Queue the result of a complete chunk for the worker that requests it, or for all.

    All get it if a switch still held a sum of several, or if the worker in turn sent a RESEND: the RESULT
    probably did not pass a switch, whose slot drops the others' RETRYs. All get it, too, if another worker
    requested it before. At most one per `reply_gap` goes to all.
    """
    counts = state.counts
    counts[ServerCount.DUPLICATES] += 1
    rack, worker = divmod(sender, MAX_WORKERS)
    if rack >= state.expected.shape[0] or not state.expected[rack] >> worker & 1:
        return
    several = _several(who, state.expected)
    places = _lowest_bit(state.expected[rack] + 1)
    in_turn = get(state.packets[row], CHUNK_ID) % places == worker
    by_another = state.asked[row] not in (0, sender + 1)
    to_all = several or by_another or (in_turn and places > 1)
    to_all = to_all and now - state.repeated_at[row] >= state.settings.reply_gap
    state.asked[row] = state.asked[row] or sender + 1
    if several and not to_all:
        counts[ServerCount.REPLIES_WITHHELD] += 1
        return
    if to_all:
        state.repeated_at[row] = now
    owe(state, row, rack, OWE_ALL if to_all else 1 << worker)


@compiled
def _several(who: WorkerSet, expected: NDArray[np.int64]) -> bool:
    """Return whether `who` is more than one worker."""
    seen = False
    for rack in range(expected.shape[0]):
        workers = _part(who, rack, expected[rack])
        if workers & (workers - 1) or (seen and workers):
            return True
        seen = seen or workers != 0
    return False


@compiled
def owe(state: JobState, row: int, rack: int, what: int) -> None:
    """Add a debt to a row, and queue the row once. Debts that concern no rack are stored with any rack."""
    state.owed[row, rack] |= what
    if not state.queued[row]:
        rows = state.queue.shape[0]
        state.queue[state.cursors[ServerCursor.QUEUE_TAIL] % rows] = row
        state.cursors[ServerCursor.QUEUE_TAIL] += 1
        state.queued[row] = True


@compiled
def _merge(state: JobState, row: int, packet: Words, who: WorkerSet, now: float) -> None:
    """Merge a complete or partial sum into the chunk's H and acc; `who` is P of the theory of operation."""
    have, expected = state.have[row], state.expected
    begun, disjoint, contains, contained = _compare(have, expected, who)
    kept = state.packets[row]
    sticky = get(packet, FLAGS) & (CE | FIN)
    if contains and not contained:
        sticky |= get(kept, FLAGS) & (CE | FIN) if begun else 0
        copy(packet, kept)
    elif contained:
        state.counts[ServerCount.DUPLICATES] += 1
        _hasten(state, row, now, True)
        return
    elif not disjoint and not get(packet, FLAGS) & OR:
        state.counts[ServerCount.OVERLAPS] += 1  # a sum cannot be separated into its contributions
        return
    else:
        _combine(kept, packet)
        state.counts[ServerCount.MERGED] += 1
    put(kept, FLAGS, get(kept, FLAGS) | sticky)
    complete, complete_on_arrival = _unite(have, expected, who, state.heard_at, now)
    if get(packet, FLAGS) & (OR | OWNED) == OR | OWNED:  # the others contribute nothing
        for rack in range(expected.shape[0]):
            have[rack] = expected[rack]
        complete, complete_on_arrival = True, False
    if complete:
        _complete(state, row, complete_on_arrival, now)
        return
    if not begun:
        state.since[row] = now
    _hasten(state, row, now, False)


@compiled
def _hasten(state: JobState, row: int, now: float, again: bool) -> None:
    """Request the missing parts of a chunk that later ones have overtaken, at its first part and repeats.

    With one switch, a part of such a chunk left the slot by a RESEND, so the slot is empty and only workers
    have the rest. With two levels, another switch may still hold a sum.
    """
    cursors, gap = state.cursors, state.settings.reply_gap
    overdue = cursors[ServerCursor.SETTLED] and state.position[row] + OVERDUE <= cursors[ServerCursor.ANCHOR]
    first = state.asked[row] == 0
    if not overdue or not (first or (again and now - state.repeated_at[row] >= gap)):
        return
    state.asked[row], state.repeated_at[row] = max(1, state.asked[row]), now
    if first and cursors[ServerCursor.SUM_FLAG]:
        _owe_resends(state, row)
        state.deadline[row] = now + gap
    else:
        owe(state, row, state.expected.shape[0] - 1, OWE_NEED)


@compiled
def _owe_resends(state: JobState, row: int) -> None:
    """Queue requests to the switches for their partial sums of a chunk."""
    if state.cursors[ServerCursor.SUM_FLAG]:
        owe(state, row, 0, OWE_SPINE_RESEND)
    for rack in range(state.expected.shape[0]):
        owe(state, row, rack, OWE_RESEND)


@compiled
def _compare(
    have: NDArray[np.int64], expected: NDArray[np.int64], who: WorkerSet
) -> tuple[bool, bool, bool, bool]:
    """Return whether H is not empty, P and H are disjoint, P contains H, and H contains P."""
    begun, disjoint, contains, contained = False, True, True, True
    for rack in range(expected.shape[0]):
        arrived = _part(who, rack, expected[rack])
        begun = begun or have[rack] != 0
        disjoint = disjoint and arrived & have[rack] == 0
        contains = contains and arrived & have[rack] == have[rack]
        contained = contained and arrived & have[rack] == arrived
    return begun, disjoint, contains, contained


@compiled
def _unite(
    have: NDArray[np.int64],
    expected: NDArray[np.int64],
    who: WorkerSet,
    heard_at: NDArray[np.float64],
    now: float,
) -> tuple[bool, bool]:
    """Do H |= P and record when P arrived. Return whether H, and whether P, is all workers."""
    complete = complete_on_arrival = True
    for rack in range(expected.shape[0]):
        arrived = _part(who, rack, expected[rack])
        have[rack] |= arrived
        complete = complete and have[rack] == expected[rack]
        complete_on_arrival = complete_on_arrival and arrived == expected[rack]
    if complete_on_arrival:
        heard_at[-1] = now
        return True, True
    for number in range(heard_at.shape[0] - 1):
        rack = number // MAX_WORKERS
        if _part(who, rack, expected[rack]) >> (number % MAX_WORKERS) & 1:
            heard_at[number] = now
    return complete, False


@compiled
def _combine(kept: Words, packet: Words) -> None:
    """Do kept += packet, or kept |= packet, lane by lane; both are in wire order."""
    kept_lanes, packet_lanes = kept[HEADER_WORDS:], packet[HEADER_WORDS:]
    if get(packet, FLAGS) & OR:
        for lane in range(kept_lanes.shape[0]):
            kept_lanes[lane] |= packet_lanes[lane]
    else:
        for lane in range(kept_lanes.shape[0]):
            kept_lanes[lane] = swap(np.uint32(swap(kept_lanes[lane]) + swap(packet_lanes[lane])))


@compiled
def _complete(state: JobState, row: int, in_switch: bool, now: float) -> None:
    """Turn the packet of a complete chunk into its RESULT, kept for workers that lose it."""
    cursors, packet = state.cursors, state.packets[row]
    put(packet, KIND, RESULT)
    put(packet, SENDER, EVERYONE)
    put(packet, BITMAP, state.cursors[ServerCursor.SUM_BITMAP])
    put(packet, FLAGS, get(packet, FLAGS) & ~SPINE | state.cursors[ServerCursor.SUM_FLAG])
    state.counts[ServerCount.CHUNKS_IN_SWITCH if in_switch else ServerCount.CHUNKS_AT_SERVER] += 1
    state.done[row] = True
    state.repeated_at[row], state.asked[row] = -np.inf, 0
    state.deadline[row] = np.inf
    cursors[ServerCursor.ANCHOR] = max(cursors[ServerCursor.ANCHOR], state.position[row])
    if not cursors[ServerCursor.FIRST] <= state.position[row] < cursors[ServerCursor.RUN]:
        cursors[ServerCursor.SETTLED] = 1
    if get(packet, FLAGS) & FIN:
        cursors[ServerCursor.FINISHED] = 1
    if not _for_owner(state, row):
        owe(state, row, 0, OWE_ALL)
        return
    owe(state, row, 0, 1 << get(packet, CHUNK_ID) % (state.heard_at.shape[0] - 1))
    if not cursors[ServerCursor.UNTOLD]:
        cursors[ServerCursor.UNTOLD_FROM] = state.position[row]
        state.clock[ServerClock.UNTOLD] = now
    cursors[ServerCursor.UNTOLD] += 1
    cursors[ServerCursor.UNTOLD_FROM] = min(cursors[ServerCursor.UNTOLD_FROM], state.position[row])


@compiled
def _for_owner(state: JobState, row: int) -> bool:
    """Return whether a complete chunk's result is for its owner alone; a joining chunk's is for all."""
    alone = get(state.packets[row], FLAGS) & (OR | FIN | SPINE | OWNED) == OWNED
    return bool(alone and state.position[row] >= state.cursors[ServerCursor.RUN])


@compiled
def next_due(state: JobState) -> float:
    """Return the earliest time at which to request a chunk, or to tell of complete ones; or infinity."""
    due = state.clock[ServerClock.UNTOLD] + TOLD_AFTER if state.cursors[ServerCursor.UNTOLD] else np.inf
    for row in range(state.deadline.shape[0]):
        due = min(due, state.deadline[row])
    return float(due)


@compiled
def expire(state: JobState, now: float) -> None:
    """Queue requests for all chunks whose timer has run out: first to switches, later to workers, too."""
    racks = state.expected.shape[0]
    if state.cursors[ServerCursor.UNTOLD] and now >= state.clock[ServerClock.UNTOLD] + TOLD_AFTER:
        state.cursors[ServerCursor.UNTOLD] = max(TOLD_TOGETHER, state.cursors[ServerCursor.UNTOLD])
    for row in range(state.position.shape[0]):
        if state.deadline[row] > now:
            continue
        if not current(state, state.position[row]):
            state.deadline[row] = np.inf  # until a packet of the chunk arrives
            continue
        _owe_resends(state, row)
        if state.asked[row]:
            owe(state, row, racks - 1, OWE_NEED)
        state.asked[row] += 1
        waits = state.asked[row] < ASKS
        state.deadline[row] = now + pause(state.settings, state.asked[row]) if waits else np.inf


@compiled
def oldest_incomplete(state: JobState) -> int:
    """Return the row of the oldest incomplete chunk, or -1."""
    oldest = -1
    for row in range(state.position.shape[0]):
        position = state.position[row]
        older = oldest < 0 or position < state.position[oldest]
        incomplete = state.have[row].any() and not state.done[row]
        if older and incomplete and current(state, position):
            oldest = row
    return oldest


@compiled
def send(state: JobState, out: Words) -> int:
    """Fill out uint32[limit, words] with the rows' packets, oldest first; return their number."""
    cursors, rows, filled = state.cursors, state.queue.shape[0], 0
    while cursors[ServerCursor.QUEUE_HEAD] < cursors[ServerCursor.QUEUE_TAIL]:
        row = state.queue[cursors[ServerCursor.QUEUE_HEAD] % rows]
        # A result for all shows that chunks before it are overtaken, unless a list has them as complete.
        while state.owed[row, 0] & OWE_ALL and _untold_before(state, state.position[row]):
            if filled == out.shape[0]:
                return filled
            _tell(state, out[filled], state.position[row])
            filled += 1
        for rack in range(state.expected.shape[0]):
            while state.owed[row, rack]:
                if filled == out.shape[0]:
                    return filled
                debt = state.owed[row, rack] & -state.owed[row, rack]
                state.owed[row, rack] ^= debt
                filled += _pay(state, row, rack, debt, out[filled])
        state.queued[row] = False
        cursors[ServerCursor.QUEUE_HEAD] += 1
    while cursors[ServerCursor.UNTOLD] >= TOLD_TOGETHER and filled < out.shape[0]:
        _tell(state, out[filled], cursors[ServerCursor.ANCHOR] + 1)
        filled += 1
    return filled


@compiled
def _untold_before(state: JobState, position: int) -> bool:
    """Return whether only its owner knows that some chunk before a position is complete."""
    return bool(state.cursors[ServerCursor.UNTOLD] and state.cursors[ServerCursor.UNTOLD_FROM] < position)


@compiled
def _tell(state: JobState, packet: Words, stop: int) -> None:
    """Write the NEED that lists complete chunks whose results only their owners got, from the oldest untold.

    Bit b of lane i stands for the chunk `chunk_id` + 32 i + b. What is left, from `stop` on or for want of
    bits, remains untold.
    """
    cursors, most = state.cursors, 32 * (packet.shape[0] - HEADER_WORDS)
    rows = state.position.shape[0] - (cursors[ServerCursor.RUN] - cursors[ServerCursor.FIRST])
    again = min(TOLD_AGAIN, most - TOLD_TOGETHER)
    first = max(cursors[ServerCursor.UNTOLD_FROM] - again, cursors[ServerCursor.ANCHOR] - rows + 1)
    stop = min(stop, first + most)
    copy(state.packets[cursors[ServerCursor.UNTOLD_FROM] % rows], packet)
    put(packet, KIND, NEED)
    put(packet, SENDER, EVERYONE)
    put(packet, FLAGS, OWNED)
    put(packet, BITMAP, 0)
    put(packet, CHUNK_ID, first & 0xFFFFFFFF)
    packet[HEADER_WORDS:] = 0
    cursors[ServerCursor.UNTOLD] = 0
    for position in range(first, cursors[ServerCursor.ANCHOR] + 1):
        row, i = position % rows, position - first
        if state.position[row] != position or not state.done[row] or not _for_owner(state, row):
            continue
        if position < stop:
            word = HEADER_WORDS + i // 32
            packet[word] = swap(np.uint32(swap(packet[word]) | np.uint32(1 << i % 32)))
            continue
        if not cursors[ServerCursor.UNTOLD]:
            cursors[ServerCursor.UNTOLD_FROM] = position
        cursors[ServerCursor.UNTOLD] += 1
    state.counts[ServerCount.NEEDS] += 1


@compiled
def _pay(state: JobState, row: int, rack: int, debt: int, packet: Words) -> int:
    """Write the packet that pays one debt; return 1, or 0 if the debt no longer exists."""
    if debt in (OWE_RESEND, OWE_SPINE_RESEND, OWE_NEED):
        return _ask(state, row, rack, debt, packet)
    copy(state.packets[row], packet)
    if debt != OWE_ALL:
        put(packet, SENDER, rack * MAX_WORKERS + _lowest_bit(debt))
    state.counts[ServerCount.RESULTS if debt == OWE_ALL else ServerCount.REPLIES] += 1
    return 1


@compiled
def _ask(state: JobState, row: int, rack: int, debt: int, packet: Words) -> int:
    """Write a RESEND or a NEED; return 1, or 0 if nothing is missing any more."""
    if state.done[row] or (debt == OWE_RESEND and state.have[row, rack] == state.expected[rack]):
        return 0
    copy(state.packets[row], packet)
    put(packet, KIND, NEED if debt == OWE_NEED else RESEND)
    put(packet, SENDER, EVERYONE)
    put(packet, FLAGS, get(packet, FLAGS) & ~(CE | SPINE | OWNED))
    put(packet, BITMAP, 0)
    if debt == OWE_NEED:
        _name_missing(state, row, packet)
    elif debt == OWE_SPINE_RESEND:
        put(packet, FLAGS, get(packet, FLAGS) | SPINE)
    elif state.cursors[ServerCursor.SUM_FLAG]:
        # The packet in which the rack's switch gives up its sum keeps this sender, and the spine checks it.
        put(packet, SENDER, rack * MAX_WORKERS)
    state.counts[ServerCount.NEEDS if debt == OWE_NEED else ServerCount.RESENDS] += 1
    return 1


@compiled
def _name_missing(state: JobState, row: int, packet: Words) -> None:
    """Name the missing workers: in the bitmap; in two levels, racks in the bitmap and workers in lanes."""
    if not state.cursors[ServerCursor.SUM_FLAG]:
        put(packet, BITMAP, state.expected[0] & ~state.have[row, 0])
        return
    put(packet, FLAGS, get(packet, FLAGS) | SPINE)
    racks = 0
    for rack in range(state.expected.shape[0]):
        missing = state.expected[rack] & ~state.have[row, rack]
        packet[HEADER_WORDS + rack] = swap(np.uint32(missing))
        racks |= (1 << rack) if missing else 0
    put(packet, BITMAP, racks)


@compiled
def _lowest_bit(value: int) -> int:
    """Return the number of the lowest bit set in `value`, which is not 0."""
    number = 0
    while not value >> number & 1:
        number += 1
    return number
