"""Runs a worker's endpoint and an aggregation server on their links, by the compiled loops."""

from __future__ import annotations

import time

import numpy as np

from peelsum.transport.endpoint import WorkerEndpoint
from peelsum.transport.events import Event
from peelsum.transport.exchange_kernels import exchange
from peelsum.transport.layout import Words
from peelsum.transport.link import PortLink
from peelsum.transport.server import AggregationServer
from peelsum.transport.service_kernels import serve
from peelsum.transport.wire_kernels import Unsent, Wire, new_wire

#: The longest that a loop runs in seconds, as Python handles signals in between.
_SLICE = 0.1


class Exchange:
    """A worker's endpoint on its link."""

    def __init__(self, endpoint: WorkerEndpoint, link: PortLink) -> None:
        self._endpoint, self._link = endpoint, link
        self._wire = new_wire(link.socket, endpoint.state.packets.shape[1])

    @property
    def odd(self) -> int:
        """Packets of another size that arrived; they were dropped."""
        return int(self._wire.odd[0])

    def run(self) -> list[Event]:
        """Send and receive until there are events, or for a while; return the events.

        Raises SwitchUnreachableError.
        """
        endpoint, link = self._endpoint, self._link
        now = time.monotonic()
        until = min(now + _SLICE, endpoint.next_report(), link.greet(now))
        problem = exchange(endpoint.state, endpoint.identity, endpoint.limits, self._wire, until)
        self._wire = _settled(self._wire, link, problem, endpoint.state.packets)
        now = time.monotonic()
        events = endpoint.collect(now)
        return events + endpoint.expire(now) if endpoint.next_report() <= now else events


class Serving:
    """An aggregation server on its link."""

    def __init__(self, server: AggregationServer, link: PortLink) -> None:
        self._server, self._link = server, link
        self._wire = new_wire(link.socket, server.state.packets.shape[1], link.waker)

    @property
    def odd(self) -> int:
        """Packets of another size that arrived; they were dropped."""
        return int(self._wire.odd[0])

    def run(self) -> tuple[list[Event], bool]:
        """Receive and send until there are events, or for a while; return them, and whether packets arrived.

        Raises SwitchUnreachableError.
        """
        server, link, heard_at = self._server, self._link, self._wire.heard_at[1]
        now = time.monotonic()
        until = min(now + _SLICE, link.greet(now))
        problem = serve(server.state, server.identity, server.config.window, server.waits, self._wire, until)
        heard = bool(self._wire.heard_at[1] > heard_at)
        self._wire = _settled(self._wire, link, problem, self._wire.scratch)
        now = time.monotonic()
        events = server.collect(now) if heard else []
        timer = server.next_timer()
        return events if timer is None or timer > now else events + server.expire(now), heard


def _settled(wire: Wire, link: PortLink, problem: int, own: Words) -> Wire:
    """Return the wire for the next loop, after one that ended with an error number or 0.

    What could not be sent is sent again, which may reduce the size of sends. Raises SwitchUnreachableError.
    """
    link.heard(float(wire.heard_at[0]))
    if not problem:
        return wire
    if not wire.unsent[Unsent.COUNT]:
        link.fail(problem)
    rows = wire.scratch if wire.unsent[Unsent.SCRATCH] else own
    first, count = wire.unsent[Unsent.FIRST], wire.unsent[Unsent.COUNT]
    taken = link.send(rows[first : first + count].view(np.uint8))
    wire.unsent[Unsent.FIRST] += taken
    wire.unsent[Unsent.COUNT] -= taken
    return wire._replace(segments=link.socket.segments)
