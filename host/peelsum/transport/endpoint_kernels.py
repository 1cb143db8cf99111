"""Compiled loops that change a worker's state, once per packet or chunk.

`peelsum.transport.endpoint` calls them for each batch, `peelsum.transport.exchange_kernels` for each of a
socket's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.transport import congestion
from peelsum.transport.endpoint_state import (
    GATHER,
    SCATTER,
    Clock,
    Column,
    Count,
    Cursor,
    WorkerState,
)
from peelsum.transport.layout import (
    BITMAP,
    CHUNK_ID,
    FLAGS,
    GENERATION,
    HEADER_WORDS,
    JOB_ID,
    KIND,
    Words,
    copy,
    get,
    put,
    swap,
    unwrap,
    well_formed,
)
from peelsum.wire import Flag, Kind
from peelsum.wire.system_calls import load, save

Numbers = NDArray[np.int64]
CONTRIBUTION, BYPASS, RESULT, NEED = map(int, (Kind.CONTRIBUTION, Kind.BYPASS, Kind.RESULT, Kind.NEED))
RETRY, RESEND = int(Kind.RETRY), int(Kind.RESEND)
OR, CE, FIN, SPINE, OWNED = map(int, (Flag.OR, Flag.CE, Flag.FIN, Flag.SPINE, Flag.OWNED))
#: A contribution counts as lost once the chunk this many positions later has its result.
REORDERING = 3
#: Usual round-trip times without an answer after which a chunk is retransmitted.
PROBE_RATIO = 1.5
#: The same in first answers' times, for the oldest chunk, while nothing has come back since it was sent.
FIRST_RATIO = 2.0
#: The share of a longer first answer's time that is expected of the next one.
FIRST_KEPT = 0.75
#: Pauses after which every chunk is probed while results show losses. Chunks in a full queue take less.
LATE_PAUSES = 4
#: How often a chunk is retransmitted before each try waits longer, up to 16 times.
EAGER_TRIES = 4
#: Workers that send a RESEND of one chunk at once, from the third try on.
SENDERS = 8
#: Usual round-trip times that the answer to a retransmission takes at least. A sooner one answers an
#: earlier packet.
SOONEST = 0.5
#: Usual round-trip times by which a packet must be younger than a retransmission to overtake it. Others
#: retransmit the chunk a little later, and may send later chunks before (RFC 8985 waits a quarter, too).
OVERTAKING = 0.25
#: Why a chunk is queued, in `WorkerState.queued`.
OWN_DOUBT, NEEDED = 1, 2


@compiled
def begin(state: WorkerState, now: float) -> None:
    """Begin to send: note how many results have come, and start the wait for those of outstanding chunks."""
    came = state.counts[Count.RESULTS] - state.cursors[Cursor.RESULTS_AT_TURN]
    if came:
        state.cursors[Cursor.RESULTS_AT_TURN] += came
        congestion.on_turn(state.congestion, came)
    if state.clock[Clock.MOVED] == np.inf and state.cursors[Cursor.BASE] < state.cursors[Cursor.END]:
        state.clock[Clock.MOVED] = now


@compiled
def contribute(state: WorkerState, limit: int, now: float) -> tuple[int, int]:
    """Pack up to `limit` new chunks into the rows that keep them; return the first row, and how many.

    Stops before a GATHER: `gather` packs its chunks, not all of which are sent.
    """
    cursors, counts, rows = state.cursors, state.counts, state.packets.shape[0]
    first = cursors[Cursor.NEXT] % rows
    room = min(cursors[Cursor.BASE] + state.settings.window, cursors[Cursor.END]) - cursors[Cursor.NEXT]
    unanswered = cursors[Cursor.BEGUN] - counts[Count.RESULTS]
    room = min(room, congestion.size(state.congestion) - unanswered, limit, rows - first)
    remaining = count = max(0, room)
    if remaining and cursors[Cursor.BASE] == cursors[Cursor.NEXT]:
        state.clock[Clock.QUIET_SINCE] = state.clock[Clock.BEGAN] = now
    while remaining:
        tensor = state.tensors[cursors[Cursor.TENSOR_PACKED] % state.tensors.shape[0]]
        if tensor[Column.COLLECTIVE] == GATHER:
            break
        packed = min(remaining, tensor[Column.STOP] - cursors[Cursor.NEXT])
        _pack(state, tensor, packed, now)
        remaining -= packed
    counts[Count.CONTRIBUTIONS] += count - remaining
    return first, count - remaining


@compiled
def gather(state: WorkerState, now: float, out: Words) -> int:
    """Begin chunks of a GATHER; fill out uint32[limit, words] with those to be sent, and return how many.

    This worker sends its own chunks and those that all workers contribute. Of another worker's chunk it keeps
    a RETRY, and waits for the result. The server keeps the results of one window only, so no worker may fall
    a window behind. Therefore all workers contribute every PACE-th chunk, beginning with the first, at most
    REACH chunks are begun after the oldest without a result, and until the first chunk has its result, only
    chunks that all contribute are begun.
    """
    cursors, filled, settled = state.cursors, 0, False
    while cursors[Cursor.NEXT] < cursors[Cursor.END] and filled < out.shape[0]:
        tensor = state.tensors[cursors[Cursor.TENSOR_PACKED] % state.tensors.shape[0]]
        position, base = cursors[Cursor.NEXT], cursors[Cursor.BASE]
        of_all, is_owner = _contributes(tensor, position)
        if tensor[Column.COLLECTIVE] != GATHER or position - base >= tensor[Column.REACH]:
            break
        unanswered = cursors[Cursor.BEGUN] - state.counts[Count.RESULTS]
        if unanswered >= congestion.size(state.congestion) or not (of_all or base > tensor[Column.START]):
            break
        if base == position:
            state.clock[Clock.QUIET_SINCE] = state.clock[Clock.BEGAN] = now
        row = position % state.packets.shape[0]
        _pack(state, tensor, 1, now)
        packet = state.packets[row]
        if not of_all:
            put(packet, KIND, BYPASS if is_owner else RETRY)
            put(packet, FLAGS, OR | OWNED if is_owner else OR)
        if of_all or is_owner:
            copy(packet, out[filled])
            filled += 1
        if state.early[row] == position:
            state.answered[row] = settled = True
            _advance(state, now)
    if settled and cursors[Cursor.BASE] == cursors[Cursor.END]:
        state.clock[Clock.MOVED] = np.inf
    state.counts[Count.CONTRIBUTIONS] += filled
    return filled


@compiled
def _contributes(tensor: Numbers, position: int) -> tuple[bool, bool]:
    """Return whether all workers contribute a chunk of a GATHER, and whether this worker owns it."""
    of_all = (position - tensor[Column.START]) % tensor[Column.PACE] == 0
    return of_all, _piece(tensor, position)[0] == tensor[Column.MINE]


@compiled
def _piece(tensor: Numbers, position: int) -> tuple[int, int]:
    """Return which piece of its tensor a chunk is of, and the chunk's place in the piece."""
    i = position - tensor[Column.START]
    return (i + tensor[Column.TURN]) % tensor[Column.PIECES], i // tensor[Column.PIECES]


