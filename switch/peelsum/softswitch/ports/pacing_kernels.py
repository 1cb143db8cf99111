"""The compiled counterpart of `pacing.Pacer`: it keeps packets of UDP ports until they have left the queue.

Only ports with a rate keep packets, and no link has a delay. So rings need no more rows than the queue's
limit: the queue drops packets beyond it, and packets that are due are sent before more are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.softswitch.ports.pacing import PAUSE_US
from peelsum.softswitch.ports.udp_kernels import HELD, PORTS, SendBuffers, Sockets, UdpCount, row_of, send
from peelsum.softswitch.runtime.queues import TICK_SHIFT
from peelsum.wire import FRAME_HEADER_BYTES
from peelsum.wire.system_calls import memcpy

#: Result of `due_in` if no packet waits.
NEVER = 1 << 62


class Rings(NamedTuple):
    """A ring of packets for each port with a rate, oldest first."""

    data: NDArray[np.uint8]  # [rings, rows, most bytes of a packet]
    length: NDArray[np.int64]  # [rings, rows]: bytes of each packet
    due: NDArray[np.uint64]  # [rings, rows]: when each has left the port, in ticks
    first: NDArray[np.int64]  # [rings]
    stored: NDArray[np.int64]  # [rings]: packets
    sockets: NDArray[np.int64]  # [rings]: the row of each ring's port among the sockets
    by_port: NDArray[np.int32]  # [PORTS]: a switch port's ring, or -1
    paused_until: NDArray[np.int64]  # [1]: in microseconds


def new_rings(ports: Sequence[int], rows: int, packet_bytes: int, sockets: Sockets) -> Rings:
    """Return empty rings of `rows` packets for the switch ports `ports`."""
    by_port = np.full(PORTS, -1, np.int32)
    by_port[list(ports)] = np.arange(len(ports))
    return Rings(
        data=np.zeros((len(ports), rows, packet_bytes), np.uint8),
        length=np.zeros((len(ports), rows), np.int64),
        due=np.zeros((len(ports), rows), np.uint64),
        first=np.zeros(len(ports), np.int64),
        stored=np.zeros(len(ports), np.int64),
        sockets=sockets.rows[list(ports)].astype(np.int64),
        by_port=by_port,
        paused_until=np.zeros(1, np.int64),
    )


@compiled
def hold(
    rings: Rings,
    sockets: Sockets,
    data: NDArray[np.uint8],
    length: NDArray[np.int32],
    port: NDArray[np.int32],
    departure: NDArray[np.uint64],
) -> None:
    """Copy the packets of ports with a rate into their rings, and set the port of their frames to HELD."""
    rows = rings.due.shape[1]
    for frame in range(length.shape[0]):
        ring = rings.by_port[port[frame]] if 0 <= port[frame] < PORTS else -1
        if ring < 0 or row_of(sockets, data[frame], length[frame], port[frame]) < 0:
            continue
        port[frame] = HELD
        if rings.stored[ring] == rows:
            sockets.counts[rings.sockets[ring], UdpCount.FULL] += 1
            continue
        slot = (rings.first[ring] + rings.stored[ring]) % rows
        source = np.int64(data[frame].ctypes.data) + FRAME_HEADER_BYTES
        rings.length[ring, slot] = length[frame] - FRAME_HEADER_BYTES
        memcpy(rings.data[ring, slot].ctypes.data, source, rings.length[ring, slot])
        rings.due[ring, slot] = departure[frame]
        rings.stored[ring] += 1


@compiled
def may_overflow(rings: Rings, more: int) -> bool:
    """Return whether some ring that has packets might lack rows for `more` packets."""
    longest = 0
    for ring in range(rings.stored.shape[0]):
        longest = max(longest, rings.stored[ring])
    return longest > 0 and longest + more > rings.due.shape[1]


@compiled
def release(rings: Rings, sockets: Sockets, send_buffers: SendBuffers, now_us: int) -> int:
    """Send the packets that are due; return -1, or the row of a port that refuses segments."""
    rows, filled = rings.due.shape[1], 0
    now = np.uint64(now_us) << np.uint64(TICK_SHIFT)
    for row in range(send_buffers.end.shape[0]):
        send_buffers.next[row] = send_buffers.end[row] = 0
    for ring in range(rings.stored.shape[0]):
        row, start = rings.sockets[ring], filled
        while rings.stored[ring] and np.int64(now - rings.due[ring, rings.first[ring]]) >= 0:
            slot = rings.first[ring]
            send_buffers.iovecs[filled, 0] = np.int64(rings.data[ring, slot].ctypes.data)
            send_buffers.iovecs[filled, 1] = rings.length[ring, slot]
            filled += 1
            rings.first[ring] = slot + 1 if slot + 1 < rows else 0
            rings.stored[ring] -= 1
        send_buffers.next[row], send_buffers.end[row] = start, filled
    if not filled:
        return -1
    rings.paused_until[0] = now_us + PAUSE_US
    return send(sockets, send_buffers)


@compiled
def due_in(rings: Rings, now_us: int) -> int:
    """Return the microseconds until `release` should be called; NEVER while no packet waits."""
    now, wait_us = np.uint64(now_us) << np.uint64(TICK_SHIFT), NEVER
    for ring in range(rings.stored.shape[0]):
        if rings.stored[ring]:
            remaining = np.int64(rings.due[ring, rings.first[ring]] - now)
            wait_us = min(wait_us, (max(0, int(remaining)) + (1 << TICK_SHIFT) - 1) >> TICK_SHIFT)
    return max(wait_us, rings.paused_until[0] - now_us) if wait_us != NEVER else wait_us
