"""The queues before a switch's ports: how fast a port sends, how many packets may wait, and for how long.

A queue is served at its port's rate. Its arithmetic runs in plain Python and in Numba (see `native`). The
caller that sends a packet holds it until the departure time that `leave` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.layout import FULL
from peelsum.softswitch.errors import SoftswitchError

#: A tick is 2**-16 microseconds: ticks in 64 bits wrap together with the pipeline's clock of 48.
TICK_SHIFT = 16
#: Packets that may wait at a port by default.
QUEUE_LIMIT = 1024
#: Limits of a rate, in Mbit/s. Below the lower one, the time of a long packet would overflow.
LEAST_MBIT, MOST_MBIT = 0.01, 1_000_000.0

_PORTS = 512
_MOST_LIMIT = (1 << 19) - 1
_ZERO, _ONE = 0, 1
_HALF, _WHOLE = 1 << 63, (1 << 64) - 1
_COST_SHIFT = 20
# One queue's words: ticks per byte (times 2**20), packets that may wait, the last packet's departure time,
# counts, the last batch's time and how many packets it found, and a ring of the waiting packets' departure
# times.
_COST, _LIMIT, _FREE_AT, _HEAD, _WAITING, _SENT, _FOUND, _DROPPED, _DEEPEST = range(9)
_BATCH_AT, _STANDING, _RING = range(9, 12)


@dataclass(frozen=True)
class QueueCounts:
    """Counts of one queue since it was made."""

    sent: int
    """Packets that passed."""
    dropped: int
    """Packets that found the queue full."""
    mean: float
    """Mean number of packets that a passing packet found in the queue."""
    deepest: int
    """Most packets in the queue at once."""

    @classmethod
    def of(cls, words: NDArray[np.uint64]) -> Self:
        """Return the counts in one queue's words."""
        sent, found, dropped, deepest = (int(words[at]) for at in (_SENT, _FOUND, _DROPPED, _DEEPEST))
        return cls(sent, dropped, found / sent if sent else 0.0, deepest)


class Queues:
    """The queues of the ports that have a rate, in `ports`; other ports send at once.

    A packet waits until those before it and its own bits have been sent. Its bits are the frame's,
    without preamble and check sequence.
    """

    def __init__(self, mbit: Mapping[int, float], limit: int = QUEUE_LIMIT) -> None:
        """Set rates in Mbit/s by port, and how many packets may wait at each of these ports.

        Raises SoftswitchError naming the value that is out of range.
        """
        if not 1 <= limit <= _MOST_LIMIT:
            raise SoftswitchError(f"port queue: {limit} packets are out of range; use 1 to {_MOST_LIMIT}")
        self.limit = limit
        self.ports = sorted(mbit)
        self.memory: NDArray[np.uint64] = np.zeros(_PORTS + len(mbit) * (_RING + limit), np.uint64)
        for number, (port, rate) in enumerate(mbit.items()):
            if not 0 <= port < _PORTS:
                raise SoftswitchError(f"port rate: port {port} is out of range; use 0 to {_PORTS - 1}")
            at = _PORTS + number * (_RING + limit)
            self.memory[port] = at
            self.memory[at + _LIMIT] = limit
            self.set_rate(port, rate)

    def set_rate(self, port: int, mbit: float) -> None:
        """Set the rate of a port that has one, for packets that are queued from now on.

        Raises SoftswitchError for a rate out of range.
        """
        if not LEAST_MBIT <= mbit <= MOST_MBIT:
            raise SoftswitchError(
                f"port rate: {mbit:g} Mbit/s at port {port} is out of range; "
                f"use {LEAST_MBIT:g} to {MOST_MBIT:g}"
            )
        self.memory[int(self.memory[port]) + _COST] = round((8 << TICK_SHIFT + _COST_SHIFT) / mbit)

    def counts(self) -> dict[int, QueueCounts]:
        """Return the counts of each queue, by port."""
        return {port: QueueCounts.of(self.memory[int(self.memory[port]) :]) for port in self.ports}


def enqueue(queues: MutableSequence[int], port: int, now: int) -> int:
    """Return how many packets wait at the port; if the queue is full, count a drop and return FULL.

    A packet calls `enqueue` first and `leave` last. One that is dropped in between never calls `leave`, so it
    takes none of the port's time. `now` is the pipeline's clock.
    """
    at = queues[port]
    if at == _ZERO:
        return _ZERO
    time = (now << TICK_SHIFT) & _WHOLE
    first, count, limit = queues[at + _HEAD], queues[at + _WAITING], queues[at + _LIMIT]
    while count != _ZERO and ((time - queues[at + _RING + first]) & _WHOLE) < _HALF:
        first = first + _ONE
        if first == limit:
            first = _ZERO
        count = count - _ONE
    queues[at + _HEAD] = first
    queues[at + _WAITING] = count
    if queues[at + _BATCH_AT] != time:
        queues[at + _BATCH_AT] = time
        queues[at + _STANDING] = count
    if count == limit:
        queues[at + _DROPPED] = queues[at + _DROPPED] + _ONE
        return FULL
    return count


def standing(queues: Sequence[int], port: int) -> int:
    """Return how many packets waited at the port before the first one of this instant.

    Packets of one instant form a burst, which a port that keeps up sends before the next one. What they find
    is a queue that stands. Call it after `enqueue`.
    """
    at = queues[port]
    return queues[at + _STANDING] if at != _ZERO else _ZERO


def waiting_time(queues: Sequence[int], port: int, now: int) -> int:
    """Return the microseconds until the packets that wait at the port have left."""
    at = queues[port]
    if at == _ZERO or queues[at + _WAITING] == _ZERO:
        return _ZERO
    return ((queues[at + _FREE_AT] - (now << TICK_SHIFT)) & _WHOLE) >> TICK_SHIFT


def leave(queues: MutableSequence[int], port: int, now: int, length: int) -> int:
    """Queue a packet of `length` bytes and return the time, in ticks, at which its last bit leaves."""
    at = queues[port]
    if at == _ZERO:
        return _ZERO
    count = queues[at + _WAITING]
    start = queues[at + _FREE_AT] if count != _ZERO else now << TICK_SHIFT
    end = (start + ((length * queues[at + _COST]) >> _COST_SHIFT)) & _WHOLE
    queues[at + _FREE_AT] = end
    place = queues[at + _HEAD] + count
    if place >= queues[at + _LIMIT]:
        place = place - queues[at + _LIMIT]
    queues[at + _RING + place] = end
    queues[at + _WAITING] = count + _ONE
    queues[at + _SENT] = queues[at + _SENT] + _ONE
    queues[at + _FOUND] = queues[at + _FOUND] + count
    if count >= queues[at + _DEEPEST]:
        queues[at + _DEEPEST] = count + _ONE
    return end
