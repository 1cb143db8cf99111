"""The compiled calls of a switch's UDP sockets: Python runs once a batch, not once a port.

Theory of operation. Each row of a batch has room for headers before its payload. A datagram may have up to
128 packets. `receive` lets the kernel write their payloads into rows, and copies the port's headers before
each. `sort` orders frames by port, and `send` lets the kernel gather their payloads. So neither copies a
payload by itself. All memory is the caller's.

A port takes packets from its peer only. A hello (see `peelsum.wire.hello`) makes its source the peer:

| the port | hello | proof |
|---|---|---|
| is joined to a peer | no answer | refuse it |
| has a secret | challenge its source; answer the peer | right: accept the source; wrong: refuse it |
| has none, and is open | accept the source | refuse it |
| has none, and is not open | refuse it | refuse it |

As long as the peer sends, a right proof from another address is refused, too. A challenge is a hash of its
source, so the switch stores nothing about hosts that have not proved the secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from secrets import token_bytes
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.wire import CPU_PORT, FRAME_HEADER_BYTES, PROOF_BYTES
from peelsum.wire.hello import keyed_hash
from peelsum.wire.system_calls import AGAIN, NO_BUFFERS, NO_WAIT, errno, is_late, nanoseconds, sendmsg
from peelsum.wire.system_calls import receive as receive_datagram

#: v1model's ports have 9 bits.
PORTS = 512
#: Frames that a turn receives from each ready port, at least.
SHARE = 8
#: The most parts that Linux takes in one message.
MOST_PARTS = 1024
#: How long a peer must have sent nothing before another host can take its place, in nanoseconds.
SILENCE_NS = 1_000_000_000
#: A challenge is valid for this time to twice this time, in nanoseconds: a host may first compile the hash.
_CHALLENGE_NS = 60_000_000_000
#: The most datagrams without a packet for the pipeline that one call reads from a port.
_PATIENCE = 64
#: How a kernel or a network device says that it will not segment after all.
_NO_OFFLOAD = (5, 22, 90, 95)  # EIO, EINVAL, EMSGSIZE, EOPNOTSUPP
#: In place of a row: the frame is not one whole packet, its port does not exist, it is for the controller, or
#: it is held until its port may send it.
_UNFRAMED, _NO_SUCH_PORT, _FOR_CPU, _HELD = -1, -2, -3, -4
#: In place of a port: the frame is held.
HELD = -1


class Count(IntEnum):
    """Columns of `Sockets.counts`, with the meaning of `PortCounts`' fields."""

    RECEIVED = 0
    SENT = 1
    HELLOS = 2
    FOREIGN = 3
    UNREACHABLE = 4
    FULL = 5
    ODD = 6
    LOST_IN = 7
    LOST_OUT = 8
    CHALLENGES = 9
    REFUSED = 10


class Column(IntEnum):
    """Columns of `Sockets.state`."""

    DESCRIPTOR = 0
    SEGMENTS = 1  # most packets in one send
    OFFLOAD = 2  # 1 if the kernel segments sends
    NUMBER = 3  # of the switch port
    JOINED = 4  # 1 if the peer is permanent
    ANSWERED = 5  # 1 if a permanent peer has said hello
    OPEN = 6  # 1 if a port without a secret accepts every hello
    RECEIVED = 7  # Count.RECEIVED when the peer was last known to be active
    ACTIVE_AT = 8  # when that was, in nanoseconds


class Sockets(NamedTuple):
    """The sockets of a switch's ports, a row each, and memory for their system calls."""

    state: NDArray[np.int64]  # [ports, Column]
    peers: NDArray[np.uint64]  # [ports, 2]: struct sockaddr_in; 0 without a peer
    counts: NDArray[np.int64]  # [ports, Count]
    rows: NDArray[np.int32]  # [PORTS]: a switch port's row, or -1
    dropped: NDArray[np.int64]  # [2]: frames that are not one whole packet; frames to ports that do not exist
    message: NDArray[np.int64]  # [7]: struct msghdr
    source: NDArray[np.uint64]  # [2]: struct sockaddr_in
    control: NDArray[np.int32]  # [8]: a control message, whose data is at [4]
    secrets: NDArray[np.uint64]  # [ports, 2]; 0 without a secret
    key: NDArray[np.uint64]  # [2]: of the challenges
    challenge: NDArray[np.uint64]  # [1]: the one being sent
    part: NDArray[np.int64]  # [2]: struct iovec of that
    clock: NDArray[np.int64]  # [2]: struct timespec