@compiled
def _pack(state: WorkerState, tensor: Numbers, count: int, now: float) -> None:
    """Pack the next `count` chunks, all of one tensor."""
    rows, words = state.packets.shape
    lanes, size = words - HEADER_WORDS, tensor[Column.SIZE]
    source = tensor[Column.WORDS]
    for k in range(count):
        position = state.cursors[Cursor.NEXT] + k
        row = position % rows
        packet = state.packets[row]
        copy(state.header, packet[:HEADER_WORDS])
        put(packet, CHUNK_ID, position & 0xFFFFFFFF)
        put(packet, FLAGS, tensor[Column.FLAGS])
        if position == tensor[Column.STOP] - 1:  # its result is for all, and brings the list of those before
            put(packet, FLAGS, tensor[Column.FLAGS] & ~OWNED)
        piece, place = _piece(tensor, position)
        filled = max(0, min(lanes, size - place * lanes))
        if tensor[Column.COLLECTIVE] == GATHER:
            filled = filled if piece == tensor[Column.MINE] else 0
            piece = 0
        first = piece * size + place * lanes
        for i in range(filled):
            packet[HEADER_WORDS + i] = swap(load(source, first + i))
        packet[HEADER_WORDS + filled :] = 0
        state.answered[row] = False
        state.queued[row] = 0
        state.tries[row] = 0
        state.sent_at[row] = now
    state.cursors[Cursor.NEXT] += count
    state.cursors[Cursor.BEGUN] += count
    if state.cursors[Cursor.NEXT] == tensor[Column.STOP]:
        state.cursors[Cursor.TENSOR_PACKED] += 1


