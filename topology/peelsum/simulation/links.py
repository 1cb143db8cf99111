"""One direction of a link: a queue, a rate, a delay, random loss, ECN marks and cross traffic.

A packet that finds the queue full is dropped. The others leave one after the other at the link's rate. A lost
packet takes its time on the wire and arrives nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiler
from peelsum.simulation.trains import Times, Train, ps
from peelsum.wire import Flag

_compiled = compiler({})
_Flags = NDArray[np.bool_]
_FLAGS_BYTE, _CE = 2, int(Flag.CE)
#: Picoseconds that a byte takes at 1 Gbit/s.
_BYTE_PS = 8_000.0
#: Bytes of a packet of cross traffic: a full Ethernet frame.
CROSS_BYTES = 1514
#: A limit for ECN marks that no queue reaches.
NEVER_MARKED = 1 << 30


class State(IntEnum):
    """Indices of a link's numbers."""

    FREE_AT = 0
    HEAD = 1
    WAITING = 2
    OFFERED = 3
    QUEUE_FULL = 4
    LOST = 5
    DELIVERED = 6
    MARKED = 7
    DEEPEST = 8
    OCTETS = 9
    CROSS_AT = 10
    CROSS_DRAWN = 11
    RATE = 12


@dataclass(frozen=True)
class LinkSpec:
    """The properties of one direction of a link."""

    gbps: float
    """Rate in Gbit/s."""
    delay_s: float = 1e-6
    """Propagation delay in seconds."""
    queue: int = 1024
    """Packets that may wait for the link."""
    mark_from: int = NEVER_MARKED
    """Packets in the queue from which on the others are marked (ECN)."""
    loss: float = 0.0
    """Probability that a packet is lost on the way."""
    cross: float = 0.0
    """Share of the rate that cross traffic offers, as Poisson arrivals of full Ethernet frames."""
    changes: tuple[tuple[float, float], ...] = ()
    """Later rates: seconds from the start, and Gbit/s."""


@dataclass(frozen=True)
class LinkCounts:
    """Counts of the packets in one direction of a link, cross traffic excluded."""

    offered: int
    """Packets that came to the queue."""
    delivered: int
    """Packets that arrived, or are on the wire."""
    queue_full: int
    """Packets that found the queue full."""
    lost: int
    """Packets lost at random."""
    marked: int
    """Packets that the queue marked."""
    deepest: int
    """Most packets that waited at once."""
    octets: int
    """Bytes that left."""


class _Queue(NamedTuple):
    """A link's numbers, and what compiled loops need of its properties. Times are picoseconds."""

    numbers: Times  # [State]
    ring: Times  # [LinkSpec.queue]: when the last bit of each waiting packet leaves
    rate_at: Times  # [rates]: since when each rate is valid
    byte_ps: NDArray[np.float64]  # [rates]: how long a byte takes
    delay: int
    mark_from: int
    loss: float
    cross: float
    key: np.uint64  # of random numbers


class SimulatedLink:
    """One direction of a link, in virtual time.

    Equal seeds and numbers give equal losses, however packets are batched.
    """

    def __init__(self, spec: LinkSpec, seed: int, number: int) -> None:
        self.spec = spec
        steps = [(0.0, spec.gbps), *spec.changes]
        # Multiples of the seed would shift one sequence of draws, so that neighbouring seeds lose alike.
        key = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]
        self._queue = _Queue(
            numbers=np.zeros(len(State), np.int64),
            ring=np.zeros(spec.queue, np.int64),
            rate_at=np.array([ps(at) for at, _ in steps], np.int64),
            byte_ps=np.array([_BYTE_PS / gbps for _, gbps in steps]),
            delay=ps(spec.delay_s),
            mark_from=spec.mark_from,
            loss=float(spec.loss),
            cross=float(spec.cross),
            key=key,
        )
        if spec.cross:
            self._queue.numbers[State.CROSS_AT] = 1

    @property
    def lookahead(self) -> int:
        """Picoseconds that a packet takes at least."""
        return self._queue.delay + int(
            _BYTE_PS * 64 / max([self.spec.gbps, *(g for _, g in self.spec.changes)])
        )

    def send(self, train: Train) -> Train:
        """Return what arrives of a train, at its times of arrival. Marks are set in `train.data`."""
        arrive, (kept, marked) = np.empty(len(train), np.int64), np.empty((2, len(train)), np.bool_)
        _transmit(self._queue, train.times, train.sizes, arrive, kept, marked)
        if marked.any():
            train.data[marked, _FLAGS_BYTE] |= _CE
        if kept.all():
            return Train(arrive, train.sizes, train.data)
        return Train(arrive[kept], train.sizes[kept], train.data[kept])

    def waiting(self, now: int) -> int:
        """Return how many packets wait at a picosecond, not before the last train's."""
        numbers, ring = self._queue.numbers, self._queue.ring
        ends = ring[(numbers[State.HEAD] + np.arange(numbers[State.WAITING])) % len(ring)]
        return int(np.count_nonzero(ends > now))

    def counts(self) -> LinkCounts:
        """Return the counts since the start."""
        names = [field.name for field in fields(LinkCounts)]
        return LinkCounts(**{name: int(self._queue.numbers[State[name.upper()]]) for name in names})


