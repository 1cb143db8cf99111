"""Compiled functions that receive and send the frames of all ports on interfaces of a switch.

Theory of operation. A port by AF_XDP has four rings of descriptors that it shares with the kernel, and chunks
of memory for frames. A port by AF_PACKET has a ring of slots (TPACKET_V2), into which the kernel copies
frames that arrive; one system call sends the frames of a batch. In TPACKET_V3, a frame would wait until its
whole block is handed over, for a millisecond and more. The caller allocates all memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.softswitch.ports.xdp import CHUNK, MOST_CHUNKS, RING
from peelsum.wire.system_calls import (
    AGAIN,
    INTERRUPTED,
    NO_BUFFERS,
    NO_WAIT,
    acquire,
    errno,
    getsockopt,
    load,
    memcpy,
    publish,
    save,
    sendmmsg,
    sendto,
)

#: v1model's ports have 9 bits.
_PORTS = 512
# Values in `InterfaceRings.rows` that are no row: the port does not exist, or it is the controller's.
_NO_SUCH_PORT, _FOR_CPU = -1, -2
_LAST, _WORD = RING - 1, (1 << 32) - 1
_BUSY, _TOO_LONG = 16, 90
# Of struct tpacket2_hdr: bits of tp_status, and 32-bit words.
_STATUS_USER, _STATUS_VLAN_VALID, _STATUS_TPID_VALID = 1, 1 << 4, 1 << 6
# Of struct xdp_desc: the bit of its options that another chunk of the frame follows.
_MORE_CHUNKS = 1
_LENGTH_WORD, _CAPTURED_WORD, _MAC_OFFSET_WORD, _VLAN_WORD = 1, 2, 3, 6
#: A VLAN tag's bytes, its place in a frame, and its usual type.
_TAG_BYTES, _TAG_OFFSET, _TAG_TYPE = 4, 12, 0x8100
_SOL_SOCKET, _SO_ERROR = 1, 4


class InterfaceCount(IntEnum):
    """Columns of `InterfaceRings.counts`, with the meaning of `InterfaceCounts`' fields."""

    RECEIVED = 0
    SENT = 1
    FULL = 2
    LONG = 3
    DOWN = 4


class InterfaceColumn(IntEnum):
    """Columns of `InterfaceRings.state`: addresses of the rings, and this process's indices in them."""

    DESCRIPTOR = 0
    XDP = 1  # 1 if the port is one of AF_XDP
    MEMORY = 2  # of chunks, or of slots
    TAKEN = 3  # received chunks that this process has consumed, or the index of its next slot
    RX_PRODUCER = 4
    RX_CONSUMER = 5
    RX = 6
    FILL_PRODUCER = 7
    FILL = 8
    FILLED = 9
    TX_PRODUCER = 10
    TX_CONSUMER = 11
    TX = 12
    PUT = 13  # chunks that this process has put into the transmit ring
    COMPLETION_PRODUCER = 14
    COMPLETION_CONSUMER = 15
    DONE = 16
    RECLAIMED = 17
    FREE_CHUNKS = 18  # chunks in `InterfaceRings.free`
    TX_TAKEN = 19  # chunks of the transmit ring that the kernel has taken, as of the last check
    TX_INVALID = 20  # chunks at the front of the transmit ring that were made invalid: the kernel skips them
    SLOT = 21  # bytes of a slot
    SLOTS = 22


class InterfaceRings(NamedTuple):
    """The interfaces of a switch's ports, a row each, and memory for their system calls."""

    state: NDArray[np.int64]  # [ports, Column]
    numbers: NDArray[np.int32]  # [ports]: of the switch ports
    counts: NDArray[np.int64]  # [ports, Count]
    rows: NDArray[np.int32]  # [_PORTS]: a switch port's row, _NO_SUCH_PORT or _FOR_CPU
    dropped: NDArray[np.int64]  # [1]: frames to ports that do not exist
    free: NDArray[np.uint32]  # [ports, RING]: addresses of chunks for frames that leave
    messages: NDArray[np.int64]  # [frames, 8]: struct mmsghdr
    parts: NDArray[np.int64]  # [frames, 2]: struct iovec
    error: NDArray[np.int32]  # [2]: a socket's error number, and its bytes


