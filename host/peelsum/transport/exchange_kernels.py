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

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.transport import server_kernels
from peelsum.transport.endpoint_kernels import begin, contribute, expire, gather, next_due, resend, take
from peelsum.transport.endpoint_state import Count, Cursor, WorkerState
from peelsum.transport.layout import Words, copy
from peelsum.transport.server_state import JobState, ServerCursor
from peelsum.wire import PROOF_BYTES, SECRET_BYTES
from peelsum.wire.datagrams import ICMP_ERRORS, BatchSocket
from peelsum.wire.hello import siphash_2_4
from peelsum.wire.system_calls import (
    AGAIN,
    NO_BUFFERS,
    NO_WAIT,
    errno,
    is_stale_error,
    ppoll,
    receive,
    seconds,
    send,
)

#: Packets taken from the sender at once: about so many, and as many as whole datagrams hold.
BATCH = 64
#: Packets received before sending again.
BURST = 1024
#: Room for the largest datagram, in words.
DATAGRAM_WORDS = 1 << 14
#: What `received` returns if nothing has arrived.
NOTHING = -1
# Constants of poll.
_IN, _OUT, _RETURNED = 1, 4, 48


class Unsent(IntEnum):
    """Indices of `Wire.unsent`: packets that the kernel has not taken yet."""

    SCRATCH = 0  # 1 if they are rows of `Wire.scratch`, 0 if of the sender's own
    FIRST = 1
    COUNT = 2


class Wire(NamedTuple):
    """A connected socket, and memory for its system calls."""

    descriptor: int
    segments: int  # most packets in one send
    waker: int  # a descriptor that ends the wait when it is readable, or -1
    scratch: Words  # [about BATCH, words]: packets to be sent
    received: Words  # [DATAGRAM_WORDS]
    vector: NDArray[np.int64]  # [2]: struct iovec of `received`
    message: NDArray[np.int64]  # [7]: struct msghdr
    control: NDArray[np.int32]  # [8]: a control message, whose data is at [4]
    polled: NDArray[np.int64]  # [2]: struct pollfd, of the socket and of the waker
    clock: NDArray[np.int64]  # [2]: struct timespec
    unsent: NDArray[np.int64]  # [Unsent]
    heard_at: NDArray[np.float64]  # [2]: seconds when the last datagram, and the last packets, came
    odd: NDArray[np.int64]  # [1]: packets of another size, which were dropped
    secret: NDArray[np.uint64]  # [2]: what to prove to the switch; 0 for nothing


