"""The switch as a backend: a worker's endpoint connected to a UDP socket and to the clock.

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
from peelsum.transport.events import Stalled, TensorCompleted, WorkerLeft
from peelsum.transport.exchange import Exchange
from peelsum.transport.link import PortLink, Wire
from peelsum.transport.stats import WorkerStats
from peelsum.transport.warming import warm_up
from peelsum.wire import packet_bytes
from peelsum.wire.datagrams import Address


class JoiningSum:
    """The first sum of a connection: one word per worker, in which it sends a random number.

    A worker that gets another number back was answered from an earlier run of the generation, whose sums the
    server still keeps. Without this sum, the worker would take them for this run's.
    """

    def __init__(self, config: JobConfig, worker_id: int) -> None:
        self._config, self._mine = config, config.worker_ids.index(worker_id)
        self._number = secrets.randbelow((1 << 32) - 1) + 1
        self.words = np.zeros(config.workers, np.uint32)
        self.words[self._mine] = self._number

    def check(self, result: Words) -> None:
        """Raise TransportError if `result` is from an earlier run."""
        if result[self._mine] != self._number or not result.all():
            raise TransportError(
                f"job {self._config.job_id}: generation {self._config.generation} has run before; "
                "admit the job and start its server again, then all workers"
            )


class SwitchSummation:
    """The backend of one worker, over the switch port at `switch`. For one thread; a context manager.

    - `timeout_s`: seconds without progress after which `sum_words` raises; by default the job's
      `timers.stall`.
    - `hello_s`: seconds to wait for the switch's first answer.
    - `wire`: "udp-port" if the switch port is a UDP socket; "ethernet" if the switch is on this host's wire
      and takes packets sent to the address `switch`.
    - `held`: closed when this worker leaves the job.

    Raises TransportConfigError, or SwitchUnreachableError if the switch does not answer.
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
        self._link = PortLink(switch, packet_bytes(config.lanes), hello_s=hello_s, wire=wire)
        self._endpoint.limit_window(self._link.room)
        self._exchange = Exchange(self._endpoint, self._link)
        self._held = held or ExitStack()

    @property
    def config(self) -> JobConfig:
        """The job."""
        return self._endpoint.config

    @property
    def lanes(self) -> int:
        """Words per chunk; each part is padded with zeros to whole chunks."""
        return self._endpoint.config.lanes

    @property
    def workers(self) -> int:
        """Number of workers in the job."""
        return self._endpoint.config.workers

    @property
    def worker_id(self) -> int:
        """This worker's place among the job's `worker_ids`, from 0, in racks, too."""
        return self._endpoint.config.worker_ids.index(self._endpoint.worker_id)

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`.

        Raises StalledError, which names job, oldest chunk and missing workers, or TransportError. After an
        error the workers may be out of step: call only `close`.
        """
        if self._broken or self._closed:
            state = "closed" if self._closed else "out of step after an earlier error"
            raise TransportError(f"sum: this connection is {state}; restart the job under a new generation")
        self._broken = True
        if not self._joined:
            joining = JoiningSum(self._endpoint.config, self._endpoint.worker_id)
            (numbers,) = self._sum_parts([Part(joining.words, "add", joining.check)])
            self._endpoint.start_run(int(np.bitwise_xor.reduce(numbers)))
        results = self._sum_parts(parts)
        self._broken, self._joined = False, True
        return results

    def _sum_parts(self, parts: Sequence[Part]) -> list[Words]:
        submit = self._endpoint.submit
        tickets = [submit(part.words, part.op, urgent=part.check is not None) for part in parts]
        checks = {ticket: part.check for ticket, part in zip(tickets, parts, strict=True)}
        results: dict[int, Words] = {}
        while len(results) < len(tickets):
            for event in self._exchange.run():
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
        """Return what was counted since the start."""
        stats = self._endpoint.stats()
        return replace(stats, dropped=stats.dropped | {"wrong_size": self._exchange.odd})

    @property
    def overruns(self) -> int:
        """Packets that the kernel dropped because this process did not read them in time."""
        return self._link.overruns

    def close(self) -> None:
        """Wait, at most `timers.linger`, until every worker has every result; then free the port."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._broken:
                self._endpoint.finish(time.monotonic())
                while not self._endpoint.finished:
                    self._exchange.run()
        finally:
            self._link.close()
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._broken |= kind is not None
        self.close()
