"""The compiled loop of hosts that send streams to each other: windows, acknowledgements, retransmission.

Theory of operation. A connection carries transfers in order, as numbered packets. A packet may be sent once
its transfer is released, the window has room, and so has the host's link; connections take turns.

| event | action |
|---|---|
| a packet arrives | note it; acknowledge every fourth, marks, repeats and ends of transfers at once |
| a transfer is complete | release the transfers that waited for it, at this host |
| a packet is acknowledged | the window grows, or on a mark is cut, as a peelsum worker's does |
| a packet sent 3 or more before an acknowledged one is missing | send it again |
| nothing acknowledged for 4 round trips | send the oldest again, backing off |
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiler
from peelsum.transport import congestion
from peelsum.wire import Flag

_compiled = compiler({})
Ints = NDArray[np.int64]
Rows = NDArray[np.uint32]

DATA, ACK = 1, 2
#: Acknowledgements in one packet, and its bytes: the shortest Ethernet frame.
MOST_ACKS, ACK_BYTES = 4, 64
#: Words of a packet's row: kind and flags (bytes 1 and 2), destination, connection, count, numbers.
ROW_WORDS = 8
_CE = int(Flag.CE) << 16
_REORDERED = 3
#: Packets that one arrival may cause, and room for them in the output.
ROOM = 1024
_NEVER = (1 << 63) - 1
_S = 1e-12


class FlowColumn(IntEnum):
    """Columns of a connection's numbers."""

    SOURCE = 0
    TARGET = 1
    FIRST = 2  # its first packet in the arrays of packets
    RELEASED = 3  # packets that may be sent
    NEXT = 4  # the next new packet
    BASE = 5  # the oldest that is not acknowledged
    OUTSTANDING = 6
    SENT = 7  # transmissions
    HEARD = 8  # the largest number of an acknowledged transmission
    MOVED_AT = 9  # the last acknowledgement, or the first packet after a pause
    RTT = 10  # smoothed, in picoseconds; 0 before the first
    BACKOFF = 11
    TRANSFER = 12  # the next transfer to release
    LAST_TRANSFER = 13  # past the connection's last
    PENDING = 14  # packets not yet acknowledged by the receiver
    PENDING_CE = 15
    RESENDS = 16


class HostColumn(IntEnum):
    """A host's numbers."""

    NEXT = 0  # the next arrival
    NOW = 1
    FREE_AT = 2  # when its link has sent everything
    TURN = 3
    DUE = 4  # the next timer
    FRAME_PS = 5  # picoseconds that its longest packet takes


class FlowState(NamedTuple):
    """All connections of a network. A host changes the sender's or the receiver's part of its own."""

    connections: Ints  # [connections, Column]
    windows: NDArray[np.float64]  # [connections, congestion.Number]
    sizes: NDArray[np.int32]  # [packets]: bytes on the wire
    transfer: NDArray[np.int32]  # [packets]
    acked: NDArray[np.bool_]  # [packets]
    received: NDArray[np.bool_]  # [packets]
    number: Ints  # [packets]: of the last transmission; -1 if it is being sent again
    sent_at: Ints  # [packets]
    pending: NDArray[np.uint32]  # [connections, MOST_ACKS]
    ends: Ints  # [transfers]: past the last packet, on the connection
    missing: Ints  # [transfers]: packets that have not arrived
    waits: Ints  # [transfers]: transfers that have to be complete before, and the sender's start
    followers: Ints  # [transfers + 1]: where each one's dependents begin
    follower: Ints  # dependents
    done_at: Ints  # [transfers]


class Out(NamedTuple):
    """The packets that one call sends."""

    rows: Rows
    times: Ints
    sizes: NDArray[np.int32]
    filled: Ints  # [1]: packets


@_compiled
def _emit(out: Out, now: int, kind: int, flags: int, target: int, connection: int, size: int) -> int:
    i = out.filled[0]
    out.filled[0] += 1
    out.times[i] = now
    out.sizes[i] = size
    out.rows[i, 0] = np.uint32(kind << 8 | flags)
    out.rows[i, 1] = np.uint32(target)
    out.rows[i, 2] = np.uint32(connection)
    return int(i)


@_compiled
def _send(state: FlowState, out: Out, c: int, seq: int, now: int) -> None:
    """Send a packet of a connection, for the first time or again."""
    conn = state.connections[c]
    at = conn[FlowColumn.FIRST] + seq
    i = _emit(out, now, DATA, 0, conn[FlowColumn.TARGET], c, state.sizes[at])
    out.rows[i, 4] = np.uint32(seq)
    state.number[at] = conn[FlowColumn.SENT]
    state.sent_at[at] = now
    conn[FlowColumn.SENT] += 1


