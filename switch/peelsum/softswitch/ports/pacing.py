"""Holds frames until their port may send them and their link's delay has passed.

Departure times come from `queues`, and the ports send the frames. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, TICK_SHIFT, Queues

#: Microseconds between sends, for fewer and larger system calls.
PAUSE_US = 200

#: v1model's ports have 9 bits.
_PORTS = 512

Send = Callable[[Frames], None]


class Pacer:
    """Holds frames of ports with a queue or a delay, and passes a port's to `send` when due.

    Theory of operation: the queues compute departure times, as if every port sent bit by bit. A frame is due
    its port's delay after that. A port's frames lie in order in a ring with as many rows as frames may wait,
    and more if a delay needs them. Those that are due are sent together, about every `PAUSE_US`. So a port
    keeps its rate over milliseconds, and due frames are also sent whenever a new one needs a row.
    """

    def __init__(self, queues: Queues | None, send: Send, delays_us: Mapping[int, int] | None = None) -> None:
        """delays_us: microseconds by port."""
        queued = queues.ports if queues else []
        rows = queues.limit if queues else QUEUE_LIMIT
        self._rings = {port: _Ring(port, rows) for port in sorted({*queued, *(delays_us or {})})}
        self._queued = frozenset(queued)
        self._unqueued = np.ones(_PORTS, np.bool_)
        self._unqueued[list(self._rings)] = False
        for port, delay_us in (delays_us or {}).items():
            self.set_delay(port, delay_us)
        self._send = send
        self._paused_until = 0

    def set_delay(self, port: int, delay_us: int) -> None:
        """Delay the frames that a port sends from now on; none overtakes an earlier one."""
        self._rings[port].delay = delay_us << TICK_SHIFT

    def hold(self, frames: Frames, now_us: int) -> Frames:
        """Keep the frames of ports with a queue or delay, which left the pipeline at `now_us`.

        Return the others.
        """
        for port, ring in self._rings.items():
            rows = np.flatnonzero(frames.port == port)
            if not rows.size:
                continue
            if ring.room < rows.size:
                self._release(ring, now_us)
            leave = frames.leave[rows] if port in self._queued and frames.leave is not None else None
            ring.append(frames, rows, leave, now_us)
        return frames.at(self._unqueued[frames.port])

    def release(self, now_us: int) -> None:
        """Send the frames that are due, unless frames were sent within `PAUSE_US`."""
        if now_us < self._paused_until:
            return
        for ring in self._rings.values():
            if self._release(ring, now_us):
                self._paused_until = now_us + PAUSE_US

    def due_in(self, now_us: int) -> float | None:
        """Return the seconds until `release` has frames to send; None while none wait."""
        waits = [ring.first_in(now_us) for ring in self._rings.values() if ring.count]
        return max(min(waits), self._paused_until - now_us, 0) / 1e6 if waits else None

    def _release(self, ring: _Ring, now_us: int) -> bool:
        """Send a ring's frames that are due; return whether there were any."""
        gone = False
        while (frames := ring.take(now_us)) is not None:
            self._send(frames)
            gone = True
        return gone


class _Ring:
    """A ring buffer of one port's frames, oldest first. `delay`: ticks between departure and arrival."""

    def __init__(self, port: int, rows: int) -> None:
        self.port = port
        self.count = self._first = 0
        self._rows = rows
        self._data = np.zeros((rows, 0), np.uint8)
        self._length = np.zeros(rows, np.int32)
        self._port = np.full(rows, port, np.int32)
        self._due = np.zeros(rows, np.uint64)
        self.delay = 0

    @property
    def room(self) -> int:
        """The number of free rows."""
        return self._rows - self.count

    def append(
        self, frames: Frames, rows: NDArray[np.intp], leave: NDArray[np.uint64] | None, now_us: int
    ) -> None:
        """Add the frames in `rows`, which leave at `leave` ticks (None: now). Make room for them."""
        due = self._due_times(rows.size, leave, np.uint64(_ticks(now_us)))
        if self.room < rows.size:
            self._grow(self.count + rows.size)
        width = frames.data.shape[1]
        if width > self._data.shape[1]:
            wider = np.zeros((self._rows, width), np.uint8)
            wider[:, : self._data.shape[1]] = self._data
            self._data = wider
        start = (self._first + self.count) % self._rows
        before_end, at_row = min(rows.size, self._rows - start), 0
        for part, at in ((rows[:before_end], start), (rows[before_end:], 0)):
            to = slice(at, at + part.size)
            if width == self._data.shape[1]:
                np.take(frames.data, part, 0, out=self._data[to], mode="clip")  # no copy in between
            else:
                self._data[to, :width] = frames.data[part]
            self._length[to] = frames.length[part]
            self._due[to] = due[at_row : at_row + part.size]
            at_row += part.size
        self.count += rows.size

    def _due_times(self, count: int, leave: NDArray[np.uint64] | None, now: np.uint64) -> NDArray[np.uint64]:
        """Return when frames are due, uint64[count]: never before the frame ahead of them."""
        # Times wrap: compare them as signed differences from now.
        ahead = np.zeros(count, np.int64) if leave is None else (leave - now).view(np.int64)
        ahead = ahead + self.delay
        if self.count:
            last = (self._first + self.count - 1) % self._rows
            ahead[:1] = np.maximum(ahead[:1], (self._due[last : last + 1] - now).view(np.int64))
        return np.maximum.accumulate(ahead).view(np.uint64) + now

    def _grow(self, rows: int) -> None:
        """Make at least `rows` rows, and put the frames at the first ones."""
        order = (self._first + np.arange(self._rows)) % self._rows
        more = max(rows, 2 * self._rows) - self._rows
        self._data = np.concatenate([self._data[order], np.zeros((more, self._data.shape[1]), np.uint8)])
        self._length = np.concatenate([self._length[order], np.zeros(more, np.int32)])
        self._due = np.concatenate([self._due[order], np.zeros(more, np.uint64)])
        self._port = np.full(self._rows + more, self.port, np.int32)
        self._first, self._rows = 0, self._rows + more

    def take(self, now_us: int) -> Frames | None:
        """Remove and return the oldest frames that are due and lie in consecutive rows; None if none are.

        They are valid until the next `append`.
        """
        span = slice(self._first, min(self._first + self.count, self._rows))
        # Times wrap: one is past if it is less than half the clock's range behind.
        late = (np.uint64(_ticks(now_us)) - self._due[span]).view(np.int64)
        gone = int(np.count_nonzero(late >= 0))
        if not gone:
            return None
        rows = slice(self._first, self._first + gone)
        self._first = (self._first + gone) % self._rows
        self.count -= gone
        return Frames(self._data[rows], self._length[rows], self._port[rows])

    def first_in(self, now_us: int) -> int:
        """Return the microseconds until the oldest frame is due, 0 if it is."""
        ahead = (int(self._due[self._first]) - _ticks(now_us)) % (1 << 64)
        return -(-ahead >> TICK_SHIFT) if ahead < 1 << 63 else 0


def _ticks(now_us: int) -> int:
    return (now_us << TICK_SHIFT) % (1 << 64)
