"""The egress queues of a switch's ports, as arithmetic: when each packet leaves, and which are dropped.

A queue is served at its port's rate. The functions run in plain Python and, as `native` compiles them, in
Numba. No packet is stored here: the caller keeps it until the time that `schedule_departure` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.layout import FULL
from peelsum.softswitch.errors import SoftswitchError

#: A tick is 2**-16 microseconds, so ticks of 64 bits wrap together with the pipeline's clock of 48 bits.
TICK_SHIFT = 16
#: Packets that may wait at a port by default.
QUEUE_LIMIT = 1024
#: Limits of a rate, in Mbit/s. Below the lower one, the time of a long packet would overflow.
LEAST_MBIT, MOST_MBIT = 0.01, 1_000_000.0

_PORTS = 512
_MOST_LIMIT = (1 << 19) - 1
_ZERO, _ONE = 0, 1
_HALF, _WHOLE = 1 << 63, (1 << 64) - 1
_RATE_SHIFT = 20
# Words of a queue: ticks per byte (times 2**20), its limit, when the last packet departs, the ring's head and
# depth, counts, when the last burst arrived and the depth that it met, and a ring of the waiting packets'
# departure times.
_TICKS_PER_BYTE, _LIMIT, _LAST_DEPARTURE, _HEAD, _DEPTH, _SENT, _DEPTH_SUM, _DROPPED, _MOST_DEPTH = range(9)
_BURST_TIME, _BURST_DEPTH, _RING = range(9, 12)


@dataclass(frozen=True)
class QueueCounts:
    """Counts of one queue since it was made."""

    sent: int
    """Packets that were queued."""
    dropped: int
    """Packets that were dropped because the queue was full."""
    mean: float
    """Mean depth of the queue, in packets, when a packet was queued."""
    deepest: int
    """Most packets in the queue at once."""


class Queues:
    """The queues of the ports that have a rate, which are in `ports`; other ports send at once.

    A packet departs when the packets before it and itself have been sent at the port's rate. Its length is
    the frame's, without preamble and check sequence.
    """

    def __init__(self, mbit: Mapping[int, float], limit: int = QUEUE_LIMIT) -> None:
        """mbit: rates in Mbit/s by port. limit: the most packets that may wait at each of these ports.

        Raises SoftswitchError, which names the value, for a value out of range.
        """
        if not 1 <= limit <= _MOST_LIMIT:
            raise SoftswitchError(f"port queue: {limit} packets are out of range; use 1 to {_MOST_LIMIT}")
        self.limit = limit
        self.ports = sorted(mbit)
        self.memory: NDArray[np.uint64] = np.zeros(_PORTS + len(mbit) * (_RING + limit), np.uint64)
        for number, (port, rate) in enumerate(mbit.items()):
            if not 0 <= port < _PORTS:
                raise SoftswitchError(f"port rate: port {port} is out of range; use 0 to {_PORTS - 1}")
            queue = _PORTS + number * (_RING + limit)
            self.memory[port] = queue
            self.memory[queue + _LIMIT] = limit
            self.set_rate(port, rate)

    def set_rate(self, port: int, mbit: float) -> None:
        """Change the rate of a port that has one, for packets that are queued from now on.

        Raises SoftswitchError for a rate out of range.
        """
        if not LEAST_MBIT <= mbit <= MOST_MBIT:
            raise SoftswitchError(
                f"port rate: {mbit:g} Mbit/s at port {port} is out of range; "
                f"use {LEAST_MBIT:g} to {MOST_MBIT:g}"
            )
        self.memory[int(self.memory[port]) + _TICKS_PER_BYTE] = round((8 << TICK_SHIFT + _RATE_SHIFT) / mbit)

    def counts(self) -> dict[int, QueueCounts]:
        """Return the counts of each queue, by port."""
        counts = {}
        for port in self.ports:
            words = self.memory[int(self.memory[port]) :]
            sent, depths, dropped, deepest = (
                int(words[at]) for at in (_SENT, _DEPTH_SUM, _DROPPED, _MOST_DEPTH)
            )
            counts[port] = QueueCounts(sent, dropped, depths / sent if sent else 0.0, deepest)
        return counts


def enqueue(queues: MutableSequence[int], port: int, now: int) -> int:
    """Return how many packets wait at the port; if the queue is full, count a drop and return FULL.

    A packet calls `enqueue` first and `schedule_departure` last. One that is dropped in between never calls
    `schedule_departure`, so it takes none of the port's time. `now` is the pipeline's clock.
    """
    queue = queues[port]
    if queue == _ZERO:
        return _ZERO
    ticks = (now << TICK_SHIFT) & _WHOLE
    first, count, limit = queues[queue + _HEAD], queues[queue + _DEPTH], queues[queue + _LIMIT]
    while count != _ZERO and ((ticks - queues[queue + _RING + first]) & _WHOLE) < _HALF:
        first = first + _ONE
        if first == limit:
            first = _ZERO
        count = count - _ONE
    queues[queue + _HEAD] = first
    queues[queue + _DEPTH] = count
    if queues[queue + _BURST_TIME] != ticks:
        queues[queue + _BURST_TIME] = ticks
        queues[queue + _BURST_DEPTH] = count
    if count == limit:
        queues[queue + _DROPPED] = queues[queue + _DROPPED] + _ONE
        return FULL
    return count


def burst_depth(queues: Sequence[int], port: int) -> int:
    """Return the depth of the port's queue before the current burst: the packets of the same instant.

    A port that keeps up has sent a burst before the next one arrives, so this is the standing queue. Call it
    after `enqueue`.
    """
    queue = queues[port]
    return queues[queue + _BURST_DEPTH] if queue != _ZERO else _ZERO


def waiting_time(queues: Sequence[int], port: int, now: int) -> int:
    """Return the microseconds until all packets that wait at the port have departed."""
    queue = queues[port]
    if queue == _ZERO or queues[queue + _DEPTH] == _ZERO:
        return _ZERO
    return ((queues[queue + _LAST_DEPARTURE] - (now << TICK_SHIFT)) & _WHOLE) >> TICK_SHIFT


def schedule_departure(queues: MutableSequence[int], port: int, now: int, length: int) -> int:
    """Queue a packet of `length` bytes and return the time, in ticks, at which its last bit leaves."""
    queue = queues[port]
    if queue == _ZERO:
        return _ZERO
    count = queues[queue + _DEPTH]
    start = queues[queue + _LAST_DEPARTURE] if count != _ZERO else now << TICK_SHIFT
    end = (start + ((length * queues[queue + _TICKS_PER_BYTE]) >> _RATE_SHIFT)) & _WHOLE
    queues[queue + _LAST_DEPARTURE] = end
    row = queues[queue + _HEAD] + count
    if row >= queues[queue + _LIMIT]:
        row = row - queues[queue + _LIMIT]
    queues[queue + _RING + row] = end
    queues[queue + _DEPTH] = count + _ONE
    queues[queue + _SENT] = queues[queue + _SENT] + _ONE
    queues[queue + _DEPTH_SUM] = queues[queue + _DEPTH_SUM] + count
    if count >= queues[queue + _MOST_DEPTH]:
        queues[queue + _MOST_DEPTH] = count + _ONE
    return end