def new_wire(sock: BatchSocket, words: int, waker: int = -1, secret: bytes = b"") -> Wire:
    """Return the wire of a connected socket for packets of `words` words."""
    received, control = np.empty(DATAGRAM_WORDS, np.uint32), np.zeros(8, np.int32)
    vector = np.array([received.ctypes.data, received.nbytes], np.int64)
    return Wire(
        descriptor=sock.fileno(),
        segments=sock.segments,
        waker=waker,
        scratch=np.zeros((max(1, BATCH // sock.segments) * sock.segments, words), np.uint32),
        received=received,
        vector=vector,
        message=np.array([0, 0, vector.ctypes.data, 1, control.ctypes.data, 0, 0], np.int64),
        control=control,
        polled=np.zeros(2, np.int64),
        clock=np.zeros(2, np.int64),
        unsent=np.zeros(len(Unsent), np.int64),
        heard_at=np.zeros(2),
        odd=np.zeros(1, np.int64),
        secret=np.frombuffer(secret or bytes(SECRET_BYTES), np.uint64).copy(),
    )


class Station(NamedTuple):
    """A worker's endpoint in one plane, and its socket."""

    state: WorkerState
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
            state, wire = stations[i]
            problem = _send_all(state, wire, seconds(wire.clock))
            if problem:
                return problem, i
            count = _receive_all(state, wire)
            if count < 0:
                return -count, i
            arrived += count
            outstanding += state.cursors[Cursor.END] - state.cursors[Cursor.BASE]
            polled[i] = expected(wire)
        if not outstanding or _told(stations) > told_before:
            return 0, 0
        now = seconds(stations[0].wire.clock)
        for i in range(len(stations)):
            state, _ = stations[i]
            station_due = next_due(state)
            if station_due <= now:
                expire(state, now)
            due = min(due, station_due)
        if now >= until:
            return 0, 0
        patience = 0.0 if arrived else min(due, until) - now
        if patience > 0 and not waited_for(polled, patience, stations[0].wire.clock):
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
def _send_all(state: WorkerState, wire: Wire, now: float) -> int:
    """Send until the endpoint has nothing more or the kernel's buffer is full; return 0 or an error."""
    begin(state, now)
    while True:
        problem = sent(wire, state.packets)
        if problem or wire.unsent[Unsent.COUNT]:
            return problem
        in_scratch = resend(state, now, wire.scratch) or gather(state, now, wire.scratch)
        first, count = contribute(state, wire.scratch.shape[0] - in_scratch, now)
        if in_scratch:  # contributions follow them in the same datagram
            for k in range(count):
                copy(state.packets[first + k], wire.scratch[in_scratch + k])
            first = 0
        wire.unsent[Unsent.SCRATCH] = in_scratch > 0
        wire.unsent[Unsent.FIRST], wire.unsent[Unsent.COUNT] = first, in_scratch + count
        if not wire.unsent[Unsent.COUNT]:
            return 0


@compiled
def _receive_all(state: WorkerState, wire: Wire) -> int:
    """Process arrived packets, up to about BURST of them; return how many, or an error, negative."""
    words, total = state.packets.shape[1], 0
    while total < BURST:
        count = received(wire)
        if count < NOTHING:
            return count - NOTHING
        if count == NOTHING:
            break
        rows = wire.received[: count * words].reshape((count, words))
        take(state, rows, wire.heard_at[0])
        total += count
    return total


@compiled
def serve(state: JobState, wire: Wire, until: float) -> int:
    """Receive and send until the job finishes, a timer has run out, the waker wakes, or `until`.

    Return 0, or the error number of a system call.
    """
    finished = state.cursors[ServerCursor.FINISHED]
    while True:
        problem = _send_results(state, wire)
        if problem:
            return problem
        arrived = _receive_parts(state, wire)
        if arrived < 0:
            return -arrived
        now = seconds(wire.clock)
        due = min(server_kernels.next_due(state), until)
        if now >= due or state.cursors[ServerCursor.FINISHED] != finished:
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
def _receive_parts(state: JobState, wire: Wire) -> int:
    """Process arrived packets, up to about BURST of them; return how many, or an error, negative."""
    words, total = state.packets.shape[1], 0
    while total < BURST:
        count = received(wire)
        if count < NOTHING:
            return count - NOTHING
        if count == NOTHING:
            break
        rows = wire.received[: count * words].reshape((count, words))
        server_kernels.take(state, rows, wire.heard_at[0])
        total += count
    return total


@compiled
def sent(wire: Wire, sender_rows: Words) -> int:
    """Send the unsent packets, rows of `own` or of the scratch, until the kernel's buffer is full.

    Return 0, or the error number of a system call.
    """
    rows = wire.scratch if wire.unsent[Unsent.SCRATCH] else sender_rows
    while wire.unsent[Unsent.COUNT]:
        count = min(wire.unsent[Unsent.COUNT], wire.segments)
        packets = rows[wire.unsent[Unsent.FIRST] :]
        problem = _sent_once(wire.descriptor, packets.ctypes.data, 4 * count * rows.shape[1])
        if problem:
            return 0 if problem in (AGAIN, NO_BUFFERS) else problem
        wire.unsent[Unsent.FIRST] += count
        wire.unsent[Unsent.COUNT] -= count
    return 0


@compiled
def _sent_once(descriptor: int, address: int, size: int) -> int:
    """Send bytes by one system call; return 0 or the error number."""
    problem = 0
    for _ in range(2):
        if send(descriptor, address, size, NO_WAIT) >= 0:
            return 0
        problem = errno()
        if not is_stale_error(problem) and problem not in ICMP_ERRORS:  # else this datagram was not sent yet
            break
    return 0 if is_stale_error(problem) else problem


@compiled
def received(wire: Wire) -> int:
    """Receive one datagram into `wire.received`; return its packets, NOTHING, or an error below that."""
    size = 4 * wire.scratch.shape[1]
    got = receive(wire.descriptor, wire.message)
    while -got in ICMP_ERRORS:
        got = receive(wire.descriptor, wire.message)
    if got < 0:
        return NOTHING if got == -AGAIN else NOTHING + got
    wire.heard_at[0] = seconds(wire.clock)
    if got in (0, PROOF_BYTES):  # the answer to a hello, or a challenge
        if got:
            _prove(wire)
        return 0
    wire.heard_at[1] = wire.heard_at[0]
    segment = wire.control[4] if wire.message[5] else got
    count = got // segment if segment == size else 0
    wire.odd[0] += -(-got // segment) - count
    return int(count)


@compiled
def _prove(wire: Wire) -> None:
    """Answer the challenge that was received. If the answer is lost, another hello will follow."""
    if wire.secret[0] or wire.secret[1]:
        words = wire.received[:2].view(np.uint64)
        words[0] = siphash_2_4(wire.secret[0], wire.secret[1], words[0], np.uint64(0))
        send(wire.descriptor, words.ctypes.data, PROOF_BYTES, NO_WAIT)


@compiled
def expected(wire: Wire) -> int:
    """Return the struct pollfd of the socket: packets, and room for those that are unsent."""
    return wire.descriptor | (_IN | (_OUT if wire.unsent[Unsent.COUNT] else 0)) << 32


@compiled
def waited(wire: Wire, patience: float) -> bool:
    """Wait for the socket up to `patience` seconds; return False if a signal or the waker ended the wait."""
    wire.polled[0] = expected(wire)
    wire.polled[1] = (wire.waker & 0xFFFFFFFF) | _IN << 32
    return waited_for(wire.polled, patience, wire.clock) and not wire.polled[1] >> _RETURNED


@compiled
def waited_for(polled: NDArray[np.int64], patience: float, timeout: NDArray[np.int64]) -> bool:
    """Wait for any of struct pollfd[n] up to `patience` seconds; return False if a signal ended the wait.

    timeout: memory for a struct timespec. Probes are due after fractions of a millisecond.
    """
    timeout[0], timeout[1] = divmod(int(np.ceil(1e9 * max(0.0, patience))), 1_000_000_000)
    return int(ppoll(polled.ctypes.data, len(polled), timeout.ctypes.data, 0)) >= 0
