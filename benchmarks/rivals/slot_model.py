"""Models of slot protocols: one Python object for a packet, the same links, and a place to plug in another.

A protocol is a `SlotProtocol`: how a worker, the switch and perhaps a server handle a message. A message
stands for a chunk's packet. It carries the chunk's words if `run_protocol` is given words; else one random
word, from which sums are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.simulation.engine import Engine, Outputs, Timerless
from peelsum.simulation.hosts import PORT
from peelsum.simulation.scenario import Job, Scenario
from peelsum.simulation.simulation import frame_bytes
from peelsum.simulation.topologies import build
from peelsum.simulation.trains import NEVER, PS_PER_S, Arrivals, SimulationError, Train, ps
from peelsum.transport import Timers
from peelsum.wire import Flag

#: Destinations of a switch's packets, besides workers from 0 on.
SERVER, EVERYBODY = -1, -2
_CE = int(Flag.CE)
#: Bytes of a message before its words: kind, flags, sender; chunk; slot; extra.
_HEADER_BYTES = 32

Words = NDArray[np.uint32]


class Message(NamedTuple):
    """A packet of a slot protocol."""

    kind: int
    """The kind of message: a number below 256 that the protocol assigns."""
    sender: int
    """The worker that sent it, or that it is for; SERVER for the server."""
    chunk: int
    """The chunk."""
    words: Words
    """The chunk's words, uint32[lanes], or one that stands for them. Sums wrap modulo 2**32."""
    slot: int = 0
    """The switch's slot, if the worker chooses it."""
    extra: int = 0
    """Up to 63 further bits of the protocol, such as a bitmap or a version."""
    ce: bool = False
    """Whether a queue marked it on the way."""


class Endpoint(Protocol):
    """A worker's or a server's part of a protocol. Times are seconds."""

    def start(self, now: float) -> list[Message]:
        """Return the first messages to send."""

    def receive(self, message: Message, now: float) -> list[Message]:
        """Process a message; return the messages to send."""

    def next_timer(self) -> float | None:
        """Return when to call `expire`, or None."""

    def expire(self, now: float) -> list[Message]:
        """Return the messages to retransmit."""


class Worker(Endpoint, Protocol):
    """A worker: when it has all results, `results` has a sum for each chunk."""

    results: dict[int, Words]
    """The sum of each chunk that has one; others are 0."""

    @property
    def done(self) -> bool:
        """Whether it has all."""

    resends: int
    """Messages sent again."""


class SlotProgram(Protocol):
    """The program of a switch."""

    in_switch: int
    """Sums that the switch completed."""

    def process(self, message: Message, *, from_server: bool) -> list[tuple[int, Message]]:
        """Return the messages to send: the destination (a worker, SERVER or EVERYBODY) and the message."""


@dataclass(frozen=True)
class Setting:
    """A job, as its protocol sees it."""

    workers: int
    """Number of workers."""
    chunks: int
    """Chunks of the sum."""
    slots: int
    """Slots of the switch, for all jobs."""
    window: int
    """Most outstanding chunks of a worker."""
    initial_window: int
    """Congestion window at the start."""
    timers: Timers
    """Timers of workers and servers."""
    words: Words
    """Each worker's chunks, uint32[workers, chunks, lanes]; see `Message.words`."""
    job: int = 0
    """The job's number, from 0 on."""
    jobs: int = 1
    """Jobs at the switch."""
    shared: dict[int, Any] = field(default_factory=dict)
    """One mapping for the programs of all jobs: the contents of slots that jobs share."""

    @property
    def everyone(self) -> int:
        """The bitmap of all workers."""
        return (1 << self.workers) - 1


@dataclass(frozen=True)
class SlotProtocol:
    """A protocol: the class of each part. Put it into a mapping, or pass it to `run_protocol`."""

    worker: Callable[[Setting, int], Worker]
    """Return worker number n."""
    switch: Callable[[Setting], SlotProgram]
    """Return the switch's program for one job."""
    server: Callable[[Setting], Endpoint] | None = None
    """Return the aggregation server, if there is one."""
    survives_loss: bool = True
    """Whether the model sends lost packets again."""