@compiled
def take(state: WorkerState, rows: Words, now: float) -> None:
    """Process received packets, rows uint32[n, words] of any content; store the sums that they bring."""
    counts, cursors, settings = state.counts, state.cursors, state.settings
    results, marked, lost = counts[Count.RESULTS], counts[Count.MARKED], counts[Count.LOST]
    for i in range(rows.shape[0]):
        packet = rows[i]
        if not well_formed(packet):
            counts[Count.MALFORMED] += 1
        elif get(packet, JOB_ID) != settings.job_id:
            counts[Count.FOREIGN_JOB] += 1
        elif get(packet, GENERATION) != settings.generation:
            counts[Count.WRONG_GENERATION] += 1
        else:
            kind = get(packet, KIND)
            position = unwrap(get(packet, CHUNK_ID), cursors[Cursor.BASE])
            if kind == RESULT:
                if _accept(state, packet, position, now):
                    _store(state, packet, position)
            elif kind == NEED and get(packet, FLAGS) & OWNED:
                _settle(state, packet, position, now)
            elif kind == NEED and (get(packet, FLAGS) & SPINE != 0) == (settings.rack >= 0):
                _need(state, packet, position)
            else:
                counts[Count.UNEXPECTED_KIND] += 1
    _advance(state, now)
    gained = counts[Count.RESULTS] - results
    if gained:
        base, end = cursors[Cursor.BASE], cursors[Cursor.NEXT]
        clock = state.clock
        clock[Clock.MOVED] = now if base < cursors[Cursor.END] else np.inf
        full = congestion.fullness(state.congestion, clock[Clock.RTT_LAST], clock[Clock.RTT_LEAST])
        congestion.on_results(state.congestion, gained, counts[Count.MARKED] > marked, base, end, full)
        if counts[Count.LOST] > lost:
            congestion.on_losses(state.congestion, end, full)


@compiled
def _store(state: WorkerState, packet: Words, position: int) -> None:
    """Copy a new sum to its tensor's result, unless it is of another worker's piece."""
    lanes, tensor = packet.shape[0] - HEADER_WORDS, state.tensors[_tensor_of(state, position)]
    (piece, place), size = _piece(tensor, position), tensor[Column.SIZE]
    filled = min(lanes, size - place * lanes)
    if tensor[Column.COLLECTIVE] == SCATTER:
        filled = filled if piece == tensor[Column.MINE] else 0
        piece = 0
    first = piece * size + place * lanes
    for i in range(filled):
        save(tensor[Column.RESULT], first + i, swap(packet[HEADER_WORDS + i]))
    _count_down(state, tensor)


@compiled
def _tensor_of(state: WorkerState, position: int) -> int:
    """Return the row of a chunk's tensor. The chunk has no result yet."""
    number, room = state.cursors[Cursor.TENSOR_OLDEST], state.tensors.shape[0]
    while position >= state.tensors[number % room, Column.STOP]:
        number += 1
    return int(number % room)


