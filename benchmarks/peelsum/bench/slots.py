"""Jobs that share fewer slots than they need, in virtual time: the specification's switch, real hosts.

Every host has a link of its own, with a rate and a delay, and every job has its own server. So jobs share
nothing but slots. Two runs with one seed are identical, event by event. `share_slots_atp` runs the model of
ATP on such links.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np

from peelsum.bench.fairness.scene import jain
from peelsum.simulation import Job, NetworkSection, Scenario, TimersSection
from peelsum.simulation.simulation import frame_bytes
from peelsum.simulation.slot_model import run_protocol
from peelsum.simulation.slot_protocols import PROTOCOLS
from peelsum.spec import SpecSwitch
from peelsum.transport import AggregationServer, Event, JobConfig, TensorCompleted, WorkerEndpoint
from peelsum.wire import CPU_PORT, Batch, Kind, pack

#: Words of a chunk. Few, because the specification adds them one by one; times count whole packets.
LANES = 4
#: Seconds that a link takes to send one packet.
PACKET_S = 1e-6
#: Packets that a host sends or gets at once.
_BURST = 16
#: Ports of a job: its server's, and from the next one on its workers'.
_PORTS_A_JOB = 64
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Scene:
    """Jobs that each sum one tensor."""

    slots: int
    """Slots of the switch: a power of two, at least 256."""
    jobs: int
    outstanding: int
    """Chunks that all jobs together may have under way."""
    workers: int = 2
    """Workers of a job."""
    windows: int = 3
    """Length of a tensor, in windows of its job."""
    seed: int = 0
    """Determines words, and where each job's chunks begin among the slots."""
    full: bool = False
    """Whether jobs start with all outstanding chunks, on links so long that these hold slots at one time.

    Otherwise they start with at most 128 chunks, and links take 0.1 ms.
    """

    @property
    def window(self) -> int:
        """Chunks that a job may have under way."""
        return self.outstanding // self.jobs

    @property
    def initial_window(self) -> int:
        """Chunks that a job may have under way at its start."""
        return self.window if self.full else min(self.window, 128)

    @property
    def delay_s(self) -> float:
        """Seconds of a link. A slot is held from the switch to the server and back, which is two links."""
        return self.outstanding * PACKET_S / 2 if self.full else 100e-6


@dataclass(frozen=True)
class Shares:
    """The results of a scene's jobs."""

    chunks_per_s: tuple[float, ...]
    """Chunks summed per second of virtual time, by job."""
    at_server: float
    """Share of all chunks that a server summed, because the switch could not."""
    packets_to_servers: float
    """Packets that reached a server, for each chunk."""
    fairness: float
    """Jain's index of `chunks_per_s`."""
    wrong: int
    """Words, or ATP's chunks, that differ from an independent sum, at all workers."""


class _Host:
    def __init__(self, port: int, machine: WorkerEndpoint | AggregationServer) -> None:
        self.port, self.machine = port, machine
        self.up_free_at = self.down_free_at = 0.0
        self.wakes_at: float | None = None
        self.arrived = 0


