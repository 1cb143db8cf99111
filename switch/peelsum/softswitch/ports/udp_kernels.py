"""Compiled functions that receive, answer and send the datagrams of all UDP ports of a switch.

Theory of operation. Each row of a batch has room for headers before its payload. A datagram may have up to
128 packets. `receive` lets the kernel write their payloads into rows, and copies the port's headers before
each. `sort` orders frames by port, and `send` lets the kernel gather their payloads, so this code copies no
payload. The caller allocates all memory.

To test protocols, ports can lose packets in each direction, one by one or in bursts, and send some of them
out of order. A counter's hash (splitmix64) decides for each packet, so equal seeds lose the same ones, if not
in bursts. Bursts follow Gilbert's model: a loss has two probabilities, after a packet that was lost and after
one that was not. Its state changes with time, too: `_SLOT_NS` without packets count as one packet. Otherwise
a burst would last until enough packets have been lost, however slowly a sender tries again.

A port takes packets from its peer only. A hello (see `peelsum.wire.hello`) makes its source the peer:

| the port | hello | proof |
|---|---|---|
| is joined to a peer | do not answer | refuse |
| has a secret | from the peer: answer; else: challenge the source | right: accept the source; wrong: refuse |
| has no secret and is open | accept the source | refuse |
| has no secret and is not open | refuse | refuse |

While the peer sends packets, a right proof from another address is refused, too. A challenge is a keyed hash
of its source, so the switch stores nothing about hosts that have not proved the secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from secrets import token_bytes
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.wire import FRAME_HEADER_BYTES, PROOF_BYTES
from peelsum.wire.hello import siphash_2_4
from peelsum.wire.system_calls import (
    AGAIN,
    NO_BUFFERS,
    NO_WAIT,
    errno,
    is_stale_error,
    memcpy,
    nanoseconds,
    sendmsg,
)
from peelsum.wire.system_calls import receive as receive_message

#: v1model's ports have 9 bits.
PORTS = 512
#: The least number of packets that a batch receives from each ready port.
SHARE = 8
#: The most parts of one message: Linux's UIO_MAXIOV.
MOST_IOVECS = 1024
#: Nanoseconds without packets after which another host can take the peer's place.
SILENCE_NS = 1_000_000_000
#: A challenge is valid for between one and two times this, in nanoseconds: a host may have to compile the
#: hash function first.
_CHALLENGE_NS = 60_000_000_000
#: The most datagrams without packets from the peer that one call reads from a port.
_MOST_IGNORED = 64
#: Errors with which a kernel or a network device refuses to segment a send.
_OFFLOAD_REFUSED = (5, 22, 90, 95)  # EIO, EINVAL, EMSGSIZE, EOPNOTSUPP
#: Results of `row_of` that are no row: the frame is not one whole packet, its port does not exist, it is for
#: the controller, or it waits in a ring.
_UNFRAMED, _NO_SUCH_PORT, _FOR_CPU, _HELD = -1, -2, -3, -4
#: Written over the port of a frame that waits in a ring, or is lost.
HELD = -1
#: Columns of `Sockets.draws`; the first two are also those of `Sockets.lost`.
_IN, _OUT, _LATE = 0, 1, 2
#: Nanoseconds without packets that change the states of losses as a packet does.
_SLOT_NS = 10_000
#: The most positions by which a packet is late.
MOST_LATE = 32


class UdpCount(IntEnum):
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
    LATE = 11


class UdpColumn(IntEnum):
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
    challenge_iovec: NDArray[np.int64]  # [2]: struct iovec of that
    clock: NDArray[np.int64]  # [2]: struct timespec
    loss: NDArray[np.float64]  # [2]: the probability of a loss after a packet that was not lost, or was
    lost: NDArray[np.int64]  # [ports, 2]: 1 if the last received, or sent, packet was lost
    lost_at: NDArray[np.int64]  # [ports, 2]: when that was, in nanoseconds
    late: NDArray[np.float64]  # [1]: the share of packets that are sent out of order
    draws: NDArray[np.uint64]  # [ports, 3]: the counters that decide about received, sent and late packets
    frame_bytes: NDArray[np.int64]  # [2]: the least and the most bytes of a frame


class ReceiveBuffers(NamedTuple):
    """Frames as the sockets receive them."""

    data: NDArray[np.uint8]  # [rows, stride]
    length: NDArray[np.int32]  # [rows]: of a whole packet with its headers
    port: NDArray[np.int32]  # [rows]
    iovecs: NDArray[np.int64]  # [rows, 2]: struct iovec of each row's payload
    headers: NDArray[np.uint8]  # [ports, FRAME_HEADER_BYTES]


class SendBuffers(NamedTuple):
    """The payloads to send, in order of their ports."""

    iovecs: NDArray[np.int64]  # [frames, 2]: struct iovec of payloads, by port
    next: NDArray[np.int64]  # [ports]: the first part that is not sent yet
    end: NDArray[np.int64]  # [ports]: the part after a port's last one


def new_sockets(numbers: Sequence[int], cpu_port: int) -> Sockets:
    """Return memory for the ports `numbers`, without sockets and peers."""
    rows = np.full(PORTS, _NO_SUCH_PORT, np.int32)
    rows[cpu_port] = _FOR_CPU
    rows[numbers] = np.arange(len(numbers))
    challenge = np.zeros(1, np.uint64)
    return Sockets(
        state=np.zeros((len(numbers), len(UdpColumn)), np.int64),
        peers=np.zeros((len(numbers), 2), np.uint64),
        counts=np.zeros((len(numbers), len(UdpCount)), np.int64),
        rows=rows,
        dropped=np.zeros(2, np.int64),
        message=np.zeros(7, np.int64),
        source=np.zeros(2, np.uint64),
        control=np.zeros(8, np.int32),
        secrets=np.zeros((len(numbers), 2), np.uint64),
        key=np.frombuffer(token_bytes(16), np.uint64).copy(),
        challenge=challenge,
        challenge_iovec=np.array([challenge.ctypes.data, challenge.nbytes], np.int64),
        clock=np.zeros(2, np.int64),
        loss=np.zeros(2),
        lost=np.zeros((len(numbers), 2), np.int64),
        lost_at=np.zeros((len(numbers), 2), np.int64),
        late=np.zeros(1),
        draws=np.zeros((len(numbers), 3), np.uint64),
        frame_bytes=np.zeros(2, np.int64),
    )


def new_receive_buffers(
    rows: int, stride: int, headers: Sequence[NDArray[np.uint8]], packet_bytes: int
) -> ReceiveBuffers:
    """Return memory for `rows` frames of up to `stride` bytes, and each port's headers."""
    data = np.zeros((rows, stride), np.uint8)
    iovecs = np.full((rows, 2), packet_bytes, np.int64)
    iovecs[:, 0] = data.ctypes.data + FRAME_HEADER_BYTES + stride * np.arange(rows)
    length = np.full(rows, FRAME_HEADER_BYTES + packet_bytes, np.int32)
    return ReceiveBuffers(data, length, np.zeros(rows, np.int32), iovecs, np.stack(headers))


