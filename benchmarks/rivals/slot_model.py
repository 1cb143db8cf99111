"""Models of slot protocols: one Python object for a packet, the same links, and a place to plug in another.

A protocol is a `SlotProtocol`: how a worker, the switch and perhaps a server handle a message. A message
stands for a chunk's packet. It carries the chunk's words if `run_protocol` is given words; else one random
word, from which sums are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.simulation.engine import Engine, Outputs, Timerless
from peelsum.simulation.hosts import PORT
from peelsum.simulation.scenario import Scenario
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


@dataclass(frozen=True)
class SlotJob:
    """A job, as its protocol sees it."""

    workers: int
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
    number: int = 0
    """The job's number, from 0 on."""
    jobs: int = 1
    """Jobs at the switch."""
    shared: dict[int, Any] = field(default_factory=dict)
    """One mapping for the programs of all jobs: the contents of slots that jobs share."""


class Endpoint:
    """A worker's or a server's part of a protocol, which by default only answers. Times are seconds."""

    def start(self, now: float) -> list[Message]:
        """Return the first messages to send."""
        return []

    def receive(self, message: Message, now: float) -> list[Message]:
        """Process a message; return the messages to send."""
        raise NotImplementedError

    def next_timer(self) -> float | None:
        """Return when to call `expire`, or None."""
        return None

    def expire(self, now: float) -> list[Message]:
        """Return the messages to send again."""
        return []


class Worker(Endpoint):
    """A worker: when it has all results, `results` has a sum for each chunk; chunks without one are 0."""

    def __init__(self, job: SlotJob, number: int) -> None:
        self.job, self.number, self.words = job, number, job.words[number]
        self.results: dict[int, Words] = {}
        #: Messages sent again.
        self.resends = 0

    @property
    def done(self) -> bool:
        """Whether it has all results."""
        return len(self.results) == self.job.chunks


class SlotProgram:
    """The program of a switch for one job; `in_switch` counts the sums that it completed."""

    def __init__(self, job: SlotJob) -> None:
        self.job, self.in_switch = job, 0

    def process(self, message: Message, *, from_server: bool) -> list[tuple[int, Message]]:
        """Return the messages to send: the destination (a worker, SERVER or EVERYBODY) and the message."""
        raise NotImplementedError


@dataclass(frozen=True)
class SlotProtocol:
    """A protocol: the class of each part. Put it into a mapping, or pass it to `run_protocol`."""

    worker: Callable[[SlotJob, int], Worker]
    switch: Callable[[SlotJob], SlotProgram]
    server: Callable[[SlotJob], Endpoint] | None = None
    """The aggregation server, if there is one."""
    survives_loss: bool = True
    """Whether the model sends lost packets again."""


@dataclass(frozen=True)
class RivalRow:
    """The results of a slot protocol, or of a collective."""

    name: str
    seconds: float
    """Simulated seconds from the start to the last result, of the slowest job."""
    packets: int
    """Packets that hosts sent, a collective's acknowledgements excluded."""
    resends: int
    """Packets that were sent again."""
    octets: int
    """Bytes on all links."""
    drops: dict[str, int]
    """Packets dropped by links, by reason."""
    offered: int
    """Packets that came to links' queues."""
    delivered: int
    """Packets that arrived."""
    wrong: int
    """Chunks, or a collective's parts, with a wrong sum, over all workers."""
    job_seconds: tuple[float, ...] = ()
    """Seconds of each job of a slot protocol."""
    in_switch: float | None = None
    """Share of the chunks sent whose sum the switch completed, over all jobs; None for a collective."""
    to_servers: int = 0
    """Packets that arrived at servers."""


def link_counts(engine: Engine) -> dict[str, Any]:
    """Return the columns of a RivalRow that links count."""
    links = engine.total()
    drops = {"queue_full": links.queue_full, "lost": links.lost}
    return {"octets": links.octets, "drops": drops, "offered": links.offered, "delivered": links.delivered}


def run_protocol(
    scenario: Scenario, name: str, protocol: SlotProtocol, words: Sequence[Words] | None = None
) -> RivalRow:
    """Run a model for the scenario's jobs, behind one switch, and return its row.

    words: for each job uint32[workers, elements], the messages' words; by default one random word a chunk.
    Raises SimulationError for two levels, more than 62 workers in a job, a straggler in another job than the
    first, loss that the model does not survive, or no end by `limit_s`.
    """
    _check(scenario, name, protocol)
    shared: dict[int, Any] = {}
    jobs = [
        _RunningJob(scenario, number, protocol, shared, None if words is None else words[number])
        for number in range(len(scenario.jobs))
    ]
    size, engine = frame_bytes(scenario.lanes), Engine(scenario.seed)
    hosts = [host for job in jobs for host in job.hosts]
    servers = [] if protocol.server is None else [protocol.server(job.job) for job in jobs]
    nodes = [*hosts, *(ModelHost(server, size, 0) for server in servers)]
    build(engine, scenario, nodes, len(hosts), lambda: ModelSwitch(jobs, size), lambda *_: None)
    engine.run(lambda: all(worker.done for job in jobs for worker in job.workers), scenario.limit_s)
    seconds, chunks = tuple(job.seconds() for job in jobs), sum(job.sent for job in jobs)
    counts = engine.counts().items()
    return RivalRow(
        name=name,
        seconds=max(seconds),
        packets=sum(link.offered for at, link in counts if at.startswith("host")),
        resends=sum(worker.resends for job in jobs for worker in job.workers),
        wrong=sum(job.wrong() for job in jobs),
        job_seconds=seconds,
        in_switch=min(sum(job.program.in_switch for job in jobs) / chunks, 1.0) if chunks else 0.0,
        to_servers=sum(link.delivered for at, link in counts if at.startswith("to server")),
        **link_counts(engine),
    )


