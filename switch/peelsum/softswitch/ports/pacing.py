"""Keeps frames until they have left their port's queue and their link's delay has passed.

`queues` computes when they leave the queue, and the ports send them. Time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.queues import TICK_SHIFT, Queues

#: Microseconds between two sends, so that there are fewer system calls with more frames each.
PAUSE_US = 200

#: Batches of up to as many bytes together are sent at once: below, their copy takes less time than a send.
_MOST_JOINED_BYTES = 1 << 17

#: v1model's ports have 9 bits.
_PORTS = 512

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
        self._is_unpaced = np.ones(_PORTS, np.bool_)
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