def new_interface_rings(numbers: Sequence[int], frames: int, cpu_port: int) -> InterfaceRings:
    """Return memory for the ports `numbers`, to send up to `frames` frames by one system call."""
    rows = np.full(_PORTS, _NO_SUCH_PORT, np.int32)
    rows[cpu_port] = _FOR_CPU
    rows[list(numbers)] = np.arange(len(numbers))
    messages, parts = np.zeros((frames, 8), np.int64), np.zeros((frames, 2), np.int64)
    messages[:, 2], messages[:, 3] = parts.ctypes.data + 16 * np.arange(frames), 1
    return InterfaceRings(
        state=np.zeros((len(numbers), len(InterfaceColumn)), np.int64),
        numbers=np.array(numbers, np.int32),
        counts=np.zeros((len(numbers), len(InterfaceCount)), np.int64),
        rows=rows,
        dropped=np.zeros(1, np.int64),
        free=np.zeros((len(numbers), RING), np.uint32),
        messages=messages,
        parts=parts,
        error=np.array([0, 4], np.int32),
    )


@compiled
def receive(wires: InterfaceRings, ready: NDArray[np.int32], share: int, data: NDArray[np.uint8],
            length: NDArray[np.int32], port: NDArray[np.int32]) -> int:  # fmt: skip
    """Copy up to `share` frames from each of the ports `ready` into rows of `data`; return their number."""
    count = 0
    for row in ready:
        most = min(share, data.shape[0] - count)
        if wires.state[row, InterfaceColumn.XDP]:
            received = _receive_from_xdp(wires, row, data[count : count + most], length[count:])
        else:
            received = _receive_from_slots(wires, row, data[count : count + most], length[count:])
        wires.counts[row, InterfaceCount.RECEIVED] += received
        port[count : count + received] = wires.numbers[row]
        count += received
    return count


@compiled
def _receive_from_xdp(
    wires: InterfaceRings, row: int, data: NDArray[np.uint8], length: NDArray[np.int32]
) -> int:
    """Copy received frames from an AF_XDP port's ring into rows of `data`; return their number."""
    state, count = wires.state[row], 0
    available = (np.int64(acquire(state[InterfaceColumn.RX_PRODUCER])) - state[InterfaceColumn.TAKEN]) & _WORD
    if not available:
        _clear_socket_error(wires, row)
    position, consumed, size = 0, 0, np.int64(0)
    while position < available and count < data.shape[0]:
        entry = state[InterfaceColumn.RX] + 16 * ((state[InterfaceColumn.TAKEN] + position) & _LAST)
        chunk, chunk_bytes = np.int64(load(entry, 0)), np.int64(load(entry, 2))
        if size + chunk_bytes <= data.shape[1]:
            memcpy(data[count].ctypes.data + size, state[InterfaceColumn.MEMORY] + chunk, chunk_bytes)
        size += chunk_bytes
        fill_entry = state[InterfaceColumn.FILL] + 8 * ((state[InterfaceColumn.FILLED] + position) & _LAST)
        save(fill_entry, 0, np.uint32(chunk - chunk % CHUNK))
        position += 1
        if load(entry, 3) & _MORE_CHUNKS:
            continue
        if size <= data.shape[1]:
            length[count] = size
            count += 1
        else:
            wires.counts[row, InterfaceCount.LONG] += 1
        consumed, size = position, np.int64(0)
    state[InterfaceColumn.TAKEN] += consumed
    state[InterfaceColumn.FILLED] += consumed
    publish(state[InterfaceColumn.FILL_PRODUCER], np.uint32(state[InterfaceColumn.FILLED]))
    publish(state[InterfaceColumn.RX_CONSUMER], np.uint32(state[InterfaceColumn.TAKEN]))
    return count


