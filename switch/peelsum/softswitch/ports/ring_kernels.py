"""The compiled calls of a switch's ports on interfaces: frames between the kernel's rings and batches.

Theory of operation. A port of AF_XDP has four rings of descriptions, and chunks of memory for frames. One of
AF_PACKET has a ring of slots, into which the kernel copies frames that arrive; those that leave go by one
system call a batch. The version of its ring is the second: in the third, a frame waits until the kernel hands
over its whole block, a millisecond and more. All memory is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.softswitch.ports.xdp import CHUNK, MOST_CHUNKS, RING
from peelsum.wire import CPU_PORT
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
_LAST, _WORD = RING - 1, (1 << 32) - 1
_BUSY, _TOO_LONG = 16, 90
# Of struct tpacket2_hdr: bits of tp_status, and 32-bit words.
_USER, _TAGGED = 1, 1 << 4
# Of struct xdp_desc: the bit of its options that another chunk of the frame follows.
_MORE = 1
_STATUS, _LENGTH, _KEPT, _BEGIN = 0, 1, 2, 3
_SOL_SOCKET, _SO_ERROR = 1, 4


class Count(IntEnum):
    """Columns of `Wires.counts`, with the meaning of `InterfaceCounts`' fields."""

    RECEIVED = 0
    SENT = 1
    FULL = 2
    LONG = 3
    DOWN = 4
    TAGGED = 5


class Column(IntEnum):
    """Columns of `Wires.state`: addresses of rings, and how far this process is in each."""

    DESCRIPTOR = 0
    XDP = 1  # 1 if the port is one of AF_XDP
    MEMORY = 2  # of chunks, or of slots
    TAKEN = 3  # chunks, or slots, that this process has taken
    RX_PRODUCER = 4
    RX_CONSUMER = 5
    RX = 6
    FILL_PRODUCER = 7
    FILL = 8
    FILLED = 9
    TX_PRODUCER = 10
    TX_CONSUMER = 11
    TX = 12
    PUT = 13  # chunks put into the ring of those that leave
    DONE_PRODUCER = 14
    DONE_CONSUMER = 15
    DONE = 16
    REAPED = 17
    FREE = 18  # chunks in `Wires.free`
    SEEN = 19  # chunks of the ring of those that leave that the kernel had taken when this process looked
    VOID = 20  # chunks in that ring, its first ones, that were made invalid: the kernel skips them
    SLOT = 21  # bytes of a slot
    SLOTS = 22


class Wires(NamedTuple):
    """The interfaces of a switch's ports, a row each, and memory for their system calls."""

    state: NDArray[np.int64]  # [ports, Column]
    numbers: NDArray[np.int32]  # [ports]: of the switch ports
    counts: NDArray[np.int64]  # [ports, Count]
    rows: NDArray[np.int32]  # [_PORTS]: a switch port's row, or -1
    dropped: NDArray[np.int64]  # [1]: frames to ports that do not exist
    free: NDArray[np.uint32]  # [ports, RING]: addresses of chunks for frames that leave
    messages: NDArray[np.int64]  # [frames, 8]: struct mmsghdr
    parts: NDArray[np.int64]  # [frames, 2]: struct iovec
    error: NDArray[np.int32]  # [2]: a socket's error number, and its bytes


def new_wires(numbers: Sequence[int], frames: int) -> Wires:
    """Return memory for the ports `numbers`, to send up to `frames` frames by one system call."""
    rows = np.full(_PORTS, -1, np.int32)
    rows[list(numbers)] = np.arange(len(numbers))
    messages, parts = np.zeros((frames, 8), np.int64), np.zeros((frames, 2), np.int64)
    messages[:, 2], messages[:, 3] = parts.ctypes.data + 16 * np.arange(frames), 1
    return Wires(
        state=np.zeros((len(numbers), len(Column)), np.int64),
        numbers=np.array(numbers, np.int32),
        counts=np.zeros((len(numbers), len(Count)), np.int64),
        rows=rows,
        dropped=np.zeros(1, np.int64),
        free=np.zeros((len(numbers), RING), np.uint32),
        messages=messages,
        parts=parts,
        error=np.array([0, 4], np.int32),
    )


@compiled
def receive(wires: Wires, ready: NDArray[np.int32], share: int, data: NDArray[np.uint8],
            length: NDArray[np.int32], port: NDArray[np.int32]) -> int:  # fmt: skip
    """Copy up to `share` frames of each of the rows `ready` into rows of `data`; return their number."""
    count = 0
    for row in ready:
        most = min(share, data.shape[0] - count)
        if wires.state[row, Column.XDP]:
            got = _from_xdp(wires, row, data[count : count + most], length[count:])
        else:
            got = _from_slots(wires, row, data[count : count + most], length[count:])
        wires.counts[row, Count.RECEIVED] += got
        port[count : count + got] = wires.numbers[row]
        count += got
    return count


