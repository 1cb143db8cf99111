"""Compiled calls of a socket for the loops of a worker and of a server: send, receive, wait."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.transport.layout import Words, compiled
from peelsum.wire.datagrams import REPORTED, BatchSocket
from peelsum.wire.system_calls import AGAIN, NO_BUFFERS, NO_WAIT, errno, is_late, poll, receive, seconds, send

#: Packets taken from the sender at once.
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
    scratch: Words  # [BATCH, words]: packets to be sent
    received: Words  # [DATAGRAM_WORDS]
    vector: NDArray[np.int64]  # [2]: struct iovec of `received`
    message: NDArray[np.int64]  # [7]: struct msghdr
    control: NDArray[np.int32]  # [8]: a control message, whose data is at [4]
    polled: NDArray[np.int64]  # [2]: struct pollfd, of the socket and of the waker
    clock: NDArray[np.int64]  # [2]: struct timespec
    unsent: NDArray[np.int64]  # [Unsent]
    heard_at: NDArray[
        np.float64
    ]  # [2]: when the last datagram and the last packets were received, in seconds
    odd: NDArray[np.int64]  # [1]: packets of another size, which were dropped


def new_wire(sock: BatchSocket, words: int, waker: int = -1) -> Wire:
    """Return the wire of a connected socket for packets of `words` words."""
    received, control = np.empty(DATAGRAM_WORDS, np.uint32), np.zeros(8, np.int32)
    vector = np.array([received.ctypes.data, received.nbytes], np.int64)
    return Wire(
        descriptor=sock.fileno(),
        segments=sock.segments,
        waker=waker,
        scratch=np.zeros((BATCH, words), np.uint32),
        received=received,
        vector=vector,
        message=np.array([0, 0, vector.ctypes.data, 1, control.ctypes.data, 0, 0], np.int64),
        control=control,
        polled=np.zeros(2, np.int64),
        clock=np.zeros(2, np.int64),
        unsent=np.zeros(len(Unsent), np.int64),
        heard_at=np.zeros(2),
        odd=np.zeros(1, np.int64),
    )


@compiled
def sent(wire: Wire, own: Words) -> int:
    """Send the unsent packets, rows of `own` or of the scratch, until the kernel's buffer is full.

    Return 0, or the error number of a system call.
    """
    rows = wire.scratch if wire.unsent[Unsent.SCRATCH] else own
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
        if not is_late(problem) and problem not in REPORTED:  # else this datagram was not sent yet
            break
    return 0 if is_late(problem) else problem


@compiled
def received(wire: Wire) -> int:
    """Receive one datagram into `wire.received`; return its packets, NOTHING, or an error below that."""
    size = 4 * wire.scratch.shape[1]
    got = receive(wire.descriptor, wire.message)
    while -got in REPORTED:
        got = receive(wire.descriptor, wire.message)
    if got < 0:
        return NOTHING if got == -AGAIN else NOTHING + got
    wire.heard_at[0] = seconds(wire.clock)
    if not got:  # a hello
        return 0
    wire.heard_at[1] = wire.heard_at[0]
    segment = wire.control[4] if wire.message[5] else got
    count = got // segment if segment == size else 0
    wire.odd[0] += -(-got // segment) - count
    return int(count)


@compiled
def expected(wire: Wire) -> int:
    """Return the struct pollfd of the socket: packets, and room for those that are unsent."""
    return wire.descriptor | (_IN | (_OUT if wire.unsent[Unsent.COUNT] else 0)) << 32


@compiled
def waited(wire: Wire, patience: float) -> bool:
    """Wait for the socket up to `patience` seconds; return False if a signal or the waker ended the wait."""
    wire.polled[0] = expected(wire)
    wire.polled[1] = (wire.waker & 0xFFFFFFFF) | _IN << 32
    ready = poll(wire.polled.ctypes.data, 2, int(np.ceil(1000 * max(0.0, patience))))
    return int(ready) >= 0 and not wire.polled[1] >> _RETURNED