@compiled
def _receive_from_slots(
    wires: InterfaceRings, row: int, data: NDArray[np.uint8], length: NDArray[np.int32]
) -> int:
    """Copy received frames from an AF_PACKET port's slots into rows of `data`; return their number."""
    state, counts, count = wires.state[row], wires.counts[row], 0
    first_taken = state[InterfaceColumn.TAKEN]
    while count < data.shape[0]:
        slot = state[InterfaceColumn.MEMORY] + state[InterfaceColumn.SLOT] * state[InterfaceColumn.TAKEN]
        status = acquire(slot)
        if not status & _STATUS_USER:
            break
        size = np.int64(load(slot, _CAPTURED_WORD))
        tag_bytes = _TAG_BYTES if status & _STATUS_VLAN_VALID else 0
        if size < np.int64(load(slot, _LENGTH_WORD)) or size + tag_bytes > data.shape[1]:
            counts[InterfaceCount.LONG] += 1
        else:
            start = slot + np.int64(load(slot, _MAC_OFFSET_WORD) & np.uint32(0xFFFF))
            memcpy(data[count].ctypes.data + tag_bytes, start, size)
            if tag_bytes:
                memcpy(data[count].ctypes.data, start, _TAG_OFFSET)
                tag = np.int64(load(slot, _VLAN_WORD))
                tag_type = tag >> 16 if status & _STATUS_TPID_VALID else np.int64(_TAG_TYPE)
                _restore_tag(data[count, _TAG_OFFSET:], int(tag_type), int(tag & 0xFFFF))
            length[count] = size + tag_bytes
            count += 1
        publish(slot, np.uint32(0))
        state[InterfaceColumn.TAKEN] = (state[InterfaceColumn.TAKEN] + 1) % state[InterfaceColumn.SLOTS]
    if state[InterfaceColumn.TAKEN] == first_taken and not count:
        _clear_socket_error(wires, row)
    return count


@compiled
def _restore_tag(frame: NDArray[np.uint8], tag_type: int, value: int) -> None:
    """Write the VLAN tag that the kernel has taken out of a received frame."""
    frame[0], frame[1], frame[2], frame[3] = tag_type >> 8, tag_type & 0xFF, value >> 8, value & 0xFF


@compiled
def _clear_socket_error(wires: InterfaceRings, row: int) -> None:
    """Clear a socket's error, e.g. that its interface is down. Otherwise it would stay readable."""
    getsockopt(wires.state[row, InterfaceColumn.DESCRIPTOR], _SOL_SOCKET, _SO_ERROR, wires.error.ctypes.data,
               wires.error.ctypes.data + 4)  # fmt: skip


@compiled
def send(
    wires: InterfaceRings, data: NDArray[np.uint8], length: NDArray[np.int32], port: NDArray[np.int32]
) -> int:
    """Send the frames by their ports, in order; drop and count those that do not fit.

    Return how many are for the controller, which are neither sent nor counted.
    """
    for_cpu, for_ports = 0, 0
    for frame in range(length.shape[0]):
        row = wires.rows[port[frame]] if 0 <= port[frame] < _PORTS else _NO_SUCH_PORT
        for_cpu += row == _FOR_CPU
        for_ports += row >= 0
    for row in range(wires.numbers.shape[0]):
        if wires.state[row, InterfaceColumn.XDP]:
            _send_by_xdp(wires, row, data, length, port)
        else:
            _send_by_packet_socket(wires, row, data, length, port)
    wires.dropped[0] += length.shape[0] - for_cpu - for_ports
    return for_cpu


@compiled
def unsent(wires: InterfaceRings) -> bool:
    """Tell the kernel to send what has remained in transmit rings; return whether something still remains."""
    has_unsent = False
    for row in range(wires.numbers.shape[0]):
        state = wires.state[row]
        if state[InterfaceColumn.XDP] and state[InterfaceColumn.PUT] != state[InterfaceColumn.TX_TAKEN]:
            _kick_tx(wires, row)
            pending = state[InterfaceColumn.PUT] - state[InterfaceColumn.TX_TAKEN]
            has_unsent |= pending > state[InterfaceColumn.TX_INVALID]
    return has_unsent


