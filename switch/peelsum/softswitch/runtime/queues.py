"""The queues before a switch's ports: how fast a port sends, how many packets may wait, and for how long.

Owns the arithmetic of a queue that is served at a constant rate, written once for plain Python and for Numba.
Refuses to know packets, sockets and clocks: whoever sends the packets holds them until the time found here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.layout import FULL
from peelsum.softswitch.errors import SoftswitchError

#: A tick is 2**-16 microseconds, so that ticks in 64 bits wrap together with the pipeline's clock of 48.
TICK_SHIFT = 16
#: Packets that may wait at a port, unless told otherwise.
QUEUE_LIMIT = 1024
#: What a rate may be, in Mbit/s: below, a long packet's time would not fit; above, nothing is known to be.
LEAST_MBIT, MOST_MBIT = 0.01, 1_000_000.0

_PORTS = 512
_MOST_LIMIT = (1 << 19) - 1
_WHOLE = (1 << 64) - 1
_COST_SHIFT = 20
# One queue's words: ticks a byte (times 2**20), most packets, when the last one will have left, then counts
# and a ring with the time at which each waiting packet will have left.
_COST, _LIMIT, _FREE_AT, _HEAD, _WAITING, _SENT, _FOUND, _DROPPED, _DEEPEST, _RING = range(10)


@dataclass(frozen=True)
class QueueCounts:
    """One queue since it was made.

    sent, dropped: packets that passed, and that found no room. mean: how many were there before a packet that
    passed, on average. deepest: most packets that were there at once.
    """

    sent: int
    dropped: int
    mean: float
    deepest: int

    @classmethod
    def of(cls, words: NDArray[np.uint64]) -> Self:
        """The counts in one queue's words."""
        sent, found, dropped, deepest = (int(words[at]) for at in (_SENT, _FOUND, _DROPPED, _DEEPEST))
        return cls(sent, dropped, found / sent if sent else 0.0, deepest)


class Queues:
    """A queue for each of `ports`, those that have a rate; others send whatever comes, at once.

    A packet waits for those before it, then for its own last bit: bits are those of the frame, without
    preamble and check sequence.
    """

    def __init__(self, mbit: Mapping[int, float], limit: int = QUEUE_LIMIT) -> None:
        """mbit: rates in Mbit/s by port. limit: packets that may wait at each of these ports.

        Raises SoftswitchError naming what is out of range.
        """
        if not 1 <= limit <= _MOST_LIMIT:
            raise SoftswitchError(f"port queue: {limit} packets are out of range; use 1 to {_MOST_LIMIT}")
        self.limit = limit
        self.ports = sorted(mbit)
        self.memory: NDArray[np.uint64] = np.zeros(_PORTS + len(mbit) * (_RING + limit), np.uint64)
        for number, (port, rate) in enumerate(mbit.items()):
            if not 0 <= port < _PORTS:
                raise SoftswitchError(f"port rate: port {port} is out of range; use 0 to {_PORTS - 1}")
            if not LEAST_MBIT <= rate <= MOST_MBIT:
                raise SoftswitchError(
                    f"port rate: {rate:g} Mbit/s at port {port} is out of range; "
                    f"use {LEAST_MBIT:g} to {MOST_MBIT:g}"
                )
            at = _PORTS + number * (_RING + limit)
            self.memory[port] = at
            self.memory[at + _COST] = round((8 << TICK_SHIFT + _COST_SHIFT) / rate)
            self.memory[at + _LIMIT] = limit

    def counts(self) -> dict[int, QueueCounts]:
        """What each queue did so far, by port."""
        return {port: QueueCounts.of(self.memory[int(self.memory[port]) :]) for port in self.ports}


def make_queueing(number: Callable[[int], Any]) -> tuple[Callable[..., Any], ...]:
    """(enqueue, waiting_time, leave) over the memory of `Queues`; `now` is the pipeline's clock.

    `number` makes the constants (see `lookups`). A packet is to call `enqueue` first, and `leave` last,
    unless it is dropped in between: then it takes none of the port's time.
    """
    zero, one, tick_shift, cost_shift = map(number, (0, 1, TICK_SHIFT, _COST_SHIFT))
    whole, half, full = map(number, (_WHOLE, 1 << 63, FULL))
    cost, most, free_at = map(number, (_COST, _LIMIT, _FREE_AT))
    head, waiting, dropped, deepest, ring = map(number, (_HEAD, _WAITING, _DROPPED, _DEEPEST, _RING))
    sent, found = map(number, (_SENT, _FOUND))

    def enqueue(queues: Any, port: Any, now: Any) -> Any:
        """How many packets wait at the port; FULL, and counted, if no more may."""
        at = queues[port]
        if at == zero:
            return zero
        time = (now << tick_shift) & whole
        first, count, limit = queues[at + head], queues[at + waiting], queues[at + most]
        while count != zero and ((time - queues[at + ring + first]) & whole) < half:
            first = first + one
            if first == limit:
                first = zero
            count = count - one
        queues[at + head] = first
        queues[at + waiting] = count
        if count == limit:
            queues[at + dropped] = queues[at + dropped] + one
            return full
        return count

    def waiting_time(queues: Any, port: Any, now: Any) -> Any:
        """Microseconds until the packets that wait at the port have left."""
        at = queues[port]
        if at == zero or queues[at + waiting] == zero:
            return zero
        return ((queues[at + free_at] - (now << tick_shift)) & whole) >> tick_shift

    def leave(queues: Any, port: Any, now: Any, length: Any) -> Any:
        """Have a packet of `length` bytes wait its turn; when it will have left the port, in ticks."""
        at = queues[port]
        if at == zero:
            return zero
        count = queues[at + waiting]
        start = queues[at + free_at] if count != zero else now << tick_shift
        end = (start + ((length * queues[at + cost]) >> cost_shift)) & whole
        queues[at + free_at] = end
        place = queues[at + head] + count
        if place >= queues[at + most]:
            place = place - queues[at + most]
        queues[at + ring + place] = end
        queues[at + waiting] = count + one
        queues[at + sent] = queues[at + sent] + one
        queues[at + found] = queues[at + found] + count
        if count >= queues[at + deepest]:
            queues[at + deepest] = count + one
        return end

    return enqueue, waiting_time, leave
