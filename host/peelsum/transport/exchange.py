"""Runs a worker's endpoints on their links, by the compiled loop."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from peelsum.transport.endpoint import WorkerEndpoint
from peelsum.transport.errors import in_plane
from peelsum.transport.events import Event
from peelsum.transport.exchange_kernels import Station, Unsent, Wire, exchange, new_wire
from peelsum.transport.layout import Words
from peelsum.transport.link import PortLink

#: The longest that a loop runs in seconds, as Python handles signals in between.
_SLICE = 0.1


class Exchange:
    """A worker's endpoints on their links, one for each plane."""

    def __init__(self, planes: Sequence[tuple[WorkerEndpoint, PortLink]]) -> None:
        self._planes = planes
        self._wires = [
            new_wire(link.socket, endpoint.state.packets.shape[1], secret=link.secret)
            for endpoint, link in planes
        ]
        self._polled = np.zeros(len(planes), np.int64)

    def odd(self, plane: int) -> int:
        """Return how many packets of another size arrived in a plane; they were dropped."""
        return int(self._wires[plane].odd[0])

    def run(self) -> list[tuple[int, Event]]:
        """Send and receive until there are events, or for a while; return the events, each with its plane.

        Raises SwitchUnreachableError.
        """
        began = time.monotonic()
        until = began + _SLICE
        for endpoint, link in self._planes:
            until = min(until, endpoint.next_report(), link.greet(began))
        pairs = zip(self._planes, self._wires, strict=True)
        stations = tuple(Station(endpoint.state, wire) for (endpoint, _), wire in pairs)
        problem, failed = exchange(stations, self._polled, until)
        for i, (endpoint, link) in enumerate(self._planes):
            failure = problem if i == failed else 0
            with in_plane(i, len(self._planes)):
                self._wires[i] = settled(self._wires[i], link, failure, endpoint.state.packets)
        now = time.monotonic()
        events: list[tuple[int, Event]] = []
        for i, (endpoint, _) in enumerate(self._planes):
            collected = endpoint.collect(now)
            events += [(i, event) for event in collected]
            # Not by `now`: while this thread waited for a processor, results may have come to the socket.
            if endpoint.next_report() <= began:
                events += [(i, event) for event in endpoint.expire(began)]
        return events


def settled(wire: Wire, link: PortLink, problem: int, sender_rows: Words) -> Wire:
    """Return the wire for the next loop, after one that ended with an error number or 0.

    Packets that could not be sent are sent again, which may reduce the size of sends. Raises
    SwitchUnreachableError.
    """
    link.heard(float(wire.heard_at[0]))
    if not problem:
        return wire
    if not wire.unsent[Unsent.COUNT]:
        link.fail(problem)
    rows = wire.scratch if wire.unsent[Unsent.SCRATCH] else sender_rows
    first, count = wire.unsent[Unsent.FIRST], wire.unsent[Unsent.COUNT]
    taken = link.send(rows[first : first + count].view(np.uint8))
    wire.unsent[Unsent.FIRST] += taken
    wire.unsent[Unsent.COUNT] -= taken
    return wire._replace(segments=link.socket.segments)
