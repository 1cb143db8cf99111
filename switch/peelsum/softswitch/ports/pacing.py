"""Holds frames until their port may send them.

Departure times come from `queues`, and the ports send the frames. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.queues import TICK_SHIFT, Queues

#: Microseconds between sends, so that system calls are fewer and larger.
PAUSE_US = 200

#: v1model's ports have 9 bits.
_PORTS = 512

Send = Callable[[int, Frames], None]


class Pacer:
    """Holds frames of ports with queues, and passes them to `send(port, frames)` at their departure time.

    Theory of operation: the queues compute departure times, as if every port sent bit by bit. A port's frames
    lie in order in a ring with as many rows as frames may wait. Those that are due are sent together, about
    every `PAUSE_US`. So a port keeps its rate over milliseconds, and due frames are also sent whenever a new
    one needs a row.
    """

    def __init__(self, queues: Queues, send: Send) -> None:
        self._rings = {port: _Ring(port, queues.limit) for port in queues.ports}
        self._unqueued = np.ones(_PORTS, np.bool_)
        self._unqueued[queues.ports] = False
        self._send = send
        self._paused_until = 0

    def hold(self, frames: Frames, now_us: int) -> Frames:
        """Keep the frames of ports with queues, which left the pipeline at `now_us`; return the others."""
        for port, ring in self._rings.items():
            rows = np.flatnonzero(frames.port == port)
            if not rows.size:
                continue
            if ring.room < rows.size:
                self._release(ring, now_us)
            ring.append(frames, rows)
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
            self._send(ring.port, frames)
            gone = True
        return gone


class _Ring:
    """A ring buffer of one port's frames, oldest first."""

    def __init__(self, port: int, rows: int) -> None:
        self.port = port
        self.count = self._first = 0
        self._rows = rows
        self._data = np.zeros((rows, 0), np.uint8)
        self._length = np.zeros(rows, np.int32)
        self._port = np.full(rows, port, np.int32)
        self._leave = np.zeros(rows, np.uint64)

    @property
    def room(self) -> int:
        """The number of free rows."""
        return self._rows - self.count

    def append(self, frames: Frames, rows: NDArray[np.intp]) -> None:
        """Add the frames in `rows`, at most `room`."""
        assert frames.leave is not None
        width = frames.data.shape[1]
        if width > self._data.shape[1]:
            wider = np.zeros((self._rows, width), np.uint8)
            wider[:, : self._data.shape[1]] = self._data
            self._data = wider
        start = (self._first + self.count) % self._rows
        before_end = min(rows.size, self._rows - start)
        for part, at in ((rows[:before_end], start), (rows[before_end:], 0)):
            to = slice(at, at + part.size)
            if width == self._data.shape[1]:
                np.take(frames.data, part, 0, out=self._data[to], mode="clip")  # no copy in between
            else:
                self._data[to, :width] = frames.data[part]
            self._length[to] = frames.length[part]
            self._leave[to] = frames.leave[part]
        self.count += rows.size

    def take(self, now_us: int) -> Frames | None:
        """Remove and return the oldest frames that are due and lie in consecutive rows; None if none are.

        They are valid until the next `append`.
        """
        span = slice(self._first, min(self._first + self.count, self._rows))
        # Times wrap: one is past if it is less than half the clock's range behind.
        late = (np.uint64(_ticks(now_us)) - self._leave[span]).view(np.int64)
        gone = int(np.count_nonzero(late >= 0))
        if not gone:
            return None
        rows = slice(self._first, self._first + gone)
        self._first = (self._first + gone) % self._rows
        self.count -= gone
        return Frames(self._data[rows], self._length[rows], self._port[rows])

    def first_in(self, now_us: int) -> int:
        """Return the microseconds until the oldest frame is due, 0 if it is."""
        ahead = (int(self._leave[self._first]) - _ticks(now_us)) % (1 << 64)
        return -(-ahead >> TICK_SHIFT) if ahead < 1 << 63 else 0


def _ticks(now_us: int) -> int:
    return (now_us << TICK_SHIFT) % (1 << 64)
