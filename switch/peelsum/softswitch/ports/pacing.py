"""Keeps frames until they have left their port's queue and their link's delay has passed.

`queues` computes when they leave the queue, and the ports send them. Time is an argument. `Rings` are the
counterpart of `Pacer` in the compiled loop over UDP ports. There only ports with a rate keep packets, and no
link has a delay. So rings need no more rows than the queue's limit: the queue drops packets beyond it, and
packets that are due are sent before more are added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.softswitch.ports.udp_kernels import HELD, PORTS, SendBuffers, Sockets, UdpCount, row_of, send
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.queues import TICK_SHIFT, Queues
from peelsum.wire import FRAME_HEADER_BYTES
from peelsum.wire.system_calls import memcpy

#: Microseconds between two sends, so that there are fewer system calls with more frames each.
PAUSE_US = 200

#: Batches of up to as many bytes together are sent at once: below, their copy takes less time than a send.
_MOST_JOINED_BYTES = 1 << 17

Send = Callable[[Frames], None]


class Pacer:
    """Keeps the frames of ports with a queue or a delay, and passes them to `send` when they are due.

    Theory of operation: the queues compute departure times, as if every port sent bit by bit. A frame is due
    when its port's delay has passed after its departure. Frames that are due are sent together, about every
    `PAUSE_US`, so a port has the right rate over milliseconds.
    """

    def __init__(self, queues: Queues | None, send: Send, delays_us: Mapping[int, int] | None = None) -> None:
        """delays_us: microseconds by port."""
        self._queued = frozenset(queues.ports if queues else ())
        self._lines = {port: _Line() for port in sorted({*self._queued, *(delays_us or {})})}
        self._is_unpaced = np.ones(PORTS, np.bool_)
        self._is_unpaced[list(self._lines)] = False
        for port, delay_us in (delays_us or {}).items():
            self.set_delay(port, delay_us)
        self._send = send
        self._paused_until = 0

    def set_delay(self, port: int, delay_us: int) -> None:
        """Set the delay of frames that a port sends from now on. Frames are never reordered."""
        self._lines[port].delay = delay_us << TICK_SHIFT

    def hold(self, frames: Frames, now_us: int) -> Frames:
        """Keep those of `frames` whose port has a queue or a delay; return the others.

        now_us: when they left the pipeline.
        """
        if not self._lines:
            return frames
        for port, line in self._lines.items():
            rows = np.flatnonzero(frames.port == port)
            if rows.size:
                kept = frames.at(rows)
                line.append(kept, kept.leave if port in self._queued else None, now_us)
        return frames.at(self._is_unpaced[frames.port])

    def release(self, now_us: int) -> None:
        """Send the frames that are due, unless frames were sent within `PAUSE_US`."""
        if now_us < self._paused_until:
            return
        for line in self._lines.values():
            batches = line.take_due(now_us)
            if sum(frames.data.nbytes for frames in batches) <= _MOST_JOINED_BYTES:
                batches = Frames.joined(batches)
            for frames in batches:
                self._send(frames)
                self._paused_until = now_us + PAUSE_US

    def due_in(self, now_us: int) -> float | None:
        """Return the seconds until `release` has frames to send; None while none wait."""
        waits = [wait for line in self._lines.values() if (wait := line.next_due_us(now_us)) is not None]
        return max(min(waits), self._paused_until - now_us, 0) / 1e6 if waits else None


class _Line:
    """The frames of one port that wait, oldest first, in the batches in which they came."""

    def __init__(self) -> None:
        #: Ticks between the departure of a frame and the time when it is due.
        self.delay = 0
        self._batches: deque[tuple[NDArray[np.uint64], Frames]] = deque()

    def append(self, frames: Frames, departures: NDArray[np.uint64] | None, now_us: int) -> None:
        """Add frames, which leave at `departures` ticks (None: now)."""
        # Times wrap: compare them as signed differences from now. No frame is due before the one ahead of it.
        now = np.uint64(_ticks(now_us))
        delays = np.zeros(len(frames), np.int64) if departures is None else (departures - now).view(np.int64)
        delays = delays + self.delay
        if self._batches:
            last_due = self._batches[-1][0][-1:]
            delays[:1] = np.maximum(delays[:1], (last_due - now).view(np.int64))
        due = np.maximum.accumulate(delays).view(np.uint64) + now
        self._batches.append((due, frames))

    def take_due(self, now_us: int) -> list[Frames]:
        """Remove and return the frames that are due."""
        now, taken = np.uint64(_ticks(now_us)), list[Frames]()
        while self._batches:
            due, frames = self._batches[0]
            # Times wrap: one is past if it is less than half the clock's range behind.
            due_count = int(np.count_nonzero((now - due).view(np.int64) >= 0))
            if due_count:
                taken.append(frames.at(slice(due_count)))
            if due_count < len(frames):
                self._batches[0] = due[due_count:], frames.at(slice(due_count, None))
                break
            self._batches.popleft()
        return taken

    def next_due_us(self, now_us: int) -> int | None:
        """Return the microseconds until the oldest frame is due, 0 if it is; None while none waits."""
        if not self._batches:
            return None
        remaining = (int(self._batches[0][0][0]) - _ticks(now_us)) % (1 << 64)
        return -(-remaining >> TICK_SHIFT) if remaining < 1 << 63 else 0


def _ticks(now_us: int) -> int:
    return (now_us << TICK_SHIFT) % (1 << 64)


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
