"""Models of slot protocols: one Python object for a packet, the same links, and a place to plug in another.

A protocol is a `SlotProtocol`: what a worker, the switch and perhaps a server do with a message. A message
stands for a chunk's packet. Instead of lanes it carries one value, from which sums are checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.simulation.engine import Engine, Outputs
from peelsum.simulation.errors import SimulationError
from peelsum.simulation.hosts import PORT
from peelsum.simulation.scenario import Job, Scenario
from peelsum.simulation.simulation import frame_bytes
from peelsum.simulation.topologies import Attach, build
from peelsum.simulation.trains import NEVER, PS_PER_S, Arrivals, Train, ps
from peelsum.transport import Timers
from peelsum.wire import Flag

#: Destinations of a switch's packets, besides workers from 0 on.
SERVER, EVERYBODY = -1, -2
_WORD = 0xFFFFFFFF
_CE = int(Flag.CE)


class Message(NamedTuple):
    """A packet of a slot protocol."""

    kind: int
    """The kind of message: a number below 256 that the protocol assigns."""
    sender: int
    """The worker that sent it, or that it is for; SERVER for the server."""
    chunk: int
    """The chunk."""
    slot: int = 0
    """The switch's slot, if the worker chooses it."""
    extra: int = 0
    """Up to 63 further bits of the protocol, such as a bitmap or a version."""
    value: int = 0
    """A number in place of the chunk's lanes, modulo 2**32."""
    ce: bool = False
    """Whether a queue marked it on the way."""


class Endpoint(Protocol):
    """A worker's or a server's part of a protocol. Times are seconds."""

    def start(self, now: float) -> list[Message]:
        """Return what to send first."""

    def receive(self, message: Message, now: float) -> list[Message]:
        """Process a message; return what to send."""

    def next_timer(self) -> float | None:
        """Return when to call `expire`, or None."""

    def expire(self, now: float) -> list[Message]:
        """Return what to send again."""


class Worker(Endpoint, Protocol):
    """A worker: when it has all results, `results` has a sum for each chunk."""

    results: dict[int, int]
    """The sum of each chunk that has one; others are 0."""

    @property
    def done(self) -> bool:
        """Whether it has all."""

    resends: int
    """Messages sent again."""


class Program(Protocol):
    """The program of a switch."""

    in_switch: int
    """Sums that the switch completed."""

    def process(self, message: Message, *, from_server: bool) -> list[tuple[int, Message]]:
        """Return what to send: the destination (a worker, SERVER or EVERYBODY) and the message."""


@dataclass(frozen=True)
class Setting:
    """A job, as its protocol sees it."""

    workers: int
    """Number of workers."""
    chunks: int
    """Chunks of the sum."""
    slots: int
    """Slots of the switch."""
    window: int
    """Most outstanding chunks of a worker."""
    initial_window: int
    """Congestion window at the start."""
    timers: Timers
    """Timers of workers and servers."""
    values: NDArray[np.uint32]
    """Numbers in place of each worker's chunks, uint32[workers, chunks]; 0 for a chunk of zeros."""

    @property
    def everyone(self) -> int:
        """The bitmap of all workers."""
        return (1 << self.workers) - 1


@dataclass(frozen=True)
class SlotProtocol:
    """A protocol: the class of each part. Put it into a mapping, or pass it to `run_protocol`."""

    worker: Callable[[Setting, int], Worker]
    """Return worker number n."""
    switch: Callable[[Setting], Program]
    """Return the switch's program."""
    server: Callable[[Setting], Endpoint] | None = None
    """Return the aggregation server, if there is one."""
    survives_loss: bool = True
    """Whether the model sends lost packets again."""


@dataclass(frozen=True)
class SlotRow:
    """The results of a slot protocol."""

    protocol: str
    """Its name."""
    workers: int
    """Number of workers."""
    elements: int
    """Words of the sum."""
    slots: int
    """Slots of the switch."""
    seconds: float
    """Simulated seconds from the start to the last result."""
    goodput_gbps: float
    """Gigabits of each worker's words summed per second."""
    in_switch: float
    """Share of the chunks sent whose sum the switch completed."""
    packets: int
    """Packets that hosts sent."""
    resends: int
    """Packets that workers sent again."""
    octets: int
    """Bytes on all links."""
    drops: dict[str, int]
    """Packets dropped by links, by reason."""
    offered: int
    """Packets that came to links' queues."""
    delivered: int
    """Packets that arrived."""
    wrong: int
    """Chunks with a wrong sum, over all workers."""
    wall_s: float = field(compare=False, default=0.0)
    """Seconds that the simulation took."""


def run_protocol(
    scenario: Scenario, name: str, protocol: SlotProtocol, non_zero: NDArray[np.bool_] | None = None
) -> SlotRow:
    """Run a model for the scenario's first job, behind one switch, and return its row.

    non_zero: bool[workers, chunks], which chunks have values; by default all. Raises SimulationError for two
    levels, more than 62 workers, loss that the model does not survive, or no end by `limit_s`.
    """
    started = time.perf_counter()
    network, job = scenario.network, scenario.jobs[0]
    if network.racks != 1:
        raise SimulationError(
            f"network.racks: {network.racks}: models of slot protocols have one switch; use 1"
        )
    if job.workers > 62:
        raise SimulationError(f"jobs.0.workers: {job.workers}: a model's bitmap has 62 bits; use 62 or fewer")
    if network.loss and not protocol.survives_loss:
        raise SimulationError(f"network.loss: {network.loss}: the model of {name} sends nothing again; use 0")
    setting = _setting(scenario, job, non_zero)
    workers = [protocol.worker(setting, number) for number in range(job.workers)]
    program, size = protocol.switch(setting), frame_bytes(scenario.lanes)
    late = {one.worker: one.late_s for one in job.stragglers}
    hosts = [
        Attach(ModelHost(worker, n, size, ps(job.start_s + late.get(n, 0.0))), True, n)
        for n, worker in enumerate(workers)
    ]
    if protocol.server is not None:
        hosts.append(Attach(ModelHost(protocol.server(setting), SERVER, size, 0), False, job.workers))
    engine = Engine(scenario.seed)
    build(engine, scenario, hosts, lambda: ModelSwitch(program, job.workers, size), lambda *_: None)
    engine.run(lambda: all(worker.done for worker in workers), scenario.limit_s)
    end = max(host.node.done_at for host in hosts if isinstance(host.node, ModelHost) and host.is_worker)
    return _row(name, scenario, setting, workers, program, engine, end, time.perf_counter() - started)


