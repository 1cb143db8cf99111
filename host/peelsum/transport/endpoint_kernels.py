"""Compiled loops that change a worker's state, once per packet or chunk.

`peelsum.transport.endpoint` decides per tensor and per batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.transport.endpoint_state import Clock, Count, Identity, Mark, TimerLimits, WorkerState
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
#: A contribution counts as lost once the chunk this many positions later has its result.
REORDERING = 3
#: The resend timer in usual round-trip times, and its share for chunks known to be lost.
TIMEOUT_RATIO = 4.0
LOST_BEFORE = 0.5
#: Usual round-trip times that the answer to a RESEND takes at least. A sooner one answers an earlier packet.
SOONEST = 0.5
#: Why a chunk is queued, in `WorkerState.queued`.
OWN_DOUBT, NEEDED = 1, 2


@compiled
def contribute(state: WorkerState, header: Words, tensor: Words, offset: int, count: int, now: float) -> None:
    """Pack the next `count` chunks from tensor uint32[n], from element `offset`, and count them as sent."""
    rows, words = state.packets.shape
    lanes = words - HEADER_WORDS
    if state.marks[Mark.BASE] == state.marks[Mark.NEXT]:
        state.clock[Clock.QUIET_SINCE] = now
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
    state.marks[Mark.NEXT] += count
    state.counts[Count.CONTRIBUTIONS] += count


@compiled
def take(
    state: WorkerState,
    rows: Words,
    bad: NDArray[np.bool_],
    identity: Identity,
    window: int,
    now: float,
    limits: TimerLimits,
    at: NDArray[np.int64],
) -> None:
    """Process received packets: rows uint32[n, words], bad bool[n] for malformed ones.

    Sets at[i] to the position of the chunk whose result packet i brings, or to -1 if there is nothing to
    store.
    """
    counts, marks = state.counts, state.marks
    for i in range(rows.shape[0]):
        at[i] = -1
        packet = rows[i]
        if bad[i]:
            counts[Count.MALFORMED] += 1
        elif get(packet, JOB_ID) != identity.job_id:
            counts[Count.FOREIGN_JOB] += 1
        elif get(packet, GENERATION) != identity.generation:
            counts[Count.WRONG_GENERATION] += 1
        else:
            kind = get(packet, KIND)
            position = unwrap(get(packet, CHUNK_ID), marks[Mark.BASE])
            if kind == RESULT:
                if _accept(state, packet, position, window, now, limits):
                    at[i] = position
            elif kind == NEED and (get(packet, FLAGS) & SPINE != 0) == (identity.rack >= 0):
                _need(state, packet, position, window, identity.rack, identity.worker_mask)
            else:
                counts[Count.UNEXPECTED_KIND] += 1
    _advance(state, now)


@compiled
def _accept(
    state: WorkerState, packet: Words, position: int, window: int, now: float, limits: TimerLimits
) -> bool:
    """Return whether a RESULT is new; if so, update the state."""
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
    clock, sent = state.clock, state.sent_at[row]
    clock[Clock.QUIET_SINCE] = now
    if state.tries[row] == 0 or now - sent > SOONEST * clock[Clock.USUAL]:
        clock[Clock.ANSWERED] = max(clock[Clock.ANSWERED], sent)
    if state.tries[row] == 0:  # Karn: the answer to a retransmitted chunk gives no sample
        _sample(clock, max(0.0, now - sent), limits)
    return True


@compiled
def _sample(clock: NDArray[np.float64], rtt: float, limits: TimerLimits) -> None:
    """Add a measured round-trip time to the statistics and to the resend timer.

    A round trip involves all workers, and may mostly consist of waiting for a slow one. So the estimate
    follows the short times, down fast and up slowly, and the timer is a multiple of it.
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
    clock[Clock.TIMEOUT] = min(limits.most, max(limits.least, TIMEOUT_RATIO * usual))


@compiled
def _need(
    state: WorkerState, packet: Words, position: int, window: int, own_rack: int, worker_mask: int
) -> None:
    """Process a NEED: note who is missing from the oldest chunk; queue a RESEND if this worker is."""
    counts, marks = state.counts, state.marks
    counts[Count.NEEDS] += 1
    if position == marks[Mark.BASE]:
        marks[Mark.NEEDED] = position
        for rack in range(state.missing.shape[0]):
            state.missing[rack] = _missing(packet, rack)
    # The joining chunks have the rows of the chunks before the run's first.
    joining = marks[Mark.FIRST] <= position < marks[Mark.JOINED]
    own = position + (marks[Mark.RUN] - marks[Mark.JOINED] if joining else 0)
    sent = joining or marks[Mark.RUN] <= position < marks[Mark.NEXT]
    kept = sent and own >= marks[Mark.BASE] - window
    if kept and _missing(packet, max(0, own_rack)) & worker_mask:
        _enqueue(state, position, NEEDED)


@compiled
def _missing(packet: Words, rack: int) -> int:
    """Return a rack's workers that a NEED names: its bitmap, or in two levels the rack's lane."""
    if get(packet, FLAGS) & SPINE:
        return int(swap(packet[HEADER_WORDS + rack])) if get(packet, BITMAP) >> rack & 1 else 0
    return get(packet, BITMAP)