def total(counts: Sequence[LinkCounts]) -> LinkCounts:
    """Add up the counts of links; `deepest` is the largest."""
    sums = {field.name: sum(getattr(link, field.name) for link in counts) for field in fields(LinkCounts)}
    return LinkCounts(**sums | {"deepest": max((link.deepest for link in counts), default=0)})


@_compiled
def uniform(key: np.uint64, number: int) -> float:
    """Return a number from 0 to below 1 that depends on key and number only (splitmix64)."""
    x = np.uint64(key) + np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return float(x >> np.uint64(11)) / 9007199254740992.0


@_compiled
def _leave(queue: _Queue, time: int, size: int) -> int:
    """Return when the last bit of a packet that came at `time` leaves, or -1 if the queue is full."""
    n, ring, rate_at = queue.numbers, queue.ring, queue.rate_at
    limit = ring.shape[0]
    while n[State.WAITING] and ring[n[State.HEAD]] <= time:
        n[State.HEAD] = (n[State.HEAD] + 1) % limit
        n[State.WAITING] -= 1
    if n[State.WAITING] == limit:
        return -1
    start = max(time, n[State.FREE_AT])
    while n[State.RATE] + 1 < rate_at.shape[0] and rate_at[n[State.RATE] + 1] <= start:
        n[State.RATE] += 1
    end = start + int(np.rint(size * queue.byte_ps[n[State.RATE]]))
    ring[(n[State.HEAD] + n[State.WAITING]) % limit] = end
    n[State.FREE_AT] = end
    n[State.WAITING] += 1
    return int(end)


@_compiled
def _cross_traffic(queue: _Queue, until: int) -> None:
    """Pass frames of cross traffic, with Poisson arrivals up to a picosecond, through the queue."""
    n = queue.numbers
    while n[State.CROSS_AT] <= until:
        if n[State.CROSS_DRAWN]:
            _leave(queue, n[State.CROSS_AT], CROSS_BYTES)
        n[State.CROSS_DRAWN] += 1
        gap = -np.log(1.0 - uniform(queue.key ^ np.uint64(0x5DEECE66D), n[State.CROSS_DRAWN]))
        n[State.CROSS_AT] += 1 + int(gap * CROSS_BYTES * queue.byte_ps[n[State.RATE]] / queue.cross)


@_compiled
def _transmit(
    queue: _Queue, times: Times, sizes: NDArray[np.int32], arrive: Times, kept: _Flags, marked: _Flags
) -> None:
    """Pass packets through the queue, each after the cross traffic before it."""
    n = queue.numbers
    for i in range(times.shape[0]):
        if queue.cross > 0:
            _cross_traffic(queue, times[i])
        n[State.OFFERED] += 1
        end = _leave(queue, times[i], sizes[i])
        kept[i], marked[i] = end >= 0, False
        if end < 0:
            n[State.QUEUE_FULL] += 1
            continue
        ahead = n[State.WAITING] - 1
        n[State.DEEPEST] = max(n[State.DEEPEST], n[State.WAITING])
        n[State.OCTETS] += sizes[i]
        if ahead >= queue.mark_from:
            marked[i] = True
            n[State.MARKED] += 1
        arrive[i] = end + queue.delay
        if queue.loss > 0 and uniform(queue.key, n[State.OFFERED]) < queue.loss:
            kept[i] = False
            n[State.LOST] += 1
        else:
            n[State.DELIVERED] += 1