@_compiled
def _fill(state: FlowState, out: Out, mine: Ints, host: Ints, byte_ps: float, frame_ps: int) -> bool:
    """Send what may be sent, a packet of each connection in turn, while the host's link has room.

    Return whether there is more to send. The link has room for one packet behind the one that it sends.
    """
    idle, now = 0, host[HostColumn.NOW]
    while idle < mine.shape[0]:
        c = mine[host[HostColumn.TURN] % mine.shape[0]]
        conn = state.connections[c]
        more = conn[FlowColumn.NEXT] < conn[FlowColumn.RELEASED]
        if more and conn[FlowColumn.OUTSTANDING] < congestion.size(state.windows[c]):
            size = state.sizes[conn[FlowColumn.FIRST] + conn[FlowColumn.NEXT]]
            if host[HostColumn.FREE_AT] > now + frame_ps or out.filled[0] + ROOM > out.times.shape[0]:
                return True
            if not conn[FlowColumn.OUTSTANDING]:
                conn[FlowColumn.MOVED_AT] = now
            _send(state, out, c, conn[FlowColumn.NEXT], now)
            host[HostColumn.FREE_AT] = max(host[HostColumn.FREE_AT], now) + int(size * byte_ps)
            conn[FlowColumn.NEXT] += 1
            conn[FlowColumn.OUTSTANDING] += 1
            idle = 0
        else:
            idle += 1
        host[HostColumn.TURN] += 1
    return False


@_compiled
def release(state: FlowState, c: int) -> None:
    """Release a connection's transfers that wait for nothing, in order."""
    conn = state.connections[c]
    while (
        conn[FlowColumn.TRANSFER] < conn[FlowColumn.LAST_TRANSFER]
        and not state.waits[conn[FlowColumn.TRANSFER]]
    ):
        conn[FlowColumn.RELEASED] = state.ends[conn[FlowColumn.TRANSFER]]
        conn[FlowColumn.TRANSFER] += 1


@_compiled
def _arrived(state: FlowState, owner: Ints, out: Out, c: int, seq: int, marked: bool, now: int) -> None:
    """Note a packet of a stream and acknowledge it; release what waited for its transfer."""
    conn = state.connections[c]
    at = conn[FlowColumn.FIRST] + seq
    t = state.transfer[at]
    repeated, complete = state.received[at], False
    if not repeated:
        state.received[at] = True
        state.missing[t] -= 1
        complete = state.missing[t] == 0
    state.pending[c, conn[FlowColumn.PENDING]] = np.uint32(seq)
    conn[FlowColumn.PENDING] += 1
    conn[FlowColumn.PENDING_CE] |= marked
    if complete or repeated or marked or seq + 1 == state.ends[t] or conn[FlowColumn.PENDING] == MOST_ACKS:
        flags = _CE if conn[FlowColumn.PENDING_CE] else 0
        i = _emit(out, now, ACK, flags, conn[FlowColumn.SOURCE], c, ACK_BYTES)
        out.rows[i, 3] = np.uint32(conn[FlowColumn.PENDING])
        for k in range(conn[FlowColumn.PENDING]):
            out.rows[i, 4 + k] = state.pending[c, k]
        conn[FlowColumn.PENDING] = conn[FlowColumn.PENDING_CE] = 0
    if complete:
        state.done_at[t] = now
        for k in range(state.followers[t], state.followers[t + 1]):
            later = state.follower[k]
            state.waits[later] -= 1
            if not state.waits[later]:
                release(state, owner[later])