@compiled
def _count_down(state: WorkerState, tensor: Numbers) -> None:
    """Record that one more of a tensor's chunks is settled."""
    cursors, room = state.cursors, state.tensors.shape[0]
    tensor[Column.LEFT] -= 1
    if not tensor[Column.LEFT]:
        state.counts[Count.COMPLETED] += 1
        state.counts[Count.URGENT] += tensor[Column.URGENT]
    while (
        cursors[Cursor.TENSOR_OLDEST] < cursors[Cursor.TENSOR_PACKED]
        and not (state.tensors[cursors[Cursor.TENSOR_OLDEST] % room, Column.LEFT])
    ):
        cursors[Cursor.TENSOR_OLDEST] += 1


@compiled
def _accept(state: WorkerState, packet: Words, position: int, now: float) -> bool:
    """Return whether a RESULT is new; if so, update the state."""
    counts, cursors, window = state.counts, state.cursors, state.settings.window
    row = position % state.answered.shape[0]
    if cursors[Cursor.NEXT] <= position < min(cursors[Cursor.END], cursors[Cursor.BASE] + window):
        return _accept_early(state, packet, position, row, now)
    if position >= cursors[Cursor.NEXT] or position < cursors[Cursor.BASE] - window:
        counts[Count.OUT_OF_WINDOW] += 1
        return False
    if position < cursors[Cursor.BASE] or state.answered[row]:
        counts[Count.DUPLICATES] += 1
        return False
    if get(packet, FLAGS) & ~get(state.packets[row], FLAGS) & FIN:
        counts[Count.DEPARTED] += 1
        return False
    state.answered[row] = True
    counts[Count.RESULTS] += 1
    if get(packet, FLAGS) & CE:
        counts[Count.MARKED] += 1
    clock, sent, kind = state.clock, state.sent_at[row], get(state.packets[row], KIND)
    _end_silence(clock, now)
    if clock[Clock.BEGAN] < np.inf and state.tries[row] == 0:
        _first_answer(clock, sent, now)
    if kind == CONTRIBUTION and not get(state.packets[row], FLAGS) & OWNED:
        cursors[Cursor.HIGHEST] = max(cursors[Cursor.HIGHEST], position)
    if kind == RETRY and state.tries[row] == 0:  # nothing was sent
        return True
    if state.tries[row] == 0 or now - sent > SOONEST * clock[Clock.USUAL]:
        clock[Clock.ANSWERED] = max(clock[Clock.ANSWERED], sent)
    if state.tries[row] == 0:  # Karn: the answer to a retransmitted chunk gives no sample
        _sample(clock, max(0.0, now - sent))
    return True


@compiled
def _accept_early(state: WorkerState, packet: Words, position: int, row: int, now: float) -> bool:
    """Return whether a RESULT of a chunk that this worker has not begun is new; if so, update the state."""
    tensor = state.tensors[_tensor_of(state, position)]
    of_all, is_owner = _contributes(tensor, position)
    others = tensor[Column.COLLECTIVE] == GATHER and not of_all and not is_owner
    if not others or get(packet, FLAGS) & FIN or state.early[row] == position:
        state.counts[Count.OUT_OF_WINDOW] += 1
        return False
    state.early[row] = position
    state.counts[Count.RESULTS] += 1
    state.counts[Count.MARKED] += get(packet, FLAGS) & CE != 0
    _end_silence(state.clock, now)
    return True


@compiled
def _settle(state: WorkerState, packet: Words, position: int, now: float) -> None:
    """Process the server's list of complete chunks: those of a SCATTER's other pieces are answered.

    Bit b of lane i stands for the chunk `position` + 32 i + b. Earlier unanswered chunks are overtaken.
    """
    cursors = state.cursors
    for i in range(packet.shape[0] - HEADER_WORDS):
        bits = np.int64(swap(packet[HEADER_WORDS + i]))
        for bit in range(32 if bits else 0):
            at = position + 32 * i + bit
            if not bits >> bit & 1 or not cursors[Cursor.BASE] <= at < cursors[Cursor.NEXT]:
                continue
            cursors[Cursor.HIGHEST] = max(cursors[Cursor.HIGHEST], at)
            row = at % state.answered.shape[0]
            if state.answered[row] or get(state.packets[row], FLAGS) & (OWNED | OR) != OWNED:
                continue
            tensor = state.tensors[_tensor_of(state, at)]
            if _piece(tensor, at)[0] != tensor[Column.MINE]:
                state.answered[row] = True
                state.counts[Count.RESULTS] += 1
                _end_silence(state.clock, now)
                _count_down(state, tensor)