class Batch(NamedTuple):
    """Frames as the sockets receive them."""

    data: NDArray[np.uint8]  # [rows, stride]
    length: NDArray[np.int32]  # [rows]: of a whole packet with its headers
    port: NDArray[np.int32]  # [rows]
    parts: NDArray[np.int64]  # [rows, 2]: struct iovec of each row's payload
    headers: NDArray[np.uint8]  # [ports, FRAME_HEADER_BYTES]


class Outbox(NamedTuple):
    """Memory for the order in which frames leave."""

    parts: NDArray[np.int64]  # [frames, 2]: struct iovec of payloads, by port
    next: NDArray[np.int64]  # [ports]: the first part that is not sent yet
    end: NDArray[np.int64]  # [ports]: the part after a port's last one


def new_sockets(numbers: Sequence[int]) -> Sockets:
    """Return memory for the ports `numbers`, without sockets and peers."""
    rows = np.full(PORTS, -1, np.int32)
    rows[numbers] = np.arange(len(numbers))
    challenge = np.zeros(1, np.uint64)
    return Sockets(
        state=np.zeros((len(numbers), len(Column)), np.int64),
        peers=np.zeros((len(numbers), 2), np.uint64),
        counts=np.zeros((len(numbers), len(Count)), np.int64),
        rows=rows,
        dropped=np.zeros(2, np.int64),
        message=np.zeros(7, np.int64),
        source=np.zeros(2, np.uint64),
        control=np.zeros(8, np.int32),
        secrets=np.zeros((len(numbers), 2), np.uint64),
        key=np.frombuffer(token_bytes(16), np.uint64).copy(),
        challenge=challenge,
        part=np.array([challenge.ctypes.data, challenge.nbytes], np.int64),
        clock=np.zeros(2, np.int64),
    )


def new_batch(rows: int, stride: int, headers: Sequence[NDArray[np.uint8]], packet_bytes: int) -> Batch:
    """Return memory for `rows` frames of up to `stride` bytes, and each port's headers."""
    data = np.zeros((rows, stride), np.uint8)
    parts = np.full((rows, 2), packet_bytes, np.int64)
    parts[:, 0] = data.ctypes.data + FRAME_HEADER_BYTES + stride * np.arange(rows)
    length = np.full(rows, FRAME_HEADER_BYTES + packet_bytes, np.int32)
    return Batch(data, length, np.zeros(rows, np.int32), parts, np.stack(headers))


def new_outbox(frames: int, ports: int) -> Outbox:
    """Return memory for sending up to `frames` frames at once."""
    return Outbox(np.zeros((frames, 2), np.int64), np.zeros(ports, np.int64), np.zeros(ports, np.int64))


@compiled
def receive(sockets: Sockets, ready: NDArray[np.int32], share: int, batch: Batch) -> int:
    """Receive about `share` packets from each of the rows `ready`; answer hellos.

    Return the number of packets, or minus an error number.
    """
    count = 0
    for row in ready:
        end, patience = count + share, _PATIENCE
        while count < end and patience:
            packets = _received_once(sockets, row, batch, count)
            if packets == -AGAIN:
                break
            if packets < 0:
                return packets
            if not packets:
                patience -= 1
            number = np.int32(sockets.state[row, Column.NUMBER])
            for at in range(count, count + packets):
                batch.port[at] = number
                for i in range(FRAME_HEADER_BYTES):
                    batch.data[at, i] = batch.headers[row, i]
            count += packets
    return count


