"""The aggregation server as a process: the server of one job on its socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Self

from peelsum.transport.config import JobConfig
from peelsum.transport.events import Event
from peelsum.transport.exchange import settled
from peelsum.transport.exchange_kernels import new_wire, serve
from peelsum.transport.link import PortLink, Wire
from peelsum.transport.server import AggregationServer
from peelsum.transport.stats import ServerStats
from peelsum.transport.warming import warm_up
from peelsum.wire import packet_bytes
from peelsum.wire.datagrams import Address

#: The longest that a loop runs in seconds, as Python handles signals in between.
_SLICE = 0.1


class AggregationService:
    """The aggregation server of a job behind the switch port at `switch`. A context manager.

    Raises SwitchUnreachableError if the switch does not answer within `hello_s` seconds. `wire` is as for
    `SwitchSummation`, `local_port` as for `PortLink`.
    """

    def __init__(
        self,
        config: JobConfig,
        switch: Address,
        *,
        hello_s: float = 10.0,
        wire: Wire = "udp-port",
        local_port: int = 0,
    ) -> None:
        self._server = AggregationServer(config)
        self._stopping = False
        #: The next generation and what to call when it has begun; None while there is none.
        self._next: tuple[JobConfig, Callable[[], None]] | None = None
        warm_up(config.lanes)
        self._link = PortLink(
            switch,
            packet_bytes(config.lanes),
            hello_s=hello_s,
            wire=wire,
            secret=config.secret,
            local_port=local_port,
        )
        self._woken, self._waker = socket.socketpair()
        words = self._server.state.packets.shape[1]
        self._wire = new_wire(self._link.socket, words, self._woken.fileno(), self._link.secret)

    def run(self, on_event: Callable[[Event], None] | None = None) -> ServerStats:
        """Serve until `stop`, or until the job has finished and no packet came for `linger` seconds.

        Calls `on_event` with stalls and with the end of the job. Raises SwitchUnreachableError.
        """
        report = on_event or (lambda event: None)
        linger = self._server.config.timers.linger
        quiet_since = time.monotonic()
        while not self._stopping:
            if self._next is not None:
                self._begin(*self._next)
            events, heard = self._turn()
            for event in events:
                report(event)
            now = time.monotonic()
            quiet_since = now if heard else quiet_since
            if now - quiet_since >= linger and self._server.finished:
                break
        return self.stats()

    def stop(self) -> None:
        """Make `run` return soon. Callable from any thread or signal handler."""
        self._stopping = True
        with suppress(OSError):
            self._waker.send(b"\0")

    def continue_in(self, config: JobConfig, begun: Callable[[], None]) -> None:
        """Make `run` serve another generation of the job, at the same port. Callable from any thread.

        begun: called when it does; what the server had of the earlier generation is forgotten then.
        """
        self._next = config, begun
        with suppress(OSError):
            self._waker.send(b"\0")

    @property
    def finished(self) -> bool:
        """Whether all workers have finished, so far as this server knows."""
        return self._server.finished

    def stats(self) -> ServerStats:
        """Return the counts since the start."""
        stats = self._server.stats()
        return replace(stats, dropped=stats.dropped | {"wrong_size": int(self._wire.odd[0])})

    def close(self) -> None:
        """Free the port."""
        for descriptor in (self._link, self._woken, self._waker):
            descriptor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, config: JobConfig, begun: Callable[[], None]) -> None:
        """Replace the server by one of another generation."""
        self._next = None
        self._woken.recv(1)
        self._server = AggregationServer(config)
        begun()

    def _turn(self) -> tuple[list[Event], bool]:
        """Receive and send until there are events, or for a while; return them, and whether packets came."""
        server, link, heard_at = self._server, self._link, self._wire.heard_at[1]
        began = time.monotonic()
        until = min(began + _SLICE, link.greet(began))
        problem = serve(server.state, self._wire, until)
        heard = bool(self._wire.heard_at[1] > heard_at)
        self._wire = settled(self._wire, link, problem, self._wire.scratch)
        events = server.collect() if heard else []
        timer = server.next_timer()
        # Not by a later time: while this thread waited for a processor, packets may have come to the socket.
        return events if timer is None or timer > began else events + server.expire(began), heard