def new_send_buffers(frames: int, ports: int) -> SendBuffers:
    """Return memory for sending up to `frames` frames at once."""
    return SendBuffers(np.zeros((frames, 2), np.int64), np.zeros(ports, np.int64), np.zeros(ports, np.int64))


@compiled
def receive(sockets: Sockets, ready: NDArray[np.int32], share: int, batch: ReceiveBuffers) -> int:
    """Receive about `share` packets from each of the rows `ready`; answer hellos.

    Return the number of packets, or minus an error number.
    """
    count = 0
    for row in ready:
        end, ignorable = count + share, _MOST_IGNORED
        while count < end and ignorable:
            packets = _receive_datagram(sockets, row, batch, count)
            if packets == -AGAIN:
                break
            if packets < 0:
                return packets
            if not packets:
                ignorable -= 1
            packets = _lose_received(sockets, row, batch, count, packets)
            number = np.int32(sockets.state[row, UdpColumn.NUMBER])
            for frame in range(count, count + packets):
                batch.port[frame] = number
                for i in range(FRAME_HEADER_BYTES):
                    batch.data[frame, i] = batch.headers[row, i]
                if sockets.frame_bytes[0] < sockets.frame_bytes[1]:
                    _write_lengths(batch.data[frame], batch.length[frame])
            count += packets
    return count