@compiled
def _received_once(sockets: Sockets, row: int, batch: Batch, first: int) -> int:
    """Receive a datagram into rows from `first` on; return its packets from the peer, or minus an error."""
    message, counts = sockets.message, sockets.counts
    message[0], message[1] = sockets.source.ctypes.data, 16
    message[2] = np.int64(batch.parts.ctypes.data) + 16 * first
    message[3] = min(MOST_PARTS, batch.parts.shape[0] - first)
    message[4] = sockets.control.ctypes.data
    got = receive_datagram(sockets.state[row, Column.DESCRIPTOR], message)
    if got <= 0:
        return got if got else _take_hello(sockets, row)
    if got == PROOF_BYTES:
        return _take_proof(sockets, row, batch.data[first])
    segment = sockets.control[4] if message[5] else got
    size = batch.parts[first, 1]
    packets = got // segment if segment == size and got <= message[3] * size else 0
    counts[row, Count.ODD] += -(-got // segment) - packets
    if not _from_peer(sockets, row):
        counts[row, Count.FOREIGN] += packets
        return 0
    counts[row, Count.RECEIVED] += packets
    return int(packets)


@compiled
def _from_peer(sockets: Sockets, row: int) -> bool:
    # The second half of a sockaddr_in is padding.
    return bool(sockets.source[0] == sockets.peers[row, 0])


@compiled
def _take_hello(sockets: Sockets, row: int) -> int:
    """Take a hello: accept its source, challenge it or refuse it; return 0."""
    state = sockets.state[row]
    if state[Column.JOINED]:
        state[Column.ANSWERED] |= _from_peer(sockets, row)
    elif _from_peer(sockets, row) or (state[Column.OPEN] and not _has_secret(sockets, row)):
        _accept(sockets, row)
    elif _has_secret(sockets, row):
        sockets.counts[row, Count.CHALLENGES] += 1
        sockets.challenge[0] = _challenge(sockets, row, _period(sockets))
        _sent_once(sockets, row, sockets.source, int(sockets.part.ctypes.data), 1)
    else:
        sockets.counts[row, Count.REFUSED] += 1
    return 0


@compiled
def _take_proof(sockets: Sockets, row: int, frame: NDArray[np.uint8]) -> int:
    """Take the proof in a frame's payload: accept its source or refuse it; return 0."""
    period, proof, proves = _period(sockets), np.uint64(0), False
    for i in range(PROOF_BYTES):
        proof |= np.uint64(frame[FRAME_HEADER_BYTES + i]) << np.uint64(8 * i)
    for age in range(2):
        challenge = _challenge(sockets, row, period - age)
        proves |= proof == keyed_hash(
            sockets.secrets[row, 0], sockets.secrets[row, 1], challenge, np.uint64(0)
        )
    if (
        not proves
        or not _has_secret(sockets, row)
        or sockets.state[row, Column.JOINED]
        or _in_use(sockets, row)
    ):
        sockets.counts[row, Count.REFUSED] += 1
    else:
        _accept(sockets, row)
    return 0


@compiled
def _accept(sockets: Sockets, row: int) -> None:
    """Make the source the peer, and answer it."""
    sockets.peers[row, 0], sockets.peers[row, 1] = sockets.source[0], sockets.source[1]
    sockets.counts[row, Count.HELLOS] += 1
    _note_activity(sockets, row)
    _sent_once(sockets, row, sockets.peers[row], 0, 0)


@compiled
def _in_use(sockets: Sockets, row: int) -> bool:
    """Return whether another host than the source is the peer, and still sends.

    Counts are compared here, not when packets arrive: a peer is silent if none of its packets came between
    two proofs of others that are SILENCE_NS apart.
    """
    state = sockets.state[row]
    if not sockets.peers[row, 0] or _from_peer(sockets, row):
        return False
    if state[Column.RECEIVED] != sockets.counts[row, Count.RECEIVED]:
        _note_activity(sockets, row)
    return bool(nanoseconds(sockets.clock) - state[Column.ACTIVE_AT] < SILENCE_NS)


@compiled
def _note_activity(sockets: Sockets, row: int) -> None:
    """Note that the peer is active now."""
    sockets.state[row, Column.RECEIVED] = sockets.counts[row, Count.RECEIVED]
    sockets.state[row, Column.ACTIVE_AT] = nanoseconds(sockets.clock)


@compiled
def _has_secret(sockets: Sockets, row: int) -> bool:
    return bool(sockets.secrets[row, 0] or sockets.secrets[row, 1])


@compiled
def _challenge(sockets: Sockets, row: int, period: int) -> np.uint64:
    """Return the challenge for the source at a port in a period."""
    period_and_port = np.uint64(period * PORTS + row)
    return keyed_hash(sockets.key[0], sockets.key[1], sockets.source[0], period_and_port)


@compiled
def _period(sockets: Sockets) -> int:
    """Return the number of the current period of _CHALLENGE_NS."""
    return int(nanoseconds(sockets.clock) // _CHALLENGE_NS)


@compiled
def sort(sockets: Sockets, data: NDArray[np.uint8], length: NDArray[np.int32], port: NDArray[np.int32],
         outbox: Outbox, frame_bytes: int) -> int:  # fmt: skip
    """Put the payloads of frames that are one whole packet in order of their ports; count the others.

    Return how many are for the controller, which are neither sent nor counted.
    """
    for_cpu = 0
    for row in range(outbox.end.shape[0]):
        outbox.end[row] = 0
    for frame in range(length.shape[0]):
        row = row_of(sockets, data[frame], length[frame], port[frame], frame_bytes)
        if row >= 0:
            outbox.end[row] += 1
        elif row == _FOR_CPU:
            for_cpu += 1
        elif row != _HELD:
            sockets.dropped[-1 - row] += 1
    first = 0
    for row in range(outbox.end.shape[0]):
        outbox.next[row], first = first, first + outbox.end[row]
        outbox.end[row] = outbox.next[row]
    for frame in range(length.shape[0]):
        row = row_of(sockets, data[frame], length[frame], port[frame], frame_bytes)
        if row >= 0:
            at = outbox.end[row]
            outbox.parts[at, 0] = np.int64(data[frame].ctypes.data) + FRAME_HEADER_BYTES
            outbox.parts[at, 1] = frame_bytes - FRAME_HEADER_BYTES
            outbox.end[row] = at + 1
    return for_cpu


@compiled
def row_of(sockets: Sockets, frame: NDArray[np.uint8], length: int, port: int, frame_bytes: int) -> int:
    """Return the row of the port by which a frame leaves, or one of four codes for other frames."""
    if port == CPU_PORT:
        return _FOR_CPU
    if port == HELD:
        return _HELD
    if length != frame_bytes:  # before a look at its bytes: a frame may be shorter than its headers
        return _UNFRAMED
    if frame[12] != 0x08 or frame[13] != 0x00 or frame[14] != 0x45 or frame[23] != 17:
        return _UNFRAMED
    row = sockets.rows[port] if 0 <= port < PORTS else -1
    return int(row) if row >= 0 else _NO_SUCH_PORT


@compiled
def send(sockets: Sockets, outbox: Outbox) -> int:
    """Send the ordered packets; return -1, or the row of a port whose system refuses its segments.

    A packet that does not fit a port's buffer, or has no peer, is dropped and counted.
    """
    for row in range(outbox.end.shape[0]):
        if outbox.next[row] < outbox.end[row] and _sent_all(sockets, row, outbox):
            return row
    return -1


@compiled
def _sent_all(sockets: Sockets, row: int, outbox: Outbox) -> bool:
    """Send a port's packets; return whether its system refuses the segments."""
    state, counts = sockets.state[row], sockets.counts[row]
    if state[Column.JOINED] and not state[Column.ANSWERED]:
        _sent_once(sockets, row, sockets.peers[row], 0, 0)
    problem = 0 if sockets.peers[row, 0] else -1
    while not problem and outbox.next[row] < outbox.end[row]:
        first = outbox.next[row]
        parts = min(state[Column.SEGMENTS], outbox.end[row] - first)
        address = np.int64(outbox.parts.ctypes.data) + 16 * first
        problem = _sent_once(sockets, row, sockets.peers[row], address, parts)
        if problem in _NO_OFFLOAD and state[Column.OFFLOAD]:
            return True
        if not problem:
            counts[Count.SENT] += parts
            outbox.next[row] = first + parts
    left = outbox.end[row] - outbox.next[row]
    if problem in (AGAIN, NO_BUFFERS):
        counts[Count.FULL] += left
    else:
        counts[Count.UNREACHABLE] += left
    outbox.next[row] = outbox.end[row]
    return False


@compiled
def _sent_once(sockets: Sockets, row: int, to: NDArray[np.uint64], parts: int, count: int) -> int:
    """Send one datagram of `count` parts from a port to a sockaddr_in; return 0 or the error number."""
    message = sockets.message
    message[0], message[1] = to.ctypes.data, 16
    message[2], message[3], message[4], message[5] = parts, count, 0, 0
    for _ in range(2):
        if sendmsg(sockets.state[row, Column.DESCRIPTOR], message.ctypes.data, NO_WAIT) >= 0:
            break
        problem = errno()
        if not is_late(problem):  # otherwise it is about an earlier datagram: send this one again
            return problem
    return 0