@dataclass(frozen=True)
class SlotRow:
    """The results of a slot protocol."""

    protocol: str
    """Its name."""
    seconds: float
    """Simulated seconds from the start to the last result, of the slowest job."""
    job_seconds: tuple[float, ...]
    """The same for each job."""
    in_switch: float
    """Share of the chunks sent whose sum the switch completed, over all jobs."""
    packets: int
    """Packets that hosts sent."""
    to_servers: int
    """Packets that arrived at servers."""
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


@dataclass(frozen=True)
class _RunningJob:
    """One job, and its hosts."""

    job: Job
    setting: Setting
    workers: list[Worker]
    hosts: list[ModelHost]
    program: SlotProgram

    @property
    def sent(self) -> int:
        """Chunks with a non-zero word."""
        return int(self.setting.words.any((0, 2)).sum())

    def seconds(self) -> float:
        """Return the seconds from the start to the last result."""
        return max(host.done_at for host in self.hosts) / PS_PER_S - self.job.start_s

    def wrong(self) -> int:
        """Return the chunks whose sum differs from one computed apart, over all workers."""
        sums, wrong = self.setting.words.sum(0, dtype=np.uint32), 0
        for worker in self.workers:
            results = np.zeros_like(sums)
            for chunk, words in worker.results.items():
                results[chunk] = words
            wrong += int((results != sums).any(1).sum())
        return wrong


def run_protocol(
    scenario: Scenario, name: str, protocol: SlotProtocol, words: Sequence[Words] | None = None
) -> SlotRow:
    """Run a model for the scenario's jobs, behind one switch, and return its row.

    words: for each job uint32[workers, elements], the messages' words; by default one random word a chunk.
    Raises SimulationError for two levels, more than 62 workers in a job, a straggler in another job than the
    first, loss that the model does not survive, or no end by `limit_s`.
    """
    _check(scenario, name, protocol)
    shared: dict[int, Any] = {}
    jobs = [
        _running(scenario, number, protocol, shared, None if words is None else words[number])
        for number in range(len(scenario.jobs))
    ]
    size, engine = frame_bytes(scenario.lanes), Engine(scenario.seed)
    hosts = [host for job in jobs for host in job.hosts]
    servers = [] if protocol.server is None else [protocol.server(job.setting) for job in jobs]
    nodes = [*hosts, *(ModelHost(server, SERVER, size, 0) for server in servers)]
    build(engine, scenario, nodes, len(hosts), lambda: ModelSwitch(jobs, size), lambda *_: None)
    engine.run(lambda: all(worker.done for job in jobs for worker in job.workers), scenario.limit_s)
    return _row(name, jobs, engine)


def _check(scenario: Scenario, name: str, protocol: SlotProtocol) -> None:
    network = scenario.network
    if network.racks != 1:
        raise SimulationError(
            f"network.racks: {network.racks}: models of slot protocols have one switch; use 1"
        )
    for number, job in enumerate(scenario.jobs):
        if job.workers > 62:
            raise SimulationError(
                f"jobs.{number}.workers: {job.workers}: a model's bitmap has 62 bits; use 62 or fewer"
            )
        if number and job.stragglers:
            raise SimulationError(
                f"jobs.{number}.stragglers: models know stragglers of the first job only; put them there"
            )
    if network.loss and not protocol.survives_loss:
        raise SimulationError(f"network.loss: {network.loss}: the model of {name} sends nothing again; use 0")