@compiled
def _send_by_xdp(wires: InterfaceRings, row: int, data: NDArray[np.uint8], length: NDArray[np.int32],
            port: NDArray[np.int32]) -> None:  # fmt: skip
    """Send the frames of an AF_XDP port: copy them to free chunks, and tell the kernel."""
    state, counts, has_new = wires.state[row], wires.counts[row], False
    for frame in range(length.shape[0]):
        if port[frame] != wires.numbers[row]:
            continue
        size = int(length[frame])
        chunks = (size + CHUNK - 1) // CHUNK
        if chunks > MOST_CHUNKS:
            counts[InterfaceCount.LONG] += 1
            continue
        if state[InterfaceColumn.TX_INVALID] or state[InterfaceColumn.FREE_CHUNKS] < chunks:
            _kick_tx(wires, row)
            _reclaim_chunks(wires, row)
        if state[InterfaceColumn.TX_INVALID]:
            counts[InterfaceCount.DOWN] += 1
            continue
        if state[InterfaceColumn.FREE_CHUNKS] < chunks:
            counts[InterfaceCount.FULL] += 1
            continue
        for begin in range(0, size, CHUNK):
            state[InterfaceColumn.FREE_CHUNKS] -= 1
            chunk, chunk_bytes = wires.free[row, state[InterfaceColumn.FREE_CHUNKS]], min(CHUNK, size - begin)
            memcpy(
                state[InterfaceColumn.MEMORY] + np.int64(chunk), data[frame].ctypes.data + begin, chunk_bytes
            )
            entry = state[InterfaceColumn.TX] + 16 * (state[InterfaceColumn.PUT] & _LAST)
            save(entry, 0, chunk)
            save(entry, 2, np.uint32(chunk_bytes))
            save(entry, 3, np.uint32(_MORE_CHUNKS if begin + chunk_bytes < size else 0))
            state[InterfaceColumn.PUT] += 1
        has_new = True
    if has_new:
        _kick_tx(wires, row)
        _reclaim_chunks(wires, row)


@compiled
def _kick_tx(wires: InterfaceRings, row: int) -> None:
    """Tell the kernel to send the transmit ring's frames, some tens per call; count those that it has taken.

    If the interface is down, the frames are made invalid and counted; otherwise they would be sent when it is
    up again.
    """
    state, counts = wires.state[row], wires.counts[row]
    publish(state[InterfaceColumn.TX_PRODUCER], np.uint32(state[InterfaceColumn.PUT]))
    _count_taken(wires, row)
    while state[InterfaceColumn.TX_TAKEN] != state[InterfaceColumn.PUT]:
        taken_before = state[InterfaceColumn.TX_TAKEN]
        result = sendto(state[InterfaceColumn.DESCRIPTOR], 0, 0, NO_WAIT, 0, 0)
        error_number = 0 if result >= 0 else errno()
        _count_taken(wires, row)
        if state[InterfaceColumn.TX_TAKEN] <= taken_before and error_number != INTERRUPTED:
            if error_number not in (0, AGAIN, NO_BUFFERS, _BUSY):
                first = state[InterfaceColumn.TX_TAKEN] + state[InterfaceColumn.TX_INVALID]
                counts[InterfaceCount.DOWN] += _frames_between(state, first, state[InterfaceColumn.PUT])
                _invalidate_pending(wires, row)
            return


@compiled
def _count_taken(wires: InterfaceRings, row: int) -> None:
    """Count the frames that the kernel has taken from the transmit ring since the last check.

    The kernel may also give back the chunks of a frame that the interface refuses.
    """
    state = wires.state[row]
    taken = (np.int64(acquire(state[InterfaceColumn.TX_CONSUMER])) - state[InterfaceColumn.TX_TAKEN]) & _WORD
    if taken > _WORD >> 1:
        taken -= _WORD + 1
        wires.counts[row, InterfaceCount.SENT] -= _frames_between(
            state, state[InterfaceColumn.TX_TAKEN] + taken, state[InterfaceColumn.TX_TAKEN]
        )
    skipped = max(0, min(taken, state[InterfaceColumn.TX_INVALID]))
    wires.counts[row, InterfaceCount.SENT] += _frames_between(
        state, state[InterfaceColumn.TX_TAKEN] + skipped, state[InterfaceColumn.TX_TAKEN] + taken
    )
    state[InterfaceColumn.TX_TAKEN] += taken
    state[InterfaceColumn.TX_INVALID] -= skipped