@compiled
def _write_lengths(frame: NDArray[np.uint8], length: int) -> None:
    """Write the lengths of IPv4 and UDP, and IPv4's checksum, to the headers of a frame of `length` bytes."""
    total = 0
    for field, value in ((16, length - 14), (38, length - 34), (24, 0)):
        frame[field], frame[field + 1] = value >> 8, value & 0xFF
    for field in range(14, 34, 2):
        total += frame[field] << 8 | frame[field + 1]
    checksum = 0xFFFF - (total % 0xFFFF or 0xFFFF)  # the one's complement sum is one modulo 0xFFFF
    frame[24], frame[25] = checksum >> 8, checksum & 0xFF


@compiled
def _receive_datagram(sockets: Sockets, row: int, batch: ReceiveBuffers, first: int) -> int:
    """Receive a datagram into rows from `first` on; return its packets, or minus an error number.

    Packets that are not from the peer are counted, and 0 is returned.
    """
    message, counts = sockets.message, sockets.counts
    sizes_vary = sockets.frame_bytes[0] < sockets.frame_bytes[1]
    message[0], message[1] = sockets.source.ctypes.data, 16
    message[2] = np.int64(batch.iovecs.ctypes.data) + 16 * first
    message[3] = 1 if sizes_vary else min(MOST_IOVECS, batch.iovecs.shape[0] - first)
    message[4] = sockets.control.ctypes.data
    size = receive_message(sockets.state[row, UdpColumn.DESCRIPTOR], message)
    if size <= 0:
        return size if size else _handle_hello(sockets, row)
    if size == PROOF_BYTES and not (sizes_vary and _is_from_peer(sockets, row)):
        return _handle_proof(sockets, row, batch.data[first])
    segment = sockets.control[4] if message[5] else size
    most_bytes = message[3] * batch.iovecs[first, 1]
    packet_bytes = size if sizes_vary else batch.iovecs[first, 1]
    packets = size // segment if segment == packet_bytes and size <= most_bytes else 0
    if sizes_vary:
        batch.length[first] = FRAME_HEADER_BYTES + size
    counts[row, UdpCount.ODD] += -(-size // segment) - packets
    if not _is_from_peer(sockets, row):
        counts[row, UdpCount.FOREIGN] += packets
        return 0
    counts[row, UdpCount.RECEIVED] += packets
    return int(packets)


@compiled
def survives(sockets: Sockets, row: int, direction: int) -> bool:
    """Return whether a port does not lose its next packet in a direction, a column of `Sockets.lost`."""
    is_lost = _draw(sockets, row, direction) < sockets.loss[sockets.lost[row, direction]]
    sockets.lost[row, direction] = is_lost
    return not is_lost


@compiled
def _pass_time(sockets: Sockets, row: int, direction: int) -> None:
    """Draw the state of losses after the time since the last packet in a direction, if there are bursts."""
    kept = sockets.loss[1] - sockets.loss[0]
    if kept == 0.0:
        return
    now_ns = nanoseconds(sockets.clock)
    # With bursts shorter than those of independent losses, `kept` is negative: then time ends each state.
    kept_since = max(kept, 0.0) ** ((now_ns - sockets.lost_at[row, direction]) / _SLOT_NS)
    share = sockets.loss[0] / (1.0 - kept)
    is_lossy = share + (sockets.lost[row, direction] - share) * kept_since
    sockets.lost[row, direction] = _draw(sockets, row, direction) < is_lossy
    sockets.lost_at[row, direction] = now_ns


@compiled
def _draw(sockets: Sockets, row: int, column: int) -> float:
    """Return the next number of a column of `Sockets.draws`, from 0 to less than 1."""
    draws = sockets.draws[row]
    draws[column] += np.uint64(0x9E3779B97F4A7C15)
    bits = draws[column]
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return float(((bits ^ bits >> np.uint64(31)) >> np.uint64(11)) * 2.0**-53)


@compiled
def _lose_received(sockets: Sockets, row: int, batch: ReceiveBuffers, first: int, packets: int) -> int:
    """Drop lost packets from the rows from `first` on; move the others to the front, and return how many."""
    if not sockets.loss[0]:
        return packets
    end = first
    _pass_time(sockets, row, _IN)
    for frame in range(first, first + packets):
        if survives(sockets, row, _IN):
            if end < frame:
                memcpy(batch.iovecs[end, 0], batch.iovecs[frame, 0], batch.iovecs[frame, 1])
            end += 1
    survivors = end - first
    sockets.counts[row, UdpCount.LOST_IN] += packets - survivors
    sockets.counts[row, UdpCount.RECEIVED] -= packets - survivors
    return survivors


@compiled
def lose_sent(sockets: Sockets, port: NDArray[np.int32]) -> None:
    """Lose some of the frames that leave by these ports: set their port to HELD."""
    if not sockets.loss[0]:
        return
    for row in range(sockets.state.shape[0]):
        _pass_time(sockets, row, _OUT)
    for frame in range(port.shape[0]):
        row = sockets.rows[port[frame]] if 0 <= port[frame] < PORTS else -1
        if row >= 0 and not survives(sockets, row, _OUT):
            sockets.counts[row, UdpCount.LOST_OUT] += 1
            port[frame] = HELD


@compiled
def _is_from_peer(sockets: Sockets, row: int) -> bool:
    # The second half of a sockaddr_in is padding.
    return bool(sockets.source[0] == sockets.peers[row, 0])


@compiled
def _handle_hello(sockets: Sockets, row: int) -> int:
    """Handle a hello: accept its source, challenge it or refuse it. Return 0, its number of packets."""
    state = sockets.state[row]
    if state[UdpColumn.JOINED]:
        state[UdpColumn.ANSWERED] |= _is_from_peer(sockets, row)
    elif _is_from_peer(sockets, row) or (state[UdpColumn.OPEN] and not _has_secret(sockets, row)):
        _accept(sockets, row)
    elif _has_secret(sockets, row):
        sockets.counts[row, UdpCount.CHALLENGES] += 1
        sockets.challenge[0] = _challenge(sockets, row, _current_period(sockets))
        _send_datagram(sockets, row, sockets.source, int(sockets.challenge_iovec.ctypes.data), 1)
    else:
        sockets.counts[row, UdpCount.REFUSED] += 1
    return 0


@compiled
def _handle_proof(sockets: Sockets, row: int, frame: NDArray[np.uint8]) -> int:
    """Handle the proof in a frame's payload: accept its source or refuse it. Return 0 packets."""
    period, proof, is_valid = _current_period(sockets), np.uint64(0), False
    for i in range(PROOF_BYTES):
        proof |= np.uint64(frame[FRAME_HEADER_BYTES + i]) << np.uint64(8 * i)
    for age in range(2):
        challenge = _challenge(sockets, row, period - age)
        is_valid |= proof == siphash_2_4(
            sockets.secrets[row, 0], sockets.secrets[row, 1], challenge, np.uint64(0)
        )
    if (
        not is_valid
        or not _has_secret(sockets, row)
        or sockets.state[row, UdpColumn.JOINED]
        or _other_peer_is_active(sockets, row)
    ):
        sockets.counts[row, UdpCount.REFUSED] += 1
    else:
        _accept(sockets, row)
    return 0


@compiled
def _accept(sockets: Sockets, row: int) -> None:
    """Make the source the peer, and answer it."""
    sockets.peers[row, 0], sockets.peers[row, 1] = sockets.source[0], sockets.source[1]
    sockets.counts[row, UdpCount.HELLOS] += 1
    _mark_active(sockets, row)
    _send_datagram(sockets, row, sockets.peers[row], 0, 0)


@compiled
def _other_peer_is_active(sockets: Sockets, row: int) -> bool:
    """Return whether another host than the source is the peer, and has sent packets within SILENCE_NS.

    To keep the receiving of packets fast, they have no time stamps. The peer counts as active at this call if
    the port's count of packets has changed since the last one.
    """
    state = sockets.state[row]
    if not sockets.peers[row, 0] or _is_from_peer(sockets, row):
        return False
    if state[UdpColumn.RECEIVED] != sockets.counts[row, UdpCount.RECEIVED]:
        _mark_active(sockets, row)
    return bool(nanoseconds(sockets.clock) - state[UdpColumn.ACTIVE_AT] < SILENCE_NS)


@compiled
def _mark_active(sockets: Sockets, row: int) -> None:
    sockets.state[row, UdpColumn.RECEIVED] = sockets.counts[row, UdpCount.RECEIVED]
    sockets.state[row, UdpColumn.ACTIVE_AT] = nanoseconds(sockets.clock)


@compiled
def _was_silent(sockets: Sockets, row: int) -> bool:
    """Return whether the peer has been silent for SILENCE_NS, at most once in this time.

    A switch that was started again knows no peer until it gets a hello.
    """
    state = sockets.state[row]
    has_received = state[UdpColumn.RECEIVED] != sockets.counts[row, UdpCount.RECEIVED]
    if has_received or nanoseconds(sockets.clock) - state[UdpColumn.ACTIVE_AT] >= SILENCE_NS:
        _mark_active(sockets, row)
        return not has_received
    return False


@compiled
def _has_secret(sockets: Sockets, row: int) -> bool:
    return bool(sockets.secrets[row, 0] or sockets.secrets[row, 1])


@compiled
def _challenge(sockets: Sockets, row: int, period: int) -> np.uint64:
    """Return the challenge for the source at a port in a period."""
    period_and_port = np.uint64(period * PORTS + row)
    return siphash_2_4(sockets.key[0], sockets.key[1], sockets.source[0], period_and_port)


@compiled
def _current_period(sockets: Sockets) -> int:
    """Return the number of the current period of _CHALLENGE_NS."""
    return int(nanoseconds(sockets.clock) // _CHALLENGE_NS)


@compiled
def sort(sockets: Sockets, data: NDArray[np.uint8], length: NDArray[np.int32], port: NDArray[np.int32],
         send_buffers: SendBuffers) -> int:  # fmt: skip
    """Put the payloads of frames into `send_buffers`, by port; count frames that are not one whole packet.

    Return how many frames are for the controller, which are neither sent nor counted.
    """
    for_cpu = 0
    for row in range(send_buffers.end.shape[0]):
        send_buffers.end[row] = 0
    for frame in range(length.shape[0]):
        row = row_of(sockets, data[frame], length[frame], port[frame])
        if row >= 0:
            send_buffers.end[row] += 1
        elif row == _FOR_CPU:
            for_cpu += 1
        elif row != _HELD:
            sockets.dropped[-1 - row] += 1
    first = 0
    for row in range(send_buffers.end.shape[0]):
        send_buffers.next[row], first = first, first + send_buffers.end[row]
        send_buffers.end[row] = send_buffers.next[row]
    for frame in range(length.shape[0]):
        row = row_of(sockets, data[frame], length[frame], port[frame])
        if row >= 0:
            iovec = send_buffers.end[row]
            send_buffers.iovecs[iovec, 0] = np.int64(data[frame].ctypes.data) + FRAME_HEADER_BYTES
            send_buffers.iovecs[iovec, 1] = length[frame] - FRAME_HEADER_BYTES
            send_buffers.end[row] = iovec + 1
    return for_cpu


@compiled
def row_of(sockets: Sockets, frame: NDArray[np.uint8], length: int, port: int) -> int:
    """Return the row of the port by which a frame leaves, or one of four codes for other frames."""
    if port == HELD:
        return _HELD
    row = sockets.rows[port] if 0 <= port < PORTS else _NO_SUCH_PORT
    if row == _FOR_CPU:
        return _FOR_CPU
    # This comes before a look at its bytes: a frame may be shorter than its headers.
    if not sockets.frame_bytes[0] <= length <= sockets.frame_bytes[1]:
        return _UNFRAMED
    if frame[12] != 0x08 or frame[13] != 0x00 or frame[14] != 0x45 or frame[23] != 17:
        return _UNFRAMED
    return int(row)


@compiled
def send(sockets: Sockets, send_buffers: SendBuffers) -> int:
    """Send the packets in `send_buffers`; return -1, or the row of the first port that refuses segments.

    Packets that do not fit a port's send buffer, or whose port has no peer, are dropped and counted.
    """
    for row in range(send_buffers.end.shape[0]):
        if send_buffers.next[row] < send_buffers.end[row] and _send_port(sockets, row, send_buffers):
            return row
    return -1


@compiled
def _send_port(sockets: Sockets, row: int, send_buffers: SendBuffers) -> bool:
    """Send a port's packets; return whether the kernel or the network device refuses the segments."""
    state, counts = sockets.state[row], sockets.counts[row]
    if sockets.late[0]:
        _make_late(sockets, row, send_buffers)
    if state[UdpColumn.JOINED] and (not state[UdpColumn.ANSWERED] or _was_silent(sockets, row)):
        _send_datagram(sockets, row, sockets.peers[row], 0, 0)
    error_number = 0 if sockets.peers[row, 0] else -1
    while not error_number and send_buffers.next[row] < send_buffers.end[row]:
        first = send_buffers.next[row]
        iovecs = min(state[UdpColumn.SEGMENTS], send_buffers.end[row] - first)
        address = np.int64(send_buffers.iovecs.ctypes.data) + 16 * first
        error_number = _send_datagram(sockets, row, sockets.peers[row], address, iovecs)
        if error_number in _OFFLOAD_REFUSED and state[UdpColumn.OFFLOAD]:
            return True
        if not error_number:
            counts[UdpCount.SENT] += iovecs
            send_buffers.next[row] = first + iovecs
    unsent_count = send_buffers.end[row] - send_buffers.next[row]
    if error_number in (AGAIN, NO_BUFFERS):
        counts[UdpCount.FULL] += unsent_count
    else:
        counts[UdpCount.UNREACHABLE] += unsent_count
    send_buffers.next[row] = send_buffers.end[row]
    return False


@compiled
def _make_late(sockets: Sockets, row: int, send_buffers: SendBuffers) -> None:
    """Exchange some of a port's packets with one of up to MOST_LATE after them that are sent at once."""
    iovecs, end = send_buffers.iovecs, send_buffers.end[row]
    # From the last: a packet that is late already would otherwise be exchanged again.
    for packet in range(end - 2, send_buffers.next[row] - 1, -1):
        if _draw(sockets, row, _LATE) < sockets.late[0]:
            most = min(MOST_LATE, end - 1 - packet)
            other = packet + 1 + int(_draw(sockets, row, _LATE) * most)
            for i in range(2):
                iovecs[packet, i], iovecs[other, i] = iovecs[other, i], iovecs[packet, i]
            sockets.counts[row, UdpCount.LATE] += 1


@compiled
def _send_datagram(sockets: Sockets, row: int, address: NDArray[np.uint64], iovecs: int, count: int) -> int:
    """Send one datagram of `count` parts from a port to a sockaddr_in; return 0 or the error number."""
    message = sockets.message
    message[0], message[1] = address.ctypes.data, 16
    message[2], message[3], message[4], message[5] = iovecs, count, 0, 0
    for _ in range(2):
        if sendmsg(sockets.state[row, UdpColumn.DESCRIPTOR], message.ctypes.data, NO_WAIT) >= 0:
            break
        error_number = errno()
        if not is_stale_error(error_number):  # an error about an earlier datagram: send this one again
            return error_number
    return 0