@_compiled
def _acknowledged(state: FlowState, out: Out, row: NDArray[np.uint32], now: int) -> None:
    """Take an acknowledgement, and send packets again that it shows to be lost."""
    c = int(row[2])
    conn, window = state.connections[c], state.windows[c]
    gained = 0
    for k in range(row[3]):
        at = conn[FlowColumn.FIRST] + int(row[4 + k])
        if state.acked[at]:
            continue
        state.acked[at] = True
        gained += 1
        if state.number[at] > conn[FlowColumn.HEARD]:
            conn[FlowColumn.HEARD] = state.number[at]
            rtt = now - state.sent_at[at]
            old = conn[FlowColumn.RTT]
            conn[FlowColumn.RTT] = rtt if old == 0 else old + (rtt - old) // 8
    if not gained:
        return
    conn[FlowColumn.OUTSTANDING] -= gained
    conn[FlowColumn.MOVED_AT] = now
    conn[FlowColumn.BACKOFF] = 0
    while (
        conn[FlowColumn.BASE] < conn[FlowColumn.NEXT]
        and state.acked[conn[FlowColumn.FIRST] + conn[FlowColumn.BASE]]
    ):
        conn[FlowColumn.BASE] += 1
    base, end = conn[FlowColumn.BASE], conn[FlowColumn.NEXT]
    congestion.on_results(window, gained, (row[0] & np.uint32(_CE)) != 0, base, end)
    lost = 0
    if base < end and state.number[conn[FlowColumn.FIRST] + base] + _REORDERED <= conn[FlowColumn.HEARD]:
        for seq in range(base, end):
            at = conn[FlowColumn.FIRST] + seq
            if lost + 2 >= ROOM:
                break
            if not state.acked[at] and state.number[at] + _REORDERED <= conn[FlowColumn.HEARD]:
                _send(state, out, c, seq, now)
                lost += 1
    if lost:
        conn[FlowColumn.RESENDS] += lost
        congestion.on_losses(window, lost, base, end)


@_compiled
def _due(state: FlowState, c: int, least: int) -> int:
    """Return when the oldest packet of a connection is sent again, or the largest int64."""
    conn = state.connections[c]
    if not conn[FlowColumn.OUTSTANDING]:
        return _NEVER
    wait = max(least, 4 * conn[FlowColumn.RTT]) << min(conn[FlowColumn.BACKOFF], 6)
    return int(conn[FlowColumn.MOVED_AT] + wait)


@_compiled
def _next_due(state: FlowState, mine: Ints, host: Ints, more: bool, frame_ps: int, least: int) -> int:
    """Return a host's next timer, which is also when its link has room for more."""
    due = max(host[HostColumn.FREE_AT] - frame_ps, host[HostColumn.NOW]) if more else _NEVER
    for c in mine:
        due = min(due, _due(state, c, least))
    return int(due)


@_compiled
def _expire(state: FlowState, out: Out, mine: Ints, now: int, least: int) -> None:
    """Send the oldest packet again, of each connection whose timer has run out."""
    for c in mine:
        if _due(state, c, least) <= now:
            conn = state.connections[c]
            _send(state, out, c, conn[FlowColumn.BASE], now)
            conn[FlowColumn.RESENDS] += 1
            conn[FlowColumn.MOVED_AT] = now
            conn[FlowColumn.BACKOFF] += 1


@_compiled
def start(state: FlowState, mine: Ints) -> None:
    """Release what waits for nothing but this host's start."""
    for c in mine:
        conn = state.connections[c]
        for t in range(conn[FlowColumn.TRANSFER], conn[FlowColumn.LAST_TRANSFER]):
            state.waits[t] -= 1
        release(state, c)


@_compiled
def run_host(
    state: FlowState,
    owner: Ints,
    mine: Ints,
    rows: Rows,
    times: Ints,
    until: int,
    least: int,
    byte_ps: float,
    host: Ints,
    out: Out,
) -> bool:
    """Process arrivals and timers before `until`; return False if the output is full: call again.

    mine: connections on which this host sends. owner: connection of each transfer. host: int64[Host].
    """
    frame_ps = host[HostColumn.FRAME_PS]
    while out.filled[0] + ROOM + mine.shape[0] <= out.times.shape[0]:
        more = _fill(state, out, mine, host, byte_ps, frame_ps)
        if out.filled[0] + ROOM + mine.shape[0] > out.times.shape[0]:
            return False
        due = _next_due(state, mine, host, more, frame_ps, least)
        i = host[HostColumn.NEXT]
        arrives = times[i] if i < times.shape[0] else _NEVER
        host[HostColumn.DUE] = due
        if min(due, arrives) >= until:
            return True
        sent = out.filled[0]
        now = host[HostColumn.NOW] = max(min(due, arrives), host[HostColumn.NOW])
        if arrives > due:
            _expire(state, out, mine, now, least)
        else:
            host[HostColumn.NEXT] += 1
            marked = (rows[i, 0] & np.uint32(_CE)) != 0
            if (rows[i, 0] >> 8) & 0xFF == ACK:
                _acknowledged(state, out, rows[i], now)
            else:
                _arrived(state, owner, out, int(rows[i, 2]), int(rows[i, 4]), marked, now)
        for k in range(sent, out.filled[0]):
            host[HostColumn.FREE_AT] = max(host[HostColumn.FREE_AT], now) + int(out.sizes[k] * byte_ps)
    return False