def _setting(scenario: Scenario, job: Job, non_zero: NDArray[np.bool_] | None) -> Setting:
    chunks = -(-job.elements // scenario.lanes)
    random = np.random.default_rng(scenario.seed)
    values = random.integers(1, 1 << 32, (job.workers, chunks), np.uint32)
    if non_zero is not None:
        values *= non_zero
    return Setting(
        job.workers, chunks, scenario.slots, job.window, job.initial_window, job.timers.timers(), values
    )


def _row(
    name: str,
    scenario: Scenario,
    setting: Setting,
    workers: Sequence[Worker],
    program: Program,
    engine: Engine,
    end: int,
    wall_s: float,
) -> SlotRow:
    job, links = scenario.jobs[0], engine.total()
    sums = setting.values.astype(np.uint64).sum(0) & np.uint64(_WORD)
    seconds = end / PS_PER_S - job.start_s
    sent = sum(one.offered for name, one in engine.counts().items() if name.startswith("host"))
    used = int(setting.values.any(0).sum())
    return SlotRow(
        protocol=name,
        workers=job.workers,
        elements=job.elements,
        slots=setting.slots,
        seconds=seconds,
        goodput_gbps=32 * job.elements / seconds / 1e9,
        in_switch=min(program.in_switch / used, 1.0) if used else 0.0,
        packets=sent,
        resends=sum(worker.resends for worker in workers),
        octets=links.octets,
        drops={"queue_full": links.queue_full, "lost": links.lost},
        offered=links.offered,
        delivered=links.delivered,
        wrong=sum(w.results.get(c, 0) != int(v) for w in workers for c, v in enumerate(sums)),
        wall_s=wall_s,
    )


class ModelHost:
    """A host that runs an endpoint of a model. `done_at` is the picosecond of its last message."""

    def __init__(self, endpoint: Endpoint, number: int, size: int, start: int) -> None:
        self._endpoint, self._number, self._size, self._start = endpoint, number, size, start
        self.done_at = 0

    def next_time(self) -> int:
        """Return when the host starts, or its next timer."""
        due = self._endpoint.next_timer()
        return min(self._start, NEVER if due is None else ps(due) + 1)

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process messages and timers before `until`."""
        sent: list[tuple[int, Message]] = []
        messages = [] if arrivals is None else _messages(arrivals.train)
        times: list[int] = [] if arrivals is None else arrivals.train.times.tolist()
        for at, message in [*zip(times, messages, strict=True), (until, None)]:
            while (due := self.next_time()) < at:
                if due == self._start:
                    self._start = NEVER
                    answers = self._endpoint.start(due / PS_PER_S)
                else:
                    answers = self._endpoint.expire(due / PS_PER_S)
                sent += [(due, one) for one in answers]
            if message is not None:
                self.done_at = at
                sent += [(at, one) for one in self._endpoint.receive(message, at / PS_PER_S)]
        return [(PORT, _train(sent, self._size))] if sent else []


class ModelSwitch:
    """A switch that runs a model's program. Its ports are the workers' numbers, then the server's."""

    def __init__(self, program: Program, workers: int, size: int) -> None:
        self._program, self._workers, self._size = program, workers, size

    def next_time(self) -> int:
        """Return NEVER: a switch has no timers."""
        return NEVER

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process messages in order of time."""
        sent: dict[int, list[tuple[int, Message]]] = {}
        if arrivals is not None:
            messages = _messages(arrivals.train)
            for at, port, message in zip(
                arrivals.train.times.tolist(), arrivals.ports.tolist(), messages, strict=True
            ):
                for to, out in self._program.process(message, from_server=port == self._workers):
                    everybody = range(self._workers) if to == EVERYBODY else (to,)
                    for one in everybody:
                        sent.setdefault(self._workers if one == SERVER else one, []).append((at, out))
        return [(port, _train(each, self._size)) for port, each in sorted(sent.items())]


def _train(sent: Sequence[tuple[int, Message]], size: int) -> Train:
    rows = np.array(
        [
            (m.kind << 8 | m.ce * _CE << 16 | (m.sender + 2) << 32, m.chunk, m.slot, m.extra, m.value)
            for _, m in sent
        ],
        np.int64,
    )
    times = np.array([at for at, _ in sent], np.int64)
    return Train(times, np.full(len(sent), size, np.int32), rows.view(np.uint8))


def _messages(train: Train) -> list[Message]:
    rows = np.ascontiguousarray(train.data).view(np.int64).tolist()
    return [
        Message(a >> 8 & 0xFF, (a >> 32) - 2, chunk, slot, extra, value, bool(a >> 16 & _CE))
        for a, chunk, slot, extra, value in rows
    ]


def known(protocols: Mapping[str, SlotProtocol], name: str) -> SlotProtocol:
    """Return a protocol by name. Raises SimulationError naming those that there are."""
    if name not in protocols:
        raise SimulationError(f"protocol: {name!r} is unknown; use {', '.join(protocols)}")
    return protocols[name]