@compiled
def _frames_between(state: NDArray[np.int64], first: int, end: int) -> int:
    """Return how many frames end at positions `first` to `end - 1` of the transmit ring."""
    count = 0
    for position in range(first, end):
        count += not load(state[InterfaceColumn.TX] + 16 * (position & _LAST), 3) & _MORE_CHUNKS
    return count


@compiled
def _invalidate_pending(wires: InterfaceRings, row: int) -> None:
    """Make the frames in the transmit ring invalid, and free their chunks."""
    state = wires.state[row]
    for position in range(
        state[InterfaceColumn.TX_TAKEN] + state[InterfaceColumn.TX_INVALID], state[InterfaceColumn.PUT]
    ):
        entry = state[InterfaceColumn.TX] + 16 * (position & _LAST)
        wires.free[row, state[InterfaceColumn.FREE_CHUNKS]] = load(entry, 0)
        state[InterfaceColumn.FREE_CHUNKS] += 1
        save(entry, 0, np.uint32(_WORD))
        save(entry, 3, np.uint32(0))
    state[InterfaceColumn.TX_INVALID] = state[InterfaceColumn.PUT] - state[InterfaceColumn.TX_TAKEN]


@compiled
def _reclaim_chunks(wires: InterfaceRings, row: int) -> None:
    """Free the chunks of frames that have been sent, which are in the completion ring."""
    state = wires.state[row]
    completed = (
        np.int64(acquire(state[InterfaceColumn.COMPLETION_PRODUCER])) - state[InterfaceColumn.RECLAIMED]
    ) & _WORD
    _count_taken(wires, row)  # before their positions in the transmit ring are reused
    for i in range(completed):
        entry = state[InterfaceColumn.DONE] + 8 * ((state[InterfaceColumn.RECLAIMED] + i) & _LAST)
        chunk = load(entry, 0)
        if chunk != _WORD:  # some kernels also return invalid chunks
            wires.free[row, state[InterfaceColumn.FREE_CHUNKS]] = chunk
            state[InterfaceColumn.FREE_CHUNKS] += 1
    state[InterfaceColumn.RECLAIMED] += completed
    publish(state[InterfaceColumn.COMPLETION_CONSUMER], np.uint32(state[InterfaceColumn.RECLAIMED]))


@compiled
def _send_by_packet_socket(
    wires: InterfaceRings,
    row: int,
    data: NDArray[np.uint8],
    length: NDArray[np.int32],
    port: NDArray[np.int32],
) -> None:
    """Send the frames of an AF_PACKET port, as many as possible with one system call."""
    count = 0
    for frame in range(length.shape[0]):
        if port[frame] == wires.numbers[row]:
            wires.parts[count, 0], wires.parts[count, 1] = data[frame].ctypes.data, length[frame]
            count += 1
            if count == wires.parts.shape[0]:
                send_messages(wires, row, count)
                count = 0
    if count:
        send_messages(wires, row, count)


@compiled
def send_messages(wires: InterfaceRings, row: int, count: int) -> None:
    """Send the first `count` messages from a port of AF_PACKET; drop and count those that it refuses."""
    next_message, counts, may_be_stale = 0, wires.counts[row], True
    first = np.int64(wires.messages.ctypes.data)
    while next_message < count:
        descriptor = wires.state[row, InterfaceColumn.DESCRIPTOR]
        sent = sendmmsg(descriptor, first + 64 * next_message, count - next_message, NO_WAIT)
        error_number = 0 if sent >= 0 else errno()
        if sent > 0:
            counts[InterfaceCount.SENT] += sent
            next_message += sent
        elif error_number == NO_BUFFERS:  # the queue was full for this frame; it may not be for the next
            counts[InterfaceCount.FULL] += 1
            next_message += 1
        elif error_number == _TOO_LONG:  # for this interface
            counts[InterfaceCount.LONG] += 1
            next_message += 1
        elif error_number == AGAIN:
            counts[InterfaceCount.FULL] += count - next_message
            return
        elif error_number != INTERRUPTED and may_be_stale:  # perhaps from when the interface was down
            may_be_stale = False
        elif error_number != INTERRUPTED:
            counts[InterfaceCount.DOWN] += count - next_message
            return
