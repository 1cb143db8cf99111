"""Simulate sums by any P4 program that aggregates: the compiled program, its hosts, and our links.

A `SlotProtocol` names the program, which includes switch/rivals/frame.p4inc, and the classes of its hosts. A
host takes and returns messages; they travel as the frames that the program parses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.pipelines.artifacts import with_lanes
from peelsum.simulation.engine import Engine, Outputs
from peelsum.simulation.hosts import PORT
from peelsum.simulation.scenario import Job, Scenario
from peelsum.simulation.switches import ProgramSwitch
from peelsum.simulation.topologies import build
from peelsum.simulation.trains import NEVER, PS_PER_S, Arrivals, SimulationError, Train, ps
from peelsum.softswitch.compiler.loading import parse
from peelsum.softswitch.program.model import Program
from peelsum.wire import FRAME_HEADER_BYTES

#: Bits of `Message.flags`, as in message_h.
VERSION, EMPTY, ECN, COLLISION, RESEND, RESULT = (1 << bit for bit in range(6))
#: The port of a message for all workers of a job.
TO_ALL = 0xFFFF
#: Cells of the programs' registers.
MOST_SLOTS = 1 << 16
MOST_WORKERS = 32
#: message_h in switch/rivals/frame.p4inc.
_HEADER = np.dtype(
    {
        "names": ["job", "workers", "flags", "worker", "slot", "port", "chunk", "extra"],
        "formats": ["u1", "u1", "u1", "u1", ">u2", ">u2", ">u4", ">u4"],
    }
)

#: Bits of a message's fields there.
_FIELD_BITS = {"chunk": 32, "extra": 32, "slot": 16, "port": 16, "flags": 8, "worker": 8}

Words = NDArray[np.uint32]
NO_WORDS: Words = np.zeros(0, np.uint32)


class Message(NamedTuple):
    """The fields of a packet that hosts choose."""

    chunk: int
    """The chunk, below 2**32."""
    words: Words
    """The lanes, uint32[lanes]; NO_WORDS in an empty packet."""
    extra: int = 0
    """Whatever the program uses it for, below 2**32."""
    slot: int = 0
    """The switch's slot."""
    flags: int = 0
    """VERSION, ECN, COLLISION, RESEND and RESULT; EMPTY is set if there are no words."""
    worker: int = 0
    """The worker that sent it."""
    port: int = 0
    """The switch's port to the receiver, or TO_ALL, if the program uses it."""


@dataclass(frozen=True)
class SlotJob:
    """A job, as its hosts see it."""

    number: int
    """From 1 on; also the number of the multicast group of its workers."""
    jobs: int
    """Jobs at the switch."""
    slots: int
    """Slots of the switch, for all jobs."""
    settings: Job
    """Its window, timers and so on."""
    words: Words
    """Each worker's chunks, uint32[workers, chunks, values]; a lane has one value, or several packed ones."""
    lanes: int
    """Lanes of a contribution."""
    result_lanes: int
    """Lanes of a result."""
    ports: Sequence[int]
    """The switch's ports to the workers."""
    server_port: int
    """The switch's port to the server, if there is one."""

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.words)

    @property
    def chunks(self) -> int:
        """Chunks of the sum."""
        return len(self.words[0])


class Endpoint:
    """A worker's or a server's part of a protocol. Subclasses must define `receive`. Times are seconds."""

    #: Sums that reached the server complete.
    in_switch = 0

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
    """A worker. Its `results` are sums by chunk; a chunk that is missing at the end counts as zeros."""

    def __init__(self, job: SlotJob, number: int) -> None:
        self.job, self.number, self.words = job, number, job.words[number]
        self.results: dict[int, Words] = {}
        #: Messages sent again.
        self.resends = 0

    @property
    def done(self) -> bool:
        """Whether it has all results."""
        return len(self.results) == self.job.chunks


def wrong_chunks(words: Words, results: Words) -> int:
    """Return the number of chunks whose sum differs from that of all workers' words, modulo 2**32."""
    return int((results != words.sum(0, dtype=np.uint32)).any(1).sum())


@dataclass(frozen=True)
class SlotProtocol:
    """A protocol: a compiled program, and the classes of its hosts."""

    program: Path
    """What p4c-bm2-ss made of the program, for any number of lanes."""
    worker: Callable[[SlotJob, int], Worker]
    """Makes a worker of its job and its number."""
    server: Callable[[SlotJob], Endpoint] | None = None
    """Makes the aggregation server, if there is one."""
    wrong: Callable[[Words, Words], int] = wrong_chunks
    """Counts wrong chunks, given all workers' words and one worker's results, uint32[chunks, values]."""
    values_per_lane: int = 1
    """Values that a worker packs into a lane of its contributions."""
    lane_growth: int = 1
    """Lanes of a result for each lane of a contribution."""


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
    """Share of the chunks whose sum the switch completed, over all jobs; None for a collective."""
    to_servers: int = 0
    """Packets that arrived at servers."""
    words: int = 0
    """Words that hosts of a slot protocol sent, headers excluded."""


