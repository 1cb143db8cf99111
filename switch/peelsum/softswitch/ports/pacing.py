"""Keeps frames until they have left their port's queue and their link's delay has passed.

`queues` computes when they leave the queue, and the ports send them. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, TICK_SHIFT, Queues

#: Microseconds between two sends, so that there are fewer system calls with more frames each.
PAUSE_US = 200

#: v1model's ports have 9 bits.
_PORTS = 512

Send = Callable[[Frames], None]


class Pacer:
    """Keeps the frames of ports with a queue or a delay, and passes them to `send` when they are due.

    Theory of operation: the queues compute departure times, as if every port sent bit by bit. A frame is due
    when its port's delay has passed after its departure. A port's frames wait in order in a ring, which has a
    row for each frame that the queue may hold, and grows if a delay needs more. Frames that are due are sent
    together, about every `PAUSE_US`, so a port has the right rate over milliseconds. They are also sent when
    a new frame needs a row.
    """

    def __init__(self, queues: Queues | None, send: Send, delays_us: Mapping[int, int] | None = None) -> None:
        """delays_us: microseconds by port."""
        queued = queues.ports if queues else []
        rows = queues.limit if queues else QUEUE_LIMIT
        self._rings = {port: _Ring(port, rows) for port in sorted({*queued, *(delays_us or {})})}
        self._queued = frozenset(queued)
        self._is_unpaced = np.ones(_PORTS, np.bool_)
        self._is_unpaced[list(self._rings)] = False
        for port, delay_us in (delays_us or {}).items():
            self.set_delay(port, delay_us)
        self._send = send
        self._paused_until = 0

    def set_delay(self, port: int, delay_us: int) -> None:
        """Set the delay of frames that a port sends from now on. Frames are never reordered."""
        self._rings[port].delay = delay_us << TICK_SHIFT

    def hold(self, frames: Frames, now_us: int) -> Frames:
        """Keep those of `frames` whose port has a queue or a delay; return the others.

        now_us: when they left the pipeline.
        """
        if not self._rings:
            return frames
        for port, ring in self._rings.items():
            rows = np.flatnonzero(frames.port == port)
            if not rows.size:
                continue
            if ring.free_rows < rows.size:
                self._send_due(ring, now_us)
            departures = frames.leave[rows] if port in self._queued and frames.leave is not None else None
            ring.append(frames, rows, departures, now_us)
        return frames.at(self._is_unpaced[frames.port])

    def release(self, now_us: int) -> None:
        """Send the frames that are due, unless frames were sent within `PAUSE_US`."""
        if now_us < self._paused_until:
            return
        for ring in self._rings.values():
            if self._send_due(ring, now_us):
                self._paused_until = now_us + PAUSE_US

    def due_in(self, now_us: int) -> float | None:
        """Return the seconds until `release` has frames to send; None while none wait."""
        waits = [ring.next_due_us(now_us) for ring in self._rings.values() if ring.count]
        return max(min(waits), self._paused_until - now_us, 0) / 1e6 if waits else None

    def _send_due(self, ring: _Ring, now_us: int) -> bool:
        """Send a ring's frames that are due; return whether there were any."""
        sent_any = False
        while (frames := ring.take_due(now_us)) is not None:
            self._send(frames)
            sent_any = True
        return sent_any


class _Ring:
    """A ring buffer of one port's frames, oldest first. `delay`: ticks between departure and due time."""

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
    def free_rows(self) -> int:
        """The number of free rows."""
        return self._rows - self.count

    def append(
        self, frames: Frames, rows: NDArray[np.intp], departures: NDArray[np.uint64] | None, now_us: int
    ) -> None:
        """Add the frames in `rows`, which leave at `departures` ticks (None: now). Make room for them."""
        # Times wrap: compare them as signed differences from now. No frame is due before the one ahead of it.
        now, count = np.uint64(_ticks(now_us)), rows.size
        delays = np.zeros(count, np.int64) if departures is None else (departures - now).view(np.int64)
        delays = delays + self.delay
        if self.count:
            last = (self._first + self.count - 1) % self._rows
            delays[:1] = np.maximum(delays[:1], (self._due[last : last + 1] - now).view(np.int64))
        due = np.maximum.accumulate(delays).view(np.uint64) + now
        if self.free_rows < rows.size:
            self._grow(self.count + rows.size)
        width = frames.data.shape[1]
        if width > self._data.shape[1]:
            wider = np.zeros((self._rows, width), np.uint8)
            wider[:, : self._data.shape[1]] = self._data
            self._data = wider
        start = (self._first + self.count) % self._rows
        first_part, source_start = min(rows.size, self._rows - start), 0
        for source_rows, start_row in ((rows[:first_part], start), (rows[first_part:], 0)):
            target = slice(start_row, start_row + source_rows.size)
            if width == self._data.shape[1]:
                # With `clip` there is no copy in between.
                np.take(frames.data, source_rows, 0, out=self._data[target], mode="clip")
            else:
                self._data[target, :width] = frames.data[source_rows]
            self._length[target] = frames.length[source_rows]
            self._due[target] = due[source_start : source_start + source_rows.size]
            source_start += source_rows.size
        self.count += rows.size

    def _grow(self, rows: int) -> None:
        """Make at least `rows` rows, and put the frames at the first ones."""
        order = (self._first + np.arange(self._rows)) % self._rows
        new_rows = max(rows, 2 * self._rows) - self._rows
        self._data = np.concatenate([self._data[order], np.zeros((new_rows, self._data.shape[1]), np.uint8)])
        self._length = np.concatenate([self._length[order], np.zeros(new_rows, np.int32)])
        self._due = np.concatenate([self._due[order], np.zeros(new_rows, np.uint64)])
        self._port = np.full(self._rows + new_rows, self.port, np.int32)
        self._first, self._rows = 0, self._rows + new_rows

    def take_due(self, now_us: int) -> Frames | None:
        """Remove and return the oldest frames that are due and lie in consecutive rows; None if none are.

        They are valid until the next `append`.
        """
        stored = slice(self._first, min(self._first + self.count, self._rows))
        # Times wrap: one is past if it is less than half the clock's range behind.
        overdue = (np.uint64(_ticks(now_us)) - self._due[stored]).view(np.int64)
        due_count = int(np.count_nonzero(overdue >= 0))
        if not due_count:
            return None
        rows = slice(self._first, self._first + due_count)
        self._first = (self._first + due_count) % self._rows
        self.count -= due_count
        return Frames(self._data[rows], self._length[rows], self._port[rows])

    def next_due_us(self, now_us: int) -> int:
        """Return the microseconds until the oldest frame is due, 0 if it is."""
        remaining = (int(self._due[self._first]) - _ticks(now_us)) % (1 << 64)
        return -(-remaining >> TICK_SHIFT) if remaining < 1 << 63 else 0


def _ticks(now_us: int) -> int:
    return (now_us << TICK_SHIFT) % (1 << 64)