@compiled
def _sample(clock: NDArray[np.float64], rtt: float) -> None:
    """Add a measured round-trip time to the statistics and to the usual one.

    A round trip involves all workers, and may mostly consist of waiting for a slow one. So the usual time
    follows the short ones, down fast and up slowly.
    """
    clock[Clock.RTT_LEAST] = min(clock[Clock.RTT_LEAST], rtt)
    clock[Clock.RTT_MOST] = max(clock[Clock.RTT_MOST], rtt)
    clock[Clock.RTT_SUM] += rtt
    clock[Clock.RTT_LAST] = rtt
    clock[Clock.RTT_SAMPLES] += 1
    usual = clock[Clock.USUAL]
    if usual < 0:
        usual = rtt
    elif rtt < usual:
        usual += (rtt - usual) / 8
    else:
        usual += (min(rtt, 2 * usual) - usual) / 128
    clock[Clock.USUAL] = usual


@compiled
def _need(state: WorkerState, packet: Words, position: int) -> None:
    """Process a NEED: note who is missing from the oldest chunk; queue a RESEND if this worker is."""
    cursors, settings = state.cursors, state.settings
    state.counts[Count.NEEDS] += 1
    if position == cursors[Cursor.BASE]:
        cursors[Cursor.NEEDED] = position
        for rack in range(state.missing.shape[0]):
            state.missing[rack] = _missing(packet, rack)
    # The joining chunks have the rows of the chunks before the run's first.
    joining = cursors[Cursor.FIRST] <= position < cursors[Cursor.JOINED]
    sent_position = position + (cursors[Cursor.RUN] - cursors[Cursor.JOINED] if joining else 0)
    sent = joining or cursors[Cursor.RUN] <= position < cursors[Cursor.NEXT]
    kept = sent and sent_position >= cursors[Cursor.BASE] - settings.window
    if kept and _missing(packet, max(0, settings.rack)) & settings.worker_mask:
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
        state.queue[state.cursors[Cursor.QUEUE_TAIL] % rows] = position
        state.cursors[Cursor.QUEUE_TAIL] += 1
    state.queued[row] = max(state.queued[row], cause)


@compiled
def _advance(state: WorkerState, now: float) -> None:
    """Move the window past answered chunks, and queue chunks that later results show to be lost.

    A contribution is overtaken by later chunks, a retransmission by any packet sent long enough after it
    (RFC 8985).
    """
    cursors, clock, rows = state.cursors, state.clock, state.answered.shape[0]
    while cursors[Cursor.BASE] < cursors[Cursor.NEXT] and state.answered[cursors[Cursor.BASE] % rows]:
        cursors[Cursor.BASE] += 1
    for position in range(cursors[Cursor.BASE], cursors[Cursor.HIGHEST] - REORDERING + 1):
        row = position % rows
        if state.answered[row] or state.queued[row]:
            continue
        sent, first = state.sent_at[row], state.tries[row] == 0
        usual = clock[Clock.USUAL]
        overtaken = sent + OVERTAKING * usual < clock[Clock.ANSWERED] and now - sent > SOONEST * usual
        if first or (state.tries[row] == 1 and overtaken):
            _enqueue(state, position, OWN_DOUBT)
            state.counts[Count.LOST] += first