def _check(scenario: Scenario, name: str, protocol: SlotProtocol) -> None:
    network, error = scenario.network, ""
    if network.racks != 1:
        error = f"network.racks: {network.racks}: models of slot protocols have one switch; use 1"
    for number, job in enumerate(scenario.jobs):
        if job.workers > 62:
            error = f"jobs.{number}.workers: {job.workers}: a model's bitmap has 62 bits; use 62 or fewer"
        if number and job.stragglers:
            error = f"jobs.{number}.stragglers: models know stragglers of the first job only; put them there"
    if network.loss and not protocol.survives_loss:
        error = f"network.loss: {network.loss}: the model of {name} sends nothing again; use 0"
    if error:
        raise SimulationError(error)


class _RunningJob:
    """One job, its workers and hosts, and the program of its switch."""

    def __init__(
        self,
        scenario: Scenario,
        number: int,
        protocol: SlotProtocol,
        shared: dict[int, Any],
        words: Words | None,
    ) -> None:
        job, lanes, size = scenario.jobs[number], scenario.lanes, frame_bytes(scenario.lanes)
        chunks = -(-job.elements // lanes)
        if words is None:
            random = np.random.default_rng(scenario.seed + number)
            chunked = random.integers(1, 1 << 32, (job.workers, chunks, 1), np.uint32)
        else:
            padded = np.zeros((job.workers, chunks * lanes), np.uint32)
            padded[:, : job.elements] = words
            chunked = padded.reshape(job.workers, chunks, lanes)
        self.job = SlotJob(
            *(job.workers, chunks, scenario.slots, job.window, job.initial_window, job.timers.timers()),
            *(chunked, number, len(scenario.jobs), shared),
        )
        self.workers = [protocol.worker(self.job, worker) for worker in range(job.workers)]
        late = {straggler.worker: straggler.late_s for straggler in job.stragglers}
        self._start_s = job.start_s
        self.hosts = [
            ModelHost(worker, size, ps(job.start_s + late.get(n, 0.0)))
            for n, worker in enumerate(self.workers)
        ]
        self.program = protocol.switch(self.job)

    @property
    def sent(self) -> int:
        """Chunks with a non-zero word."""
        return int(self.job.words.any((0, 2)).sum())

    def seconds(self) -> float:
        """Return the seconds from the start to the last result."""
        return max(host.done_at for host in self.hosts) / PS_PER_S - self._start_s

    def wrong(self) -> int:
        """Return the chunks whose sum differs from one computed apart, over all workers."""
        sums, wrong = self.job.words.sum(0, dtype=np.uint32), 0
        for worker in self.workers:
            results = np.zeros_like(sums)
            for chunk, words in worker.results.items():
                results[chunk] = words
            wrong += int((results != sums).any(1).sum())
        return wrong


class ModelHost:
    """A host that runs an endpoint of a model. `done_at` is the picosecond of its last message."""

    def __init__(self, endpoint: Endpoint, size: int, start: int) -> None:
        self._endpoint, self._size, self._start = endpoint, size, start
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
        self._job_of = [number for number, job in enumerate(jobs) for _ in job.workers]
        self._servers = len(self._job_of)
        self._job_of += range(len(jobs))

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process messages in order of time."""
        if arrivals is None:
            return []
        sent: dict[int, list[tuple[int, Message]]] = {}
        times, ports = arrivals.train.times.tolist(), arrivals.ports.tolist()
        for at, port, message in zip(times, ports, _messages(arrivals.train), strict=True):
            number = self._job_of[port]
            job, first = self._jobs[number], self._job_of.index(number)
            for to, out in job.program.process(message, from_server=port >= self._servers):
                targets = [self._servers + number if to == SERVER else first + to]
                for target in range(first, first + len(job.workers)) if to == EVERYBODY else targets:
                    sent.setdefault(target, []).append((at, out))
        return [(port, _train(each, self._size)) for port, each in sorted(sent.items())]


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
    words = np.ascontiguousarray(train.data[:, _HEADER_BYTES:]).view(np.uint32)
    return [
        Message(a >> 8 & 0xFF, (a >> 32) - 2, chunk, lanes, slot, extra, bool(a >> 16 & _CE))
        for (a, chunk, slot, extra), lanes in zip(headers, words, strict=True)
    ]
