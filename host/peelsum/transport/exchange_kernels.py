"""The compiled loops between endpoints or a server and their sockets: Python runs once an exchange.

Theory of operation. `exchange` is a worker's loop. A worker has an endpoint and a socket in every plane. A
turn does the same in each of them: it sends the endpoint's packets, receives those that have arrived, and
retransmits due chunks. If nothing arrived, the loop waits for all sockets at once. A datagram that the kernel
segments holds up to 64 packets. The loop returns when all results or an urgent one are there, or another
worker has left. It also returns when a system call fails, and at the latest at `until`.

`serve` is a server's loop. It does the same at one socket, and returns when the job finishes, a timer has run
out, or the waker wakes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.transport import server_kernels, server_state
from peelsum.transport.endpoint_kernels import begin, contribute, expire, gather, next_due, resend, take
from peelsum.transport.endpoint_state import Count, Cursor, Identity, Limits, WorkerState
from peelsum.transport.layout import compiled
from peelsum.transport.server_state import JobState, Waits
from peelsum.transport.wire_kernels import (
    BATCH,
    BURST,
    NOTHING,
    Unsent,
    Wire,
    expected,
    received,
    sent,
    waited,
)
from peelsum.wire.system_calls import poll, seconds


class Station(NamedTuple):
    """A worker's endpoint in one plane, and its socket."""

    state: WorkerState
    identity: Identity
    limits: Limits
    wire: Wire


@compiled
def exchange(stations: tuple[Station, ...], polled: NDArray[np.int64], until: float) -> tuple[int, int]:
    """Send, receive and wait until all results are there, there is something to tell, or `until`.

    It is compiled again for each number of stations. polled: int64[stations], memory for `poll`. Return the
    error number of a system call, and the station that it is of; or 0.
    """
    told_before = _told(stations)
    while True:
        arrived = outstanding = 0
        due = np.inf
        for i in range(len(stations)):
            state, identity, limits, wire = stations[i]
            problem = _send_all(state, limits, wire, seconds(wire.clock))
            if problem:
                return problem, i
            count = _receive_all(state, identity, limits, wire)
            if count < 0:
                return -count, i
            arrived += count
            outstanding += state.cursors[Cursor.END] - state.cursors[Cursor.BASE]
            polled[i] = expected(wire)
        if not outstanding or _told(stations) > told_before:
            return 0, 0
        now = seconds(stations[0].wire.clock)
        for i in range(len(stations)):
            state, _, limits, _ = stations[i]
            station_due = next_due(state, limits)
            if station_due <= now:
                expire(state, now, limits)
            due = min(due, station_due)
        if now >= until or (due > now and not arrived and not _waited(polled, min(due, until) - now)):
            return 0, 0


@compiled
def _told(stations: tuple[Station, ...]) -> int:
    """Return how often there was something to tell: urgent results, and workers that have left."""
    total = 0
    for i in range(len(stations)):
        counts = stations[i].state.counts
        total += counts[Count.URGENT] + counts[Count.DEPARTED]
    return total


@compiled
def _waited(polled: NDArray[np.int64], patience: float) -> bool:
    """Wait for a socket up to `patience` seconds; return False if a signal ended the wait."""
    return int(poll(polled.ctypes.data, len(polled), int(np.ceil(1000 * max(0.0, patience))))) >= 0


@compiled
def _send_all(state: WorkerState, limits: Limits, wire: Wire, now: float) -> int:
    """Send until the endpoint has nothing more or the kernel's buffer is full; return 0 or an error."""
    begin(state, now)
    while True:
        problem = sent(wire, state.packets)
        if problem or wire.unsent[Unsent.COUNT]:
            return problem
        first, count = 0, resend(state, now, wire.scratch)
        count = count or gather(state, now, wire.scratch)
        wire.unsent[Unsent.SCRATCH] = count > 0
        if not count:
            first, count = contribute(state, limits.window, BATCH, now)
        if not count:
            return 0
        wire.unsent[Unsent.FIRST], wire.unsent[Unsent.COUNT] = first, count


@compiled
def _receive_all(state: WorkerState, identity: Identity, limits: Limits, wire: Wire) -> int:
    """Process arrived packets, up to about BURST of them; return how many, or an error, negative."""
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


@compiled
def serve(
    state: JobState, identity: server_state.Identity, window: int, waits: Waits, wire: Wire, until: float
) -> int:
    """Receive and send until the job finishes, a timer has run out, the waker wakes, or `until`.

    Return 0, or the error number of a system call.
    """
    finished = state.cursors[server_state.Cursor.FINISHED]
    while True:
        problem = _send_results(state, wire)
        if problem:
            return problem
        arrived = _receive_parts(state, identity, window, waits, wire)
        if arrived < 0:
            return -arrived
        now = seconds(wire.clock)
        due = min(server_kernels.next_due(state), until)
        if now >= due or state.cursors[server_state.Cursor.FINISHED] != finished:
            return 0
        if not arrived and not waited(wire, due - now):
            return 0


@compiled
def _send_results(state: JobState, wire: Wire) -> int:
    """Send until the server has nothing more or the kernel's buffer is full; return 0 or an error."""
    wire.unsent[Unsent.SCRATCH] = 1
    while True:
        problem = sent(wire, wire.scratch)
        if problem or wire.unsent[Unsent.COUNT]:
            return problem
        count = server_kernels.send(state, wire.scratch)
        if not count:
            return 0
        wire.unsent[Unsent.FIRST], wire.unsent[Unsent.COUNT] = 0, count


@compiled
def _receive_parts(
    state: JobState, identity: server_state.Identity, window: int, waits: Waits, wire: Wire
) -> int:
    """Process arrived packets, up to about BURST of them; return how many, or an error, negative."""
    words, total = state.packets.shape[1], 0
    while total < BURST:
        count = received(wire)
        if count < NOTHING:
            return count - NOTHING
        if count == NOTHING:
            break
        rows = wire.received[: count * words].reshape((count, words))
        server_kernels.take(state, rows, identity, window, wire.heard_at[0], waits)
        total += count
    return total