@compiled
def _due(state: WorkerState, sent: float, tries: int, pause: float) -> float:
    """Return when to retransmit a chunk that was sent at `sent` and not answered; see `_pause`.

    While chunks that were sent once are answered, later results reveal the lost ones, so each new result
    starts their wait again (RFC 6298, 5.3). The end of a sum has no later result, so it is probed after a
    round trip (RFC 9002, 6.2; RFC 8985, 7). In silence each wait is as long as the silence before it.
    """
    clock, settings, quiet = state.clock, state.settings, state.clock[Clock.QUIET_SINCE]
    if tries == 0 and sent >= quiet:
        return float(sent + min(settings.patience, FIRST_RATIO * clock[Clock.FIRST_ANSWER]))
    wait = max(pause, (sent - quiet) * min(1.0, tries / 2))
    if tries > EAGER_TRIES:
        wait = max(wait, settings.least, pause * 2.0 ** min(tries - EAGER_TRIES, 4))
    return float((sent if tries > 1 else max(sent, quiet)) + min(settings.most, wait))


@compiled
def _pause(state: WorkerState) -> float:
    """Return how long a chunk may be unanswered before it counts as lost, in seconds.

    That is one and a half usual round trips, or as many usual silences between two results if those are
    longer: another worker may submit its chunks slowly. While results show losses, silences are due to them,
    and what a usual round trip takes beyond the shortest one counts in proportion to the chunks that are
    unanswered: at the end of a sum hardly any packet waits in a queue.
    """
    usual = state.clock[Clock.USUAL]
    if usual < 0:
        return float(state.settings.patience / 2)
    if state.cursors[Cursor.BASE] >= state.congestion[congestion.Number.LOSSY_UNTIL]:
        usual = max(usual, state.clock[Clock.SILENCE])
    else:
        unanswered = state.cursors[Cursor.BEGUN] - state.counts[Count.RESULTS]
        least = min(usual, state.clock[Clock.RTT_LEAST])
        usual = least + (usual - least) * min(1.0, unanswered / congestion.size(state.congestion))
    return float(PROBE_RATIO * usual)


@compiled
def _end_silence(clock: NDArray[np.float64], now: float) -> None:
    """Note that a new result came, and how long there was none before it.

    A lost chunk causes a silence, too, and waiting longer makes it longer. So the usual silence follows the
    short ones: it is long only if nearly all are.
    """
    if clock[Clock.QUIET_SINCE] != clock[Clock.BEGAN]:
        longer = now - clock[Clock.QUIET_SINCE] - clock[Clock.SILENCE]
        clock[Clock.SILENCE] += longer / (8 if longer > 0 else 2)
    clock[Clock.QUIET_SINCE] = now


@compiled
def _first_answer(clock: NDArray[np.float64], sent: float, now: float) -> None:
    """Note how long the first answer after an idle time took: other workers may have been computing.

    It is the first one to a chunk that was not retransmitted, because another may have been lost.
    """
    if sent == clock[Clock.BEGAN]:
        before = FIRST_KEPT * clock[Clock.FIRST_ANSWER] if clock[Clock.RTT_SAMPLES] else 0.0
        clock[Clock.FIRST_ANSWER] = max(now - sent, before)
    clock[Clock.BEGAN] = np.inf


@compiled
def next_due(state: WorkerState) -> float:
    """Return when a chunk is to be retransmitted; infinity if there is none.

    Only the oldest chunk and chunks retransmitted before have a timer. The others may wait for a slow worker:
    retransmitting a whole window would take all its partial sums out of the switch. Later results reveal
    their losses.
    """
    cursors, due, pause = state.cursors, np.inf, _pause(state)
    stop = min(cursors[Cursor.NEXT], max(cursors[Cursor.BASE] + 1, cursors[Cursor.HIGHEST]))
    for position in range(cursors[Cursor.BASE], stop):
        row = position % state.answered.shape[0]
        timed = state.tries[row] or position == cursors[Cursor.BASE]
        if timed and not state.answered[row] and not state.queued[row]:
            due = min(due, _due(state, state.sent_at[row], state.tries[row], pause))
    return float(due)