def link_counts(engine: Engine) -> dict[str, Any]:
    """Return the columns of a RivalRow that links count."""
    links = engine.total()
    drops = {"queue_full": links.queue_full, "lost": links.lost}
    return {"octets": links.octets, "drops": drops, "offered": links.offered, "delivered": links.delivered}


@lru_cache(maxsize=16)
def load_program(path: Path, lanes: int) -> Program:
    """Return a compiled program, adapted to this number of lanes.

    Raises SimulationError for a file that is not a compiled program, PipelineError or SoftswitchError.
    """
    try:
        program = json.loads(path.read_text())
    except OSError as error:
        raise SimulationError(f"program: {path}: {error.strerror}; compile it with p4c-bm2-ss -o") from None
    except ValueError:
        raise SimulationError(f"program: {path}: is not JSON; give what p4c-bm2-ss -o wrote") from None
    return parse(with_lanes(program, lanes), f"{path.stem}_{lanes}")


def run_protocol(
    scenario: Scenario, name: str, protocol: SlotProtocol, words: Sequence[Words] | None = None
) -> RivalRow:
    """Run a protocol for the scenario's jobs, at one switch, and return its row.

    words: for each job uint32[workers, elements]; random by default.
    Raises SimulationError for two levels, more slots or workers of a job than programs have room for, or no
    end by `limit_s`.
    """
    _check(scenario)
    lanes, engine = scenario.lanes, Engine(scenario.seed)
    payload_bytes = _HEADER.itemsize + 4 * lanes * protocol.lane_growth
    switch = ProgramSwitch(load_program(protocol.program, lanes), payload_bytes)
    jobs = [
        _RunningJob(scenario, number, protocol, None if words is None else words[number])
        for number in range(len(scenario.jobs))
    ]
    for job in jobs:
        switch.switch.groups.set(job.job.number, [(port, 0) for port in job.job.ports])
    hosts = [host for job in jobs for host in job.hosts]
    servers = [] if protocol.server is None else [protocol.server(job.job) for job in jobs]
    nodes = [*hosts, *(ProgramHost(server, job.job, 0) for server, job in zip(servers, jobs, strict=False))]
    build(engine, scenario, nodes, len(hosts), lambda: switch, lambda *_: None)
    try:
        engine.run(lambda: all(worker.done for job in jobs for worker in job.workers), scenario.limit_s)
    except SimulationError as error:
        worker = next(worker for job in jobs for worker in job.workers if not worker.done)
        progress = f"has {len(worker.results)} of {worker.job.chunks} sums"
        raise SimulationError(
            f"{name}: {error}; worker {worker.number} of job {worker.job.number} {progress}, and links lost "
            f"{engine.total().lost} packets"
        ) from None
    ends = [max(host.done_at for host in job.hosts) / PS_PER_S for job in jobs]
    seconds = tuple(end - job.start_s for end, job in zip(ends, scenario.jobs, strict=True))
    chunks = sum(job.job.chunks for job in jobs)
    counts = engine.counts().items()
    sent = [link for at, link in counts if at.startswith("host")]
    packets = sum(link.offered for link in sent)
    return RivalRow(
        name=name,
        seconds=max(seconds),
        packets=packets,
        resends=sum(worker.resends for job in jobs for worker in job.workers),
        wrong=sum(job.wrong(protocol) for job in jobs),
        job_seconds=seconds,
        in_switch=sum(server.in_switch for server in servers) / chunks if servers else 1.0,
        to_servers=sum(link.delivered for at, link in counts if at.startswith("to server")),
        words=(sum(link.octets for link in sent) - packets * (FRAME_HEADER_BYTES + _HEADER.itemsize)) // 4,
        **link_counts(engine),
    )


def _check(scenario: Scenario) -> None:
    limits = [("network.racks", scenario.network.racks, 1), ("slots", scenario.slots, MOST_SLOTS)]
    limits += [(f"jobs.{n}.workers", job.workers, MOST_WORKERS) for n, job in enumerate(scenario.jobs)]
    for field, value, most in limits:
        if value > most:
            raise SimulationError(f"{field}: {value}: rivals' programs are for {most}; use {most} or fewer")