@compiled
def _enqueue(state: WorkerState, position: int, cause: int) -> None:
    """Queue a chunk for retransmission, once.

    The queue cannot overflow: it holds a chunk once, and rows are reused only while it is empty, because
    retransmissions are sent before contributions.
    """
    rows = state.queue.shape[0]
    row = position % rows
    if not state.queued[row]:
        state.queue[state.marks[Mark.QUEUE_TAIL] % rows] = position
        state.marks[Mark.QUEUE_TAIL] += 1
    state.queued[row] = max(state.queued[row], cause)


@compiled
def _advance(state: WorkerState, now: float) -> None:
    """Move the window past answered chunks, and queue chunks that later results show to be lost.

    A contribution is overtaken by later chunks, a RESEND by any packet sent after it (as in RFC 8985).
    """
    marks, clock, rows = state.marks, state.clock, state.answered.shape[0]
    while marks[Mark.BASE] < marks[Mark.NEXT] and state.answered[marks[Mark.BASE] % rows]:
        marks[Mark.BASE] += 1
    for position in range(marks[Mark.BASE], marks[Mark.HIGHEST] - REORDERING + 1):
        row = position % rows
        if state.answered[row] or state.queued[row]:
            continue
        sent, first = state.sent_at[row], state.tries[row] == 0
        if first or (sent < clock[Clock.ANSWERED] and now - sent > SOONEST * clock[Clock.USUAL]):
            _enqueue(state, position, OWN_DOUBT)
            state.counts[Count.LOST] += first


@compiled
def store(rows: Words, at: NDArray[np.int64], start: int, stop: int, lanes: int, result: Words) -> int:
    """Copy the sums of chunks [start, stop) into result uint32[n]; return how many there were."""
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
def _due(clock: NDArray[np.float64], sent: float, tries: int, patience: float, most: float) -> float:
    """Return when to retransmit a chunk that was sent at `sent` and not answered.

    Each new result restarts the timer (RFC 6298, 5.3): while results arrive, later ones reveal the lost
    chunks, and the others are queued somewhere. Without results the wait doubles, up to `most`.
    """
    silence = sent - clock[Clock.QUIET_SINCE]
    if tries == 0 and silence >= 0:
        return sent + patience
    wait = clock[Clock.TIMEOUT] * (LOST_BEFORE if tries else 1.0)
    return float(max(sent, clock[Clock.QUIET_SINCE]) + min(most, max(wait, silence)))


@compiled
def next_due(state: WorkerState, patience: float, most: float) -> float:
    """Return when a chunk is to be retransmitted; infinity if there is none.

    Only the oldest chunk and chunks retransmitted before have a timer. The others may wait for a slow worker:
    retransmitting a whole window would take all its partial sums out of the switch. Later results reveal
    their losses.
    """
    marks, due = state.marks, np.inf
    stop = min(marks[Mark.NEXT], max(marks[Mark.BASE] + 1, marks[Mark.HIGHEST]))
    for position in range(marks[Mark.BASE], stop):
        row = position % state.answered.shape[0]
        timed = state.tries[row] or position == marks[Mark.BASE]
        if timed and not state.answered[row] and not state.queued[row]:
            due = min(due, _due(state.clock, state.sent_at[row], state.tries[row], patience, most))
    return float(due)


@compiled
def expire(state: WorkerState, now: float, patience: float, most: float) -> int:
    """Queue the chunks whose timer has run out, and probes after the oldest. Return how many were found lost.

    If only retransmitted chunks were answered since the last timeout, the window's tail was lost: `_probes`
    then doubles the number of probes.
    """
    marks, clock = state.marks, state.clock
    queued = probes = lost = 0
    for position in range(marks[Mark.BASE], marks[Mark.NEXT]):
        row = position % state.answered.shape[0]
        sent, tries = state.sent_at[row], state.tries[row]
        if state.answered[row] or state.queued[row]:
            continue
        oldest = position == marks[Mark.BASE]
        due = (tries > 0 or oldest) and _due(clock, sent, tries, patience, most) <= now
        if due and oldest:
            probes = _probes(state)
        if due or (queued < probes and now - sent >= clock[Clock.TIMEOUT]):
            lost += tries == 0 and clock[Clock.QUIET_SINCE] > sent
            _enqueue(state, position, OWN_DOUBT)
            queued += 1
    state.counts[Count.TIMEOUTS] += queued
    return lost


@compiled
def _probes(state: WorkerState) -> int:
    """Return how many chunks to retransmit now that the oldest one's timer has run out."""
    marks = state.marks
    came = state.counts[Count.RESULTS] - marks[Mark.RESULTS_BEFORE]
    marks[Mark.RESULTS_BEFORE] = state.counts[Count.RESULTS]
    probes = 2 * marks[Mark.PROBES] if 0 < came <= 2 * marks[Mark.PROBES] else 1
    marks[Mark.PROBES] = min(probes, state.answered.shape[0])
    return int(marks[Mark.PROBES])


@compiled
def resend(state: WorkerState, now: float, out: Words) -> int:
    """Fill out uint32[limit, words] with queued RESENDs; return how many."""
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
        filled += 1
    state.counts[Count.RESENDS] += filled
    return filled
