"""A worker's way to sum over a switch reached by UDP: the endpoint joined to a socket and to the clock.

No thread runs between two calls of `sum_words`, and none is needed. The server keeps this worker's results
for workers that lost them. Other workers wait for a later chunk only until this worker's next call of
`sum_words`; if the server loses its state meanwhile, they wait for that call, too.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

import numpy as np

from peelsum.summation import Part, Words
from peelsum.transport.config import JobConfig
from peelsum.transport.endpoint import WorkerEndpoint
from peelsum.transport.errors import StalledError, TransportError
from peelsum.transport.events import Event, Stalled, TensorCompleted, WorkerLeft
from peelsum.transport.link import Link, Wire
from peelsum.transport.stats import WorkerStats
from peelsum.transport.warming import warm_up
from peelsum.wire import packet_bytes
from peelsum.wire.datagrams import Address


class JoiningSum:
    """The first sum of a connection: each worker's random number, in a word of its own.

    A worker that gets another number back than it sent was answered from an earlier run of the generation,
    whose sums the server still keeps. Without this they would be taken for this run's.
    """

    def __init__(self, config: JobConfig, worker_id: int) -> None:
        self._config, self._mine = config, config.worker_ids.index(worker_id)
        self._number = secrets.randbelow((1 << 32) - 1) + 1
        self.words = np.zeros(config.workers, np.uint32)
        self.words[self._mine] = self._number

    def check(self, result: Words) -> None:
        """Raise TransportError unless the answer is to this run."""
        if result[self._mine] != self._number or not result.all():
            raise TransportError(
                f"job {self._config.job_id}: generation {self._config.generation} has run before; "
                "admit the job and start its server again, then all workers"
            )


class SwitchSummation:
    """Sums of worker `worker_id`, over the switch port at `switch`. For one thread; a context manager.

    `timeout_s`: how long nothing may move before `sum_words` gives up, in place of the job's `timers.stall`.
    `hello_s`: how long the switch may take to answer at first. `wire`: "udp-port" where the switch port is a
    UDP socket, "ethernet" where the switch is on this host's wire and takes what is sent to the address
    `switch`. `held`: closed when this worker leaves the job. Raises TransportConfigError, or
    SwitchUnreachableError when the switch does not answer.
    """

    def __init__(
        self,
        config: JobConfig,
        worker_id: int,
        switch: Address,
        *,
        timeout_s: float | None = None,
        hello_s: float = 10.0,
        wire: Wire = "udp-port",
        held: ExitStack | None = None,
    ) -> None:
        if timeout_s is not None:
            config = replace(config, timers=replace(config.timers, stall=timeout_s))
        self._endpoint = WorkerEndpoint(config, worker_id)
        self._broken = False
        self._closed = self._joined = False
        warm_up(config.lanes)
        self._link = Link(switch, packet_bytes(config.lanes), hello_s=hello_s, wire=wire)
        self._endpoint.limit_window(self._link.room)
        self._held = held or ExitStack()

    @property
    def lanes(self) -> int:
        """Words per chunk; each part is padded with zeros to whole chunks."""
        return self._endpoint.config.lanes

    @property
    def workers(self) -> int:
        """How many workers the job has."""
        return self._endpoint.config.workers

    @property
    def worker_id(self) -> int:
        """This worker's number among the job's `worker_ids`."""
        return self._endpoint.worker_id

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """The parts' results, each uint32 of its part's length, the caller's to keep.

        All workers call this with equal lengths and ops in the same order. Blocks until all results are
        there. Raises StalledError naming job, oldest chunk and missing workers; after an error the workers
        may be out of step, so that only `close` is left.
        """
        if self._broken or self._closed:
            state = "closed" if self._closed else "out of step after an earlier error"
            raise TransportError(f"sum: this connection is {state}; restart the job under a new generation")
        self._broken = True
        if not self._joined:
            joining = JoiningSum(self._endpoint.config, self.worker_id)
            (numbers,) = self._sum_parts([Part(joining.words, "add", joining.check)])
            self._endpoint.start_run(int(np.bitwise_xor.reduce(numbers)))
        results = self._sum_parts(parts)
        self._broken, self._joined = False, True
        return results

    def _sum_parts(self, parts: Sequence[Part]) -> list[Words]:
        tickets = [self._endpoint.submit(part.words, part.op) for part in parts]
        checks = {ticket: part.check for ticket, part in zip(tickets, parts, strict=True)}
        results: dict[int, Words] = {}
        while len(results) < len(tickets):
            for event in self._turn():
                if isinstance(event, Stalled):
                    raise StalledError(str(event))
                if isinstance(event, WorkerLeft):
                    raise TransportError(str(event))
                if isinstance(event, TensorCompleted):
                    results[event.ticket] = event.words
                    check = checks[event.ticket]
                    if check is not None:
                        check(event.words)
        return [results[ticket] for ticket in tickets]

    def stats(self) -> WorkerStats:
        """What was counted since the beginning."""
        return self._endpoint.stats()

    @property
    def overruns(self) -> int:
        """Packets the kernel dropped because this process did not take them in time."""
        return self._link.overruns

    def close(self) -> None:
        """Leave the job: wait, a bounded time, until every worker has every result; free the port."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._broken:
                self._endpoint.finish(time.monotonic())
                while not self._endpoint.finished:
                    self._turn()
        finally:
            self._link.close()
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._broken |= kind is not None
        self.close()

    def _turn(self) -> list[Event]:
        """Send what can be sent, wait for packets or the next timer, take in what came."""
        self._link.send_from(self._endpoint, time.monotonic())
        batch = self._link.receive()
        if batch is None:
            self._link.wait(self._endpoint.next_timer())
            batch = self._link.receive()
        now = time.monotonic()
        events = [] if batch is None else self._endpoint.receive(batch, now)
        timer = self._endpoint.next_timer()
        return events if timer is None or timer > now else events + self._endpoint.expire(now)