class _RunningJob:
    """One job with its workers and their hosts."""

    def __init__(self, scenario: Scenario, number: int, protocol: SlotProtocol, words: Words | None) -> None:
        job, lanes = scenario.jobs[number], scenario.lanes
        values = lanes * protocol.values_per_lane
        chunks = -(-job.elements // values)
        if words is None:
            random = np.random.default_rng(scenario.seed + number)
            words = random.integers(0, 1 << 32, (job.workers, job.elements), np.uint32)
        padded = np.zeros((job.workers, chunks * values), np.uint32)
        padded[:, : job.elements] = words
        first = sum(before.workers for before in scenario.jobs[:number])
        self.job = SlotJob(
            number + 1,
            len(scenario.jobs),
            scenario.slots,
            job,
            padded.reshape(job.workers, chunks, values),
            lanes,
            lanes * protocol.lane_growth,
            range(first, first + job.workers),
            sum(each.workers for each in scenario.jobs) + number,
        )
        self.workers = [protocol.worker(self.job, worker) for worker in range(job.workers)]
        late = {straggler.worker: straggler.late_s for straggler in job.stragglers}
        self.hosts = [
            ProgramHost(worker, self.job, ps(job.start_s + late.get(n, 0.0)))
            for n, worker in enumerate(self.workers)
        ]

    def wrong(self, protocol: SlotProtocol) -> int:
        """Return the number of chunks with a wrong sum, over all workers."""
        wrong = 0
        for worker in self.workers:
            results = np.zeros_like(self.job.words[0])
            if worker.results:
                results[[*worker.results]] = [*worker.results.values()]
            wrong += protocol.wrong(self.job.words, results)
        return wrong


class ProgramHost:
    """A host that runs an endpoint. `done_at` is the picosecond of its last message."""

    def __init__(self, endpoint: Endpoint, job: SlotJob, start: int) -> None:
        self._endpoint, self._job, self._start = endpoint, job, start
        self.done_at = 0

    def next_time(self) -> int:
        """Return when the host starts, or its next timer."""
        due = self._endpoint.next_timer()
        return min(self._start, NEVER if due is None else ps(due) + 1)

    def run(self, arrivals: Arrivals | None, until: int) -> Outputs:
        """Process messages and timers before `until`. Raises SimulationError if a timer always runs out."""
        last_due, times_due = NEVER, 0
        sent: list[tuple[int, Message]] = []
        messages = [] if arrivals is None else unpack(arrivals.train.data)
        times: list[int] = [] if arrivals is None else arrivals.train.times.tolist()
        for at, message in [*zip(times, messages, strict=True), (until, None)]:
            while (due := self.next_time()) < at:
                if due == self._start:
                    self._start = NEVER
                    answers = self._endpoint.start(due / PS_PER_S)
                else:
                    times_due = times_due + 1 if due == last_due else 1
                    last_due = due
                    if times_due > MOST_SLOTS:
                        raise SimulationError(
                            f"{type(self._endpoint).__name__}.next_timer: returns {due / PS_PER_S:g} s after "
                            "each call of expire; return a later time, or None"
                        )
                    answers = self._endpoint.expire(due / PS_PER_S)
                sent += [(due, answer) for answer in answers]
            if message is not None:
                self.done_at = at
                sent += [(at, reply) for reply in self._endpoint.receive(message, at / PS_PER_S)]
        if not sent:
            return []
        data, sizes = pack(self._job, [message for _, message in sent])
        return [(PORT, Train(np.array([at for at, _ in sent], np.int64), sizes, data))]


def pack(job: SlotJob, messages: Sequence[Message]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the messages' UDP payloads, uint8[n, longest], and the bytes of their frames, int32[n].

    Raises SimulationError for a message that the header has no room for, or whose words are no lanes.
    """
    for message in messages:
        words = message.words
        if words.size and (words.dtype != np.uint32 or words.shape != (job.lanes,)):
            raise SimulationError(
                f"words: {words.dtype}{[*words.shape]} from worker {message.worker}; send uint32[{job.lanes}]"
            )
        for name, bits in _FIELD_BITS.items():
            if not 0 <= getattr(message, name) < 1 << bits:
                raise SimulationError(f"{name}: {getattr(message, name)}; give 0 to {(1 << bits) - 1}")
    end = _HEADER.itemsize + 4 * job.lanes
    rows = np.zeros((len(messages), _HEADER.itemsize + 4 * job.result_lanes), np.uint8)
    has_words = np.array([message.words.size > 0 for message in messages])
    flags = [message.flags if message.words.size else message.flags | EMPTY for message in messages]
    headers = [
        (job.number, job.workers, bits, m.worker, m.slot, m.port, m.chunk, m.extra)
        for m, bits in zip(messages, flags, strict=True)
    ]
    rows[:, : _HEADER.itemsize] = np.array(headers, _HEADER).view(np.uint8).reshape(len(rows), -1)
    lanes = [message.words for message in messages if message.words.size]
    rows[has_words, _HEADER.itemsize : end] = np.array(lanes, ">u4").reshape(-1, job.lanes).view(np.uint8)
    sizes = FRAME_HEADER_BYTES + _HEADER.itemsize + 4 * job.lanes * has_words
    return rows, sizes.astype(np.int32)


def unpack(data: NDArray[np.uint8]) -> list[Message]:
    """Return the messages of UDP payloads."""
    headers = np.ascontiguousarray(data[:, : _HEADER.itemsize]).view(_HEADER)[:, 0].tolist()
    lanes = np.ascontiguousarray(data[:, _HEADER.itemsize :]).view(">u4").astype(np.uint32)
    return [
        Message(chunk, NO_WORDS if flags & EMPTY else words, extra, slot, flags, worker, port)
        for (_, _, flags, worker, slot, port, chunk, extra), words in zip(headers, lanes, strict=True)
    ]