class _Running:
    """A switch, its hosts, and a clock that only events advance."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.now, self.wrong = scene, 0.0, 0
        self._switch = SpecSwitch(LANES, scene.slots)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbered, self._random = 0, Random(scene.seed)
        self._hosts: dict[int, _Host] = {}
        self._left = [scene.workers] * scene.jobs
        self._ended_at = [0.0] * scene.jobs
        words = np.random.default_rng(scene.seed)
        shape = (scene.workers, scene.windows * scene.window * LANES)
        self._words = words.integers(0, 1 << 32, shape, np.uint32)
        self._sum = self._words.sum(0, dtype=np.uint32)
        for job in range(scene.jobs):
            self._admit(job)

    def run(self) -> Shares:
        """Run until every worker has its sum. Raises RuntimeError if that takes too long."""
        while any(self._left):
            self.now, _, action = heapq.heappop(self._events)
            if self.now > _PATIENCE_S:
                raise RuntimeError(f"slots: not done after {_PATIENCE_S:g} virtual seconds; report this")
            action()
        scene = self.scene
        servers = [self._hosts[_PORTS_A_JOB * (job + 1)] for job in range(scene.jobs)]
        at_server = sum(_summed_by(server.machine) for server in servers)
        chunks = scene.jobs * scene.windows * scene.window
        rates = tuple(chunks / scene.jobs / ended for ended in self._ended_at)
        arrived = sum(server.arrived for server in servers)
        return Shares(rates, at_server / chunks, arrived / chunks, jain(rates), self.wrong)

    def _admit(self, number: int) -> None:
        """Admit a job on the switch, as the controller does, and start its workers."""
        scene, first = self.scene, _PORTS_A_JOB * (number + 1)
        job = JobConfig(
            number + 1,
            1,
            workers=scene.workers,
            lanes=LANES,
            window=scene.window,
            initial_window=scene.initial_window,
        )
        salt = self._random.randrange(scene.slots)
        self._switch.admit_job(
            job.job_id,
            generation=1,
            salt=salt,
            expected_mask=job.expected_mask,
            up_port=first,
            group=job.job_id,
        )
        self._switch.admit_server(job.job_id, first)
        ports = range(first + 1, first + 1 + scene.workers)
        self._switch.set_group(job.job_id, list(ports))
        self._hosts[first] = _Host(first, AggregationServer(job))
        for worker, port in enumerate(ports):
            self._switch.admit_worker(job.job_id, port, worker_mask=1 << worker, worker_id=worker)
            self._switch.return_to(job.job_id, worker, port)
            endpoint = WorkerEndpoint(job, worker)
            endpoint.submit(self._words[worker], "add")
            self._hosts[port] = host = _Host(port, endpoint)
            self._at(0.0, partial(self._send, host))
        if number == 0:
            free = pack(
                np.zeros((scene.slots, LANES), np.uint32), kind=Kind.RESET, chunk_id=range(scene.slots)
            )
            for packet in free:
                self._switch.process(CPU_PORT, packet.tobytes())

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._numbered += 1
        heapq.heappush(self._events, (time, self._numbered, action))

    def _send(self, host: _Host) -> None:
        """Put a host's packets on its link, and schedule its next timer."""
        while len(batch := host.machine.to_send(self.now, limit=_BURST)):
            host.up_free_at = max(self.now, host.up_free_at) + len(batch) * PACKET_S
            # A copy, because the host reuses the batch's memory.
            self._at(host.up_free_at + self.scene.delay_s, partial(self._at_switch, host.port, batch.copy()))
        due = host.machine.next_timer()
        if due is not None and (host.wakes_at is None or due < host.wakes_at):
            host.wakes_at = max(due, self.now)
            self._at(host.wakes_at, partial(self._wake, host, host.wakes_at))

    def _wake(self, host: _Host, due: float) -> None:
        if host.wakes_at == due:
            host.wakes_at = None
            self._note(host, host.machine.expire(self.now))
            self._send(host)

    def _at_switch(self, port: int, batch: Batch) -> None:
        """Process a burst; each receiver gets its part of what leaves as one burst."""
        leaving: dict[int, list[bytes]] = {}
        for packet in batch:
            for out, payload in self._switch.process(port, packet.tobytes(), int(self.now * 1e6)):
                leaving.setdefault(out, []).append(payload)
        for out, payloads in leaving.items():
            host = self._hosts[out]
            host.down_free_at = max(self.now, host.down_free_at) + len(payloads) * PACKET_S
            burst = np.frombuffer(bytearray(b"".join(payloads)), np.uint8).reshape(len(payloads), -1)
            self._at(host.down_free_at + self.scene.delay_s, partial(self._at_host, host, burst))

    def _at_host(self, host: _Host, batch: Batch) -> None:
        host.arrived += len(batch)
        self._note(host, host.machine.receive(batch, self.now))
        self._send(host)

    def _note(self, host: _Host, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TensorCompleted) and isinstance(host.machine, WorkerEndpoint):
                self.wrong += int(np.count_nonzero(event.words != self._sum))
                job = host.machine.config.job_id - 1
                self._left[job] -= 1
                self._ended_at[job] = self.now


def _summed_by(machine: WorkerEndpoint | AggregationServer) -> int:
    return machine.stats().chunks_at_server if isinstance(machine, AggregationServer) else 0


def share_slots(scene: Scene) -> Shares:
    """Run a scene to its end."""
    return _Running(scene).run()


def share_slots_atp(scene: Scene) -> Shares:
    """Run the model of ATP for a scene to its end. Its slots are hashed; the seed decides only the words."""
    job = Job(
        workers=scene.workers,
        elements=LANES * scene.windows * scene.window,
        window=scene.window,
        initial_window=scene.initial_window,
        # The model's time-out is fixed, and longer than a round trip, queues included.
        timers=TimersSection(resend_least=20 * scene.delay_s, resend_most=1.0),
    )
    network = NetworkSection(
        gbps=8e-9 * frame_bytes(LANES) / PACKET_S,
        delay_us=1e6 * scene.delay_s,
        queue=1 << 20,
        mark_from=1 << 30,
    )
    jobs = (job,) * scene.jobs
    row = run_protocol(
        Scenario(seed=scene.seed, lanes=LANES, slots=scene.slots, network=network, jobs=jobs),
        "atp",
        PROTOCOLS["atp"],
    )
    chunks = scene.windows * scene.window
    rates = tuple(chunks / seconds for seconds in row.job_seconds)
    to_servers = row.to_servers / (chunks * scene.jobs)
    return Shares(rates, 1 - row.in_switch, to_servers, jain(rates), row.wrong)