def _running(
    scenario: Scenario, number: int, protocol: SlotProtocol, shared: dict[int, Any], words: Words | None
) -> _RunningJob:
    job, size = scenario.jobs[number], frame_bytes(scenario.lanes)
    setting = Setting(
        job.workers,
        -(-job.elements // scenario.lanes),
        scenario.slots,
        job.window,
        job.initial_window,
        job.timers.timers(),
        _chunks(scenario, number, words),
        number,
        len(scenario.jobs),
        shared,
    )
    workers = [protocol.worker(setting, worker) for worker in range(job.workers)]
    late = {straggler.worker: straggler.late_s for straggler in job.stragglers}
    hosts = [
        ModelHost(worker, n, size, ps(job.start_s + late.get(n, 0.0))) for n, worker in enumerate(workers)
    ]
    return _RunningJob(job, setting, workers, hosts, protocol.switch(setting))


def _chunks(scenario: Scenario, number: int, words: Words | None) -> Words:
    """Return the words of all chunks, uint32[workers, chunks, lanes], or random ones with one lane."""
    job, lanes = scenario.jobs[number], scenario.lanes
    chunks = -(-job.elements // lanes)
    if words is None:
        random = np.random.default_rng(scenario.seed + number)
        return random.integers(1, 1 << 32, (job.workers, chunks, 1), np.uint32)
    padded = np.zeros((job.workers, chunks * lanes), np.uint32)
    padded[:, : job.elements] = words
    return padded.reshape(job.workers, chunks, lanes)


def _row(name: str, jobs: Sequence[_RunningJob], engine: Engine) -> SlotRow:
    links, counts = engine.total(), engine.counts()
    seconds = tuple(job.seconds() for job in jobs)
    chunks = sum(job.sent for job in jobs)
    return SlotRow(
        protocol=name,
        seconds=max(seconds),
        job_seconds=seconds,
        in_switch=min(sum(job.program.in_switch for job in jobs) / chunks, 1.0) if chunks else 0.0,
        packets=sum(each.offered for link, each in counts.items() if link.startswith("host")),
        to_servers=sum(
            link_counts.delivered for link, link_counts in counts.items() if link.startswith("to server")
        ),
        resends=sum(worker.resends for job in jobs for worker in job.workers),
        octets=links.octets,
        drops={"queue_full": links.queue_full, "lost": links.lost},
        offered=links.offered,
        delivered=links.delivered,
        wrong=sum(job.wrong() for job in jobs),
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
                sent += [(due, answer) for answer in answers]
            if message is not None:
                self.done_at = at
                sent += [(at, reply) for reply in self._endpoint.receive(message, at / PS_PER_S)]
        return [(PORT, _train(sent, self._size))] if sent else []


class ModelSwitch(Timerless):
    """A switch that runs each job's program. Its ports are all jobs' workers, then their servers."""

    def __init__(self, jobs: Sequence[_RunningJob], size: int) -> None:
        self._jobs, self._size = jobs, size
        counts = [len(job.workers) for job in jobs]
        self._first = [sum(counts[:n]) for n in range(len(jobs))]
        self._servers = sum(counts)
        self._job_of = [n for n, count in enumerate(counts) for _ in range(count)] + list(range(len(jobs)))

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process messages in order of time."""
        sent: dict[int, list[tuple[int, Message]]] = {}
        if arrivals is not None:
            messages = _messages(arrivals.train)
            for at, port, message in zip(
                arrivals.train.times.tolist(), arrivals.ports.tolist(), messages, strict=True
            ):
                number = self._job_of[port]
                program = self._jobs[number].program
                for to, out in program.process(message, from_server=port >= self._servers):
                    for target in self._ports(number, to):
                        sent.setdefault(target, []).append((at, out))
        return [(port, _train(each, self._size)) for port, each in sorted(sent.items())]

    def _ports(self, number: int, to: int) -> Sequence[int]:
        first = self._first[number]
        if to == EVERYBODY:
            return range(first, first + len(self._jobs[number].workers))
        return (self._servers + number if to == SERVER else first + to,)


def _train(sent: Sequence[tuple[int, Message]], size: int) -> Train:
    headers = np.array(
        [(m.kind << 8 | m.ce * _CE << 16 | (m.sender + 2) << 32, m.chunk, m.slot, m.extra) for _, m in sent],
        np.int64,
    )
    words = np.array([m.words for _, m in sent], np.uint32)
    times = np.array([at for at, _ in sent], np.int64)
    data = np.concatenate([headers.view(np.uint8), words.view(np.uint8)], axis=1)
    return Train(times, np.full(len(sent), size, np.int32), data)


def _messages(train: Train) -> list[Message]:
    headers = np.ascontiguousarray(train.data[:, :_HEADER_BYTES]).view(np.int64).tolist()
    each = np.ascontiguousarray(train.data[:, _HEADER_BYTES:]).view(np.uint32)
    return [
        Message(a >> 8 & 0xFF, (a >> 32) - 2, chunk, words, slot, extra, bool(a >> 16 & _CE))
        for (a, chunk, slot, extra), words in zip(headers, each, strict=True)
    ]