@compiled
def _from_xdp(wires: Wires, row: int, data: NDArray[np.uint8], length: NDArray[np.int32]) -> int:
    state, count = wires.state[row], 0
    waiting = (np.int64(acquire(state[Column.RX_PRODUCER])) - state[Column.TAKEN]) & _WORD
    if not waiting:
        _forget_error(wires, row)
    place, taken, size = 0, 0, np.int64(0)
    while place < waiting and count < data.shape[0]:
        entry = state[Column.RX] + 16 * ((state[Column.TAKEN] + place) & _LAST)
        at, part = np.int64(load(entry, 0)), np.int64(load(entry, 2))
        if size + part <= data.shape[1]:
            memcpy(data[count].ctypes.data + size, state[Column.MEMORY] + at, part)
        size += part
        back = state[Column.FILL] + 8 * ((state[Column.FILLED] + place) & _LAST)
        save(back, 0, np.uint32(at - at % CHUNK))
        place += 1
        if load(entry, 3) & _MORE:
            continue
        if size <= data.shape[1]:
            length[count] = size
            count += 1
        else:
            wires.counts[row, Count.LONG] += 1
        taken, size = place, np.int64(0)
    state[Column.TAKEN] += taken
    state[Column.FILLED] += taken
    publish(state[Column.FILL_PRODUCER], np.uint32(state[Column.FILLED]))
    publish(state[Column.RX_CONSUMER], np.uint32(state[Column.TAKEN]))
    return count


@compiled
def _from_slots(wires: Wires, row: int, data: NDArray[np.uint8], length: NDArray[np.int32]) -> int:
    state, counts, count, before = wires.state[row], wires.counts[row], 0, wires.state[row, Column.TAKEN]
    while count < data.shape[0]:
        slot = state[Column.MEMORY] + state[Column.SLOT] * state[Column.TAKEN]
        status = acquire(slot)
        if not status & _USER:
            break
        size = np.int64(load(slot, _KEPT))
        if status & _TAGGED:
            counts[Count.TAGGED] += 1
        elif size < np.int64(load(slot, _LENGTH)) or size > data.shape[1]:
            counts[Count.LONG] += 1
        else:
            memcpy(data[count].ctypes.data, slot + np.int64(load(slot, _BEGIN) & np.uint32(0xFFFF)), size)
            length[count] = size
            count += 1
        publish(slot, np.uint32(0))
        state[Column.TAKEN] = (state[Column.TAKEN] + 1) % state[Column.SLOTS]
    if state[Column.TAKEN] == before and not count:
        _forget_error(wires, row)
    return count


@compiled
def _forget_error(wires: Wires, row: int) -> None:
    """Clear a socket's error, e.g. that its interface is down: it would be readable all the time."""
    getsockopt(wires.state[row, Column.DESCRIPTOR], _SOL_SOCKET, _SO_ERROR, wires.error.ctypes.data,
               wires.error.ctypes.data + 4)  # fmt: skip


@compiled
def send(wires: Wires, data: NDArray[np.uint8], length: NDArray[np.int32], port: NDArray[np.int32]) -> int:
    """Send the frames by their ports, in order; drop and count those that do not fit.

    Return how many are for the controller, which are neither sent nor counted.
    """
    for_cpu, here = 0, 0
    for frame in range(length.shape[0]):
        for_cpu += port[frame] == CPU_PORT
        here += 0 <= port[frame] < _PORTS and wires.rows[port[frame]] >= 0
    for row in range(wires.numbers.shape[0]):
        if wires.state[row, Column.XDP]:
            _by_xdp(wires, row, data, length, port)
        else:
            _by_message(wires, row, data, length, port)
    wires.dropped[0] += length.shape[0] - for_cpu - here
    return for_cpu


@compiled
def unsent(wires: Wires) -> bool:
    """Let the kernel send again what it left in rings; return whether there is more."""
    left = False
    for row in range(wires.numbers.shape[0]):
        if wires.state[row, Column.XDP] and wires.state[row, Column.PUT] != wires.state[row, Column.SEEN]:
            _kick(wires, row)
            left |= (
                wires.state[row, Column.PUT] - wires.state[row, Column.SEEN] > wires.state[row, Column.VOID]
            )
    return left


@compiled
def _by_xdp(wires: Wires, row: int, data: NDArray[np.uint8], length: NDArray[np.int32],
            port: NDArray[np.int32]) -> None:  # fmt: skip
    state, counts, new = wires.state[row], wires.counts[row], False
    for frame in range(length.shape[0]):
        if port[frame] != wires.numbers[row]:
            continue
        size = int(length[frame])
        chunks = (size + CHUNK - 1) // CHUNK
        if chunks > MOST_CHUNKS:
            counts[Count.LONG] += 1
            continue
        if state[Column.VOID] or state[Column.FREE] < chunks:
            _kick(wires, row)
            _reap(wires, row)
        if state[Column.VOID]:
            counts[Count.DOWN] += 1
            continue
        if state[Column.FREE] < chunks:
            counts[Count.FULL] += 1
            continue
        for begin in range(0, size, CHUNK):
            state[Column.FREE] -= 1
            at, part = wires.free[row, state[Column.FREE]], min(CHUNK, size - begin)
            memcpy(state[Column.MEMORY] + np.int64(at), data[frame].ctypes.data + begin, part)
            entry = state[Column.TX] + 16 * (state[Column.PUT] & _LAST)
            save(entry, 0, at)
            save(entry, 2, np.uint32(part))
            save(entry, 3, np.uint32(_MORE if begin + part < size else 0))
            state[Column.PUT] += 1
        new = True
    if new:
        _kick(wires, row)
        _reap(wires, row)