@compiled
def expire(state: WorkerState, now: float) -> None:
    """Queue the chunks whose timer has run out, and probes after the oldest.

    If about as many chunks were answered since the last timeout as it retransmitted, the window's tail was
    lost: `_probes` then doubles the number of probes. Of slow chunks, one is answered at a time. While
    results show losses, chunks that were sent long ago are probed, too: of many workers' contributions to a
    chunk, one is nearly always lost, so that no later result reveals it.
    """
    cursors, pause = state.cursors, _pause(state)
    queued = probes = 0
    lossy = False
    for position in range(cursors[Cursor.BASE], cursors[Cursor.NEXT]):
        row = position % state.answered.shape[0]
        sent, tries = state.sent_at[row], state.tries[row]
        if state.answered[row] or state.queued[row]:
            continue
        oldest = position == cursors[Cursor.BASE]
        due = (tries > 0 or oldest) and _due(state, sent, tries, pause) <= now
        if due and oldest:
            probes = _probes(state)
            lossy = position < state.congestion[congestion.Number.LOSSY_UNTIL]
        late = lossy and tries == 0 and now - sent >= LATE_PAUSES * pause
        if due or late or (queued < probes and now - sent >= pause):
            _enqueue(state, position, OWN_DOUBT)
            queued += 1
    state.counts[Count.TIMEOUTS] += queued


@compiled
def _probes(state: WorkerState) -> int:
    """Return how many chunks to retransmit now that the oldest one's timer has run out."""
    cursors = state.cursors
    came, before = state.counts[Count.RESULTS] - cursors[Cursor.RESULTS_BEFORE], cursors[Cursor.PROBES]
    if not came or state.clock[Clock.QUIET_SINCE] == state.clock[Clock.BEGAN]:
        return 1  # in silence, and before the first answer after an idle time
    cursors[Cursor.RESULTS_BEFORE] = state.counts[Count.RESULTS]
    probes = 2 * before if before < 2 * came <= 4 * before else 1
    cursors[Cursor.PROBES] = min(probes, state.answered.shape[0])
    return int(cursors[Cursor.PROBES])


@compiled
def _kind(cursors: Numbers, position: int, tries: int, cause: int) -> int:
    """Return the kind of a retransmission: a RETRY at first, which leaves partial sums in the switch.

    Of more than eight workers, it is a RETRY twice, because one of their first RETRYs is often lost, too.
    Then workers take turns, one and later eight at a time: they send a RESEND, the others a RETRY, because
    the RESENDs of many workers would fill the server's port. The server requests the other contributions of a
    chunk that later ones have overtaken. At the end of a sum nothing is later: from the third time on, all
    send a RESEND.
    """
    tries -= cursors[Cursor.PLACES] > SENDERS
    at_end = position + REORDERING > cursors[Cursor.HIGHEST]
    if cause == NEEDED or (tries > 1 and at_end) or tries > 2 * EAGER_TRIES:
        return RESEND
    senders = 1 if tries == 1 else SENDERS
    first = (position & 0xFFFFFFFF) + SENDERS * max(0, tries - 2)
    in_turn = (cursors[Cursor.PLACE] - first) % cursors[Cursor.PLACES] < senders
    return RESEND if tries > 0 and in_turn else RETRY


@compiled
def resend(state: WorkerState, now: float, out: Words) -> int:
    """Fill out uint32[limit, words] with queued retransmissions; return how many."""
    cursors, rows, filled = state.cursors, state.queue.shape[0], 0
    while cursors[Cursor.QUEUE_HEAD] < cursors[Cursor.QUEUE_TAIL] and filled < out.shape[0]:
        position = state.queue[cursors[Cursor.QUEUE_HEAD] % rows]
        cursors[Cursor.QUEUE_HEAD] += 1
        row = position % rows
        cause, state.queued[row] = state.queued[row], 0
        if state.answered[row] and cause != NEEDED:
            continue
        copy(state.packets[row], out[filled])
        # The server lacks what this worker has: a slot that keeps the result would answer a RESEND by it.
        kind = BYPASS if state.answered[row] else _kind(cursors, position, state.tries[row], cause)
        put(out[filled], KIND, kind)
        state.tries[row] += 1
        state.sent_at[row] = now
        filled += 1
    state.counts[Count.RESENDS] += filled
    return filled
