"""The compiled loop between an aggregation server and its socket, as `exchange_kernels` is a worker's."""

from __future__ import annotations

from peelsum.transport.layout import compiled
from peelsum.transport.server_kernels import next_due, send, take, tell_now
from peelsum.transport.server_state import Cursor, Identity, JobState, Waits
from peelsum.transport.wire_kernels import BURST, NOTHING, Unsent, Wire, received, sent, waited
from peelsum.wire.system_calls import seconds


@compiled
def serve(state: JobState, identity: Identity, window: int, waits: Waits, wire: Wire, until: float) -> int:
    """Receive and send until the job finishes, a timer has run out, the waker wakes, or `until`.

    Return 0, or the error number of a system call.
    """
    finished = state.cursors[Cursor.FINISHED]
    while True:
        problem = _send_all(state, wire)
        if problem:
            return problem
        arrived = _receive_all(state, identity, window, waits, wire)
        if arrived < 0:
            return -arrived
        now = seconds(wire.clock)
        due = min(next_due(state), until)
        if now >= due or state.cursors[Cursor.FINISHED] != finished:
            return 0
        # Workers wait for a list of the last chunks: a timer of milliseconds would be longer than theirs.
        if not arrived and not tell_now(state) and not waited(wire, due - now):
            return 0


@compiled
def _send_all(state: JobState, wire: Wire) -> int:
    """Send until the server has nothing more or the kernel's buffer is full; return 0 or an error."""
    wire.unsent[Unsent.SCRATCH] = 1
    while True:
        problem = sent(wire, wire.scratch)
        if problem or wire.unsent[Unsent.COUNT]:
            return problem
        count = send(state, wire.scratch)
        if not count:
            return 0
        wire.unsent[Unsent.FIRST], wire.unsent[Unsent.COUNT] = 0, count


@compiled
def _receive_all(state: JobState, identity: Identity, window: int, waits: Waits, wire: Wire) -> int:
    """Process arrived packets, up to about BURST of them; return how many, or an error, negative."""
    words, total = state.packets.shape[1], 0
    while total < BURST:
        count = received(wire)
        if count < NOTHING:
            return count - NOTHING
        if count == NOTHING:
            break
        rows = wire.received[: count * words].reshape((count, words))
        take(state, rows, identity, window, wire.heard_at[0], waits)
        total += count
    return total
