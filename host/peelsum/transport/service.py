"""The aggregation server as a process: the servers of one or more jobs on one socket."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

import numpy as np

from peelsum.transport.config import JobConfig
from peelsum.transport.errors import TransportConfigError
from peelsum.transport.events import Event
from peelsum.transport.exchange import Serving
from peelsum.transport.link import PortLink, Wire
from peelsum.transport.server import AggregationServer
from peelsum.transport.stats import Progress, ServerStats
from peelsum.transport.warming import warm_up
from peelsum.wire import Batch, fields_of, packet_bytes
from peelsum.wire.datagrams import Address


class AggregationService:
    """The aggregation servers behind one switch port, at `switch`. A context manager.

    Raises TransportConfigError if the jobs cannot share a port, and SwitchUnreachableError if the switch does
    not answer within `hello_s` seconds. `wire` is as for `SwitchSummation`.
    """

    def __init__(
        self, configs: Sequence[JobConfig], switch: Address, *, hello_s: float = 10.0, wire: Wire = "udp-port"
    ) -> None:
        if len({config.job_id for config in configs}) != len(configs) or not configs:
            raise TransportConfigError("job_id: give at least one job, and each only once")
        lanes = {config.lanes for config in configs}
        if len(lanes) != 1:
            raise TransportConfigError(f"lanes: {sorted(lanes)} given; all jobs of a switch have its lanes")
        (self._lanes,) = lanes
        self._servers = {config.job_id: AggregationServer(config) for config in configs}
        self._linger = max(config.timers.linger for config in configs)
        self._stopping = False
        warm_up(self._lanes)
        self._link = PortLink(switch, packet_bytes(self._lanes), hello_s=hello_s, wire=wire)
        servers = list(self._servers.values())
        self._serving = Serving(servers[0], self._link) if len(servers) == 1 else None

    def run(self, on_event: Callable[[Event], None] | None = None) -> dict[int, ServerStats]:
        """Serve until `stop`, or until all jobs have finished and no packet came for `linger` seconds.

        Calls `on_event` with stalls and finished jobs. Returns the statistics by job id.
        """
        report = on_event or (lambda event: None)
        quiet_since = time.monotonic()
        while not self._stopping:
            events, heard = self._turn(quiet_since)
            for event in events:
                report(event)
            now = time.monotonic()
            quiet_since = now if heard else quiet_since
            if now - quiet_since >= self._linger and all(one.finished for one in self._servers.values()):
                break
        return self.stats()

    def stop(self) -> None:
        """Make `run` return soon. Callable from any thread or signal handler."""
        self._stopping = True
        self._link.wake()

    def stats(self) -> dict[int, ServerStats]:
        """Return the statistics by job id. Jobs of one port share what it counts: packets of a wrong size."""
        odd = self._link.socket.odd if self._serving is None else self._serving.odd
        counted = {job_id: server.stats() for job_id, server in self._servers.items()}
        return {
            job_id: replace(stats, dropped=stats.dropped | {"wrong_size": odd})
            for job_id, stats in counted.items()
        }

    def progress(self) -> dict[int, Progress]:
        """Return each job's progress by job id."""
        now = time.monotonic()
        return {job_id: server.progress(now) for job_id, server in self._servers.items()}

    def close(self) -> None:
        """Free the port."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _turn(self, quiet_since: float) -> tuple[list[Event], bool]:
        """Send, wait and receive; return the events and whether any packet arrived."""
        if self._serving is not None:
            self._link.clear_wakes()
            return ([], False) if self._stopping else self._serving.run()
        for server in self._servers.values():
            self._link.send_from(server, time.monotonic())
        now, batch = time.monotonic(), self._link.receive()
        if batch is None:
            self._link.wait(self._next_timer(quiet_since))
            now, batch = time.monotonic(), self._link.receive()
        events = [] if batch is None else self._receive(batch, now)
        for server in self._servers.values():
            timer = server.next_timer()
            if timer is not None and timer <= now:
                events += server.expire(now)
        return events, batch is not None

    def _receive(self, batch: Batch, now: float) -> list[Event]:
        if len(self._servers) == 1:
            (server,) = self._servers.values()
            return server.receive(batch, now)
        events: list[Event] = []
        job_ids = fields_of(batch, self._lanes)["job_id"]
        for job_id, server in self._servers.items():
            mine = job_ids == job_id
            if mine.any():
                events += server.receive(np.ascontiguousarray(batch[mine]), now)
        return events

    def _next_timer(self, quiet_since: float) -> float | None:
        timers = [timer for one in self._servers.values() if (timer := one.next_timer()) is not None]
        if all(one.finished for one in self._servers.values()):
            timers.append(quiet_since + self._linger)
        return min(timers, default=None)


def serve(configs: Sequence[JobConfig], switch: Address) -> dict[int, ServerStats]:
    """Serve the jobs until they have finished, or until SIGINT or SIGTERM. Return statistics by job id.

    Raises the errors of `AggregationService`.
    """
    with AggregationService(configs, switch) as service, _stopped_by_signals(service.stop):
        return service.run()


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Make SIGINT and SIGTERM call `stop`. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