@compiled
def _kick(wires: Wires, row: int) -> None:
    """Let the kernel send the ring's frames, of which it takes some tens a call; count those it has taken.

    If the interface is down, they are made invalid and counted: they would leave when it comes back.
    """
    state, counts = wires.state[row], wires.counts[row]
    publish(state[Column.TX_PRODUCER], np.uint32(state[Column.PUT]))
    _look(wires, row)
    while state[Column.SEEN] != state[Column.PUT]:
        before = state[Column.SEEN]
        done = sendto(state[Column.DESCRIPTOR], 0, 0, NO_WAIT, 0, 0)
        problem = 0 if done >= 0 else errno()
        _look(wires, row)
        if state[Column.SEEN] <= before and problem != INTERRUPTED:
            if problem not in (0, AGAIN, NO_BUFFERS, _BUSY):
                counts[Count.DOWN] += _frames(
                    state, state[Column.SEEN] + state[Column.VOID], state[Column.PUT]
                )
                _make_invalid(wires, row)
            return


@compiled
def _look(wires: Wires, row: int) -> None:
    """Count the frames that the kernel has taken from the ring of those that leave.

    It takes tens of chunks a call, and gives back those of a frame that the interface refuses.
    """
    state = wires.state[row]
    taken = (np.int64(acquire(state[Column.TX_CONSUMER])) - state[Column.SEEN]) & _WORD
    if taken > _WORD >> 1:
        taken -= _WORD + 1
        wires.counts[row, Count.SENT] -= _frames(state, state[Column.SEEN] + taken, state[Column.SEEN])
    skipped = max(0, min(taken, state[Column.VOID]))
    wires.counts[row, Count.SENT] += _frames(state, state[Column.SEEN] + skipped, state[Column.SEEN] + taken)
    state[Column.SEEN] += taken
    state[Column.VOID] -= skipped


@compiled
def _frames(state: NDArray[np.int64], first: int, end: int) -> int:
    """Return how many frames end in places `first` to `end` of the ring of those that leave."""
    count = 0
    for place in range(first, end):
        count += not load(state[Column.TX] + 16 * (place & _LAST), 3) & _MORE
    return count


@compiled
def _make_invalid(wires: Wires, row: int) -> None:
    """Take back the chunks of frames in the ring of those that leave."""
    state = wires.state[row]
    for place in range(state[Column.SEEN] + state[Column.VOID], state[Column.PUT]):
        entry = state[Column.TX] + 16 * (place & _LAST)
        wires.free[row, state[Column.FREE]] = load(entry, 0)
        state[Column.FREE] += 1
        save(entry, 0, np.uint32(_WORD))
        save(entry, 3, np.uint32(0))
    state[Column.VOID] = state[Column.PUT] - state[Column.SEEN]


@compiled
def _reap(wires: Wires, row: int) -> None:
    """Take back the chunks whose frames have left."""
    state = wires.state[row]
    done = (np.int64(acquire(state[Column.DONE_PRODUCER])) - state[Column.REAPED]) & _WORD
    _look(wires, row)  # before their places in the ring of those that leave are taken again
    for i in range(done):
        entry = state[Column.DONE] + 8 * ((state[Column.REAPED] + i) & _LAST)
        at = load(entry, 0)
        if at != _WORD:  # some kernels return what was made invalid, too
            wires.free[row, state[Column.FREE]] = at
            state[Column.FREE] += 1
    state[Column.REAPED] += done
    publish(state[Column.DONE_CONSUMER], np.uint32(state[Column.REAPED]))


@compiled
def _by_message(wires: Wires, row: int, data: NDArray[np.uint8], length: NDArray[np.int32],
                port: NDArray[np.int32]) -> None:  # fmt: skip
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
def send_messages(wires: Wires, row: int, count: int) -> None:
    """Send the first `count` messages from a port of AF_PACKET; drop and count those that it refuses."""
    at, counts, late = 0, wires.counts[row], True
    first = np.int64(wires.messages.ctypes.data)
    while at < count:
        sent = sendmmsg(wires.state[row, Column.DESCRIPTOR], first + 64 * at, count - at, NO_WAIT)
        problem = 0 if sent >= 0 else errno()
        if sent > 0:
            counts[Count.SENT] += sent
            at += sent
        elif problem == NO_BUFFERS:  # the queue was full for this frame; it may not be for the next
            counts[Count.FULL] += 1
            at += 1
        elif problem == _TOO_LONG:  # for this interface
            counts[Count.LONG] += 1
            at += 1
        elif problem == AGAIN:
            counts[Count.FULL] += count - at
            return
        elif problem != INTERRUPTED and late:  # it may be of earlier, when the interface was down
            late = False
        elif problem != INTERRUPTED:
            counts[Count.DOWN] += count - at
            return
