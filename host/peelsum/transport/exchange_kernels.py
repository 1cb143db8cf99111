"""The compiled loop between a worker's endpoint and its socket: Python runs once an exchange.

Theory of operation. A turn sends what the endpoint has to send, receives what has arrived, retransmits what
is due, and otherwise waits for the socket. A datagram that the kernel segments holds up to 64 packets. The
loop returns when all results or an urgent one are there, or another worker has left. It also returns when a
system call fails, and at the latest at `until`.
"""

from __future__ import annotations

from peelsum.transport.endpoint_kernels import begin, contribute, expire, next_due, resend, take
from peelsum.transport.endpoint_state import Count, Cursor, Identity, Limits, WorkerState
from peelsum.transport.layout import compiled
from peelsum.transport.wire_kernels import BATCH, BURST, NOTHING, Unsent, Wire, received, sent, waited
from peelsum.wire.system_calls import seconds


@compiled
def exchange(state: WorkerState, identity: Identity, limits: Limits, wire: Wire, until: float) -> int:
    """Send, receive and wait until all results are there, there is something to tell, or `until`.

    Return 0, or the error number of a system call.
    """
    counts, cursors = state.counts, state.cursors
    urgent, departed = counts[Count.URGENT], counts[Count.DEPARTED]
    while True:
        problem = _send_all(state, limits, wire, seconds(wire.clock))
        if problem:
            return problem
        arrived = _receive_all(state, identity, limits, wire)
        if arrived < 0:
            return -arrived
        told = counts[Count.URGENT] > urgent or counts[Count.DEPARTED] > departed
        if told or cursors[Cursor.BASE] == cursors[Cursor.END]:
            return 0
        now = seconds(wire.clock)
        due = next_due(state, limits)
        if due <= now:
            expire(state, now, limits)
        if now >= until or (due > now and not arrived and not waited(wire, min(due, until) - now)):
            return 0


@compiled
def _send_all(state: WorkerState, limits: Limits, wire: Wire, now: float) -> int:
    """Send until the endpoint has nothing more or the kernel's buffer is full; return 0 or an error."""
    begin(state, now)
    while True:
        problem = sent(wire, state.packets)
        if problem or wire.unsent[Unsent.COUNT]:
            return problem
        first, count = 0, resend(state, now, wire.scratch)
        wire.unsent[Unsent.SCRATCH] = count > 0
        if not count:
            first, count = contribute(state, limits.window, BATCH, now)
        if not count:
            return 0
        wire.unsent[Unsent.FIRST], wire.unsent[Unsent.COUNT] = first, count


@compiled
def _receive_all(state: WorkerState, identity: Identity, limits: Limits, wire: Wire) -> int:
    """Process what has arrived, up to about BURST packets; return how many, or an error, negative."""
    words, total = state.packets.shape[1], 0
    while total < BURST:
        count = received(wire)
        if count < NOTHING:
            return count - NOTHING
        if count == NOTHING:
            break
        rows = wire.received[: count * words].reshape((count, words))
        take(state, rows, identity, wire.heard_at[0], limits)
        total += count
    return total
