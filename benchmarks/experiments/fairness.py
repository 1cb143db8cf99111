"""How jobs share a port of the switch, and the port's queue: in virtual time, and over UDP.

Every job has worker ports of its own; one port of `mbit` Mbit/s leads to the servers of all jobs, which
compete for it. It sets ECN marks from `mark_from` waiting packets on. `virtual` is virtual time, `udp` a
process.

In virtual time two runs are identical packet by packet. Over UDP, the softswitch is a process, workers and
servers are threads.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import Experiment, Size
from peelsum.control import ControlError, JobDescription
from peelsum.control.cluster import JobController
from peelsum.processes.children import Child
from peelsum.simulation import Job, NetworkSection, Scenario, Simulation
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, QueueCounts
from peelsum.summation import Part
from peelsum.topology.errors import TopologyError
from peelsum.transport import AggregationServer, JobConfig, SwitchSummation, TransportError, job_config
from peelsum.transport.warming import warm_up
from peelsum.wire import COMPILED_LANES, FRAME_HEADER_BYTES, packet_bytes, packet_fields
from peelsum.wire.datagrams import Address, BatchSocket

_STALL_S = 30.0
#: Longest wait between hellos of a server that receives nothing.
_HELLO_GAP_S = 0.1
#: Delay of a link in microseconds, in addition to its rate.
HOP_US = 10.0
#: More sums than a scene has time for.
_ENDLESS = 1 << 30
#: The link from the switch to the servers of all jobs.
SERVERS = "to server"


@dataclass(frozen=True)
class PortScene:
    """Jobs that always have more to sum, with one port to the servers of all."""

    jobs: int
    workers: int = 2
    """Workers per job."""
    lanes: int = 256
    mbit: float = 20.0
    """Rate of every port in Mbit/s."""
    mark_from: int = 64
    """Packets in a port's queue from which on it sets ECN marks."""
    queue_limit: int = QUEUE_LIMIT
    """Packets that a port's queue holds."""
    window: int = 512
    chunks: int = 1000
    """Chunks per sum."""
    settle_s: float = 0.5
    """Seconds before the measurement."""
    seconds: float = 2.0
    """Duration of the measurement."""

    @property
    def server_port(self) -> int:
        """The servers' port, after the workers' ports."""
        return self.jobs * self.workers + 1

    def worker_ports(self, job: int) -> range:
        """Return the ports of one job's workers, in order; jobs are numbered from 0."""
        return range(job * self.workers + 1, (job + 1) * self.workers + 1)

    @property
    def frame_s(self) -> float:
        """Seconds that a port takes to send one chunk's frame."""
        return 8 * (FRAME_HEADER_BYTES + packet_bytes(self.lanes)) / (self.mbit * 1e6)

    def row(
        self, before: Sequence[float], after: Sequence[float], wrong: int, queue: QueueCounts
    ) -> dict[str, Any]:
        """Return a row of the chunks that each job has summed at the measurement's beginning and end.

        wrong: sums with a wrong bit, and queue: counts of the servers' port, both since the scene's start.
        """
        rates = [(last - first) / self.seconds for first, last in zip(before, after, strict=True)]
        return {
            "chunks_per_s": tuple(round(rate, 1) for rate in rates),
            "fairness": round(jain(rates), 4),
            "used": round(sum(rates) * self.frame_s, 4),
            "queue_mean": round(queue.mean, 1),
            "queue_deepest": queue.deepest,
            "queue_dropped": queue.dropped,
            "wrong": wrong,
        }


def jain(rates: Sequence[float]) -> float:
    """Return Jain's index of fairness (DEC-TR-301); 0 if all rates are 0.

    It is 1 if all are equal, and 1/n if one of n jobs has everything.
    """
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def simulated(scene: PortScene) -> dict[str, Any]:
    """Run a scene in virtual time; return its row."""
    network = virtual_network(scene)
    network.engine.run_until(scene.settle_s)
    before = summed(network)
    network.engine.run_until(scene.settle_s + scene.seconds)
    wrong = sum(job.wrong for job in network.jobs)
    return scene.row(before, summed(network), wrong, queue(network))


def virtual_network(scene: PortScene, starts_s: Sequence[float] | None = None) -> Simulation:
    """Return the scene's simulation. `starts_s` are the jobs' start times; by default, all start at once."""
    network = NetworkSection(
        gbps=scene.mbit / 1000, delay_us=HOP_US, queue=scene.queue_limit, mark_from=scene.mark_from
    )
    jobs = tuple(
        Job(
            workers=scene.workers,
            elements=scene.chunks * scene.lanes,
            window=scene.window,
            sums=_ENDLESS,
            start_s=start_s,
        )
        for start_s in starts_s or [0.0] * scene.jobs
    )
    return Simulation(Scenario(lanes=scene.lanes, shared_server=True, network=network, jobs=jobs))


def summed(network: Simulation) -> list[float]:
    """Return the number of chunks that each job has summed, the mean over its workers."""
    stats = [[host.endpoint.stats() for host in job.workers] for job in network.jobs]
    return [sum(endpoint.results for endpoint in job) / len(job) for job in stats]


def queue(network: Simulation) -> QueueCounts:
    """Return the counts of the servers' port since the start."""
    counts = network.engine.links[SERVERS].counts()
    return QueueCounts(counts.delivered, counts.queue_full, counts.mean, counts.deepest)


def over_udp(scene: PortScene) -> dict[str, Any]:
    """Run a scene over loopback; return its row. Raises TopologyError if a component fails."""
    options = ("--ports", str(scene.server_port), "--p4runtime", "127.0.0.1:0")
    rates = ("--port-rate", str(scene.mbit), "--port-queue", str(scene.queue_limit))
    switch = Child.peelsum("switch", "switch", "run", *options, *rates, "--json", "--child")
    try:
        at = switch.ready()
        configs = admit(f"{at['host']}:{at['grpc_port']}", scene)
        ports = {int(port): (at["host"], udp) for port, udp in at["udp_ports"].items()}
        with ExitStack() as stack:
            stack.enter_context(_served(configs, ports[scene.server_port]))
            jobs = list[_Job]()
            for number, config in enumerate(configs):
                jobs.append(_Job(scene, config, [ports[port] for port in scene.worker_ports(number)]))
                stack.callback(jobs[-1].join)
            time.sleep(scene.settle_s)
            before = [job.summed() for job in jobs]
            time.sleep(scene.seconds)
            after = [job.summed() for job in jobs]
    finally:
        report = switch.stop()
    for job in jobs:
        if job.errors:
            raise TopologyError(f"job {job.config.job_id}: {job.errors[0]}") from job.errors[0]
    counts = QueueCounts(**report["queues"][str(scene.server_port)])
    return scene.row(before, after, sum(job.wrong for job in jobs), counts)


def admit(address: str, scene: PortScene) -> list[JobConfig]:
    """Load the pipeline into the switch at P4Runtime address `address`, and admit the scene's jobs."""
    switch = {"p4runtime": address, "pipeline_lanes": scene.lanes, "queue_depth": scene.mark_from}
    admitted = []
    try:
        with JobController() as jobs:
            for job in range(scene.jobs):
                ports = {"server": scene.server_port, "workers": list(scene.worker_ports(job))}
                about = {"id": job + 1, "workers": scene.workers, "window": scene.window}
                description = JobDescription.model_validate({"job": about, "switch": switch, "ports": ports})
                # All jobs' servers have one port, so it has no secret.
                admitted.append(jobs.admit_job(description, free=False, secret=""))
    except ControlError as error:
        raise TopologyError(str(error)) from error
    return [job_config({**admission, "timeout_s": _STALL_S}) for admission in admitted]


@contextmanager
def _served(configs: Sequence[JobConfig], address: Address) -> Iterator[None]:
    """Run the servers of all jobs, behind one port, during the body."""
    lanes = configs[0].lanes
    warm_up(lanes)
    ended = threading.Event()
    with BatchSocket.bind(("127.0.0.1", 0), packet_bytes(lanes)) as sock:
        sock.connect(address)
        servers = {config.job_id: AggregationServer(config) for config in configs}
        thread = threading.Thread(target=_serve, args=(servers, lanes, sock, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _serve(
    servers: Mapping[int, AggregationServer], lanes: int, sock: BatchSocket, ended: threading.Event
) -> None:
    """Give each server its job's packets; what the kernel's buffer does not take is lost."""
    while not ended.is_set():
        timers = [due for server in servers.values() if (due := server.next_timer()) is not None]
        wait = min(timers, default=np.inf) - time.monotonic()
        if not select.select([sock], [], [], max(0.0, min(wait, _HELLO_GAP_S)))[0]:
            sock.send_hello()  # a switch sends to a port's host once it has heard of it
        now = time.monotonic()
        while (burst := sock.receive()) is not None:
            job_ids = packet_fields(burst.packets, lanes)["job_id"]
            for job_id, server in servers.items():
                server.receive(np.ascontiguousarray(burst.packets[job_ids == job_id]), now)
        for server in servers.values():
            server.expire(now)
            while len(batch := server.to_send(now)):
                sock.send(batch)


class _Job:
    """The workers of one job, a thread each, which sum repeatedly until `join`."""

    def __init__(self, scene: PortScene, config: JobConfig, addresses: Sequence[Address]) -> None:
        self.config, self.wrong, self.errors = config, 0, list[TransportError]()
        shape = (scene.workers, scene.chunks * scene.lanes)  # seeded, and the same words for every job
        self._words = np.random.default_rng(scene.jobs).integers(0, 1 << 32, shape, np.uint32)
        self._lock, self._rounds, self._ending = threading.Lock(), 0, False
        self._summations: list[SwitchSummation] = []
        self._threads = [threading.Thread(target=self._work, args=each) for each in enumerate(addresses)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Let the workers finish their sums, and begin no others."""
        self._ending = True
        for thread in self._threads:
            thread.join()

    def summed(self) -> float:
        """Return the number of chunks summed so far, the mean over workers."""
        return sum(summation.stats().results for summation in self._summations) / len(self._threads)

    def _work(self, worker: int, address: Address) -> None:
        part, expected, rounds = Part(self._words[worker], "add"), self._words.sum(0, dtype=np.uint32), 0
        try:
            with SwitchSummation(self.config, worker, address) as summation:
                self._summations.append(summation)
                while self._may_begin(rounds):
                    (result,) = summation.sum_words([part])
                    self.wrong += not np.array_equal(result, expected)
                    rounds += 1
        except TransportError as error:
            self.errors.append(error)

    def _may_begin(self, rounds: int) -> bool:
        """Return whether another sum follows `rounds` sums; the answer is the same for all workers."""
        with self._lock:
            if not self._ending:
                self._rounds = max(self._rounds, rounds + 1)
            return rounds < self._rounds


PLAYED = {"virtual": simulated, "udp": over_udp}


def measure(
    seed: int, ports: str, jobs: int, workers: int, lanes: int, mbit: float, mark_from: int, seconds: float
) -> dict[str, Any]:
    """Run one scene."""
    scene = PortScene(jobs, workers, lanes, mbit, mark_from, settle_s=seconds / 4, seconds=seconds)
    return PLAYED[ports](scene)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "chunks_per_s": "chunks summed per second, by job",
        "fairness": "Jain's index of `chunks_per_s`",
        "used": "share of the servers' port's capacity that was used",
        "queue_mean": "mean queue at the servers' port, in packets, since its start",
        "queue_deepest": "deepest queue there",
        "queue_dropped": "packets dropped there",
        "wrong": "sums with a wrong bit",
    },
    defaults={"ports": tuple(PLAYED), "workers": 2, "lanes": 256, "mbit": 20.0, "mark_from": 64},
    sizes={
        "quick": Size([{"ports": "virtual", "jobs": 2, "seconds": 0.5}], 1),
        "usual": Size([{"jobs": (2, 4), "seconds": 4.0}], 1),
    },
    ranges={
        "workers": (2, 15),
        "jobs": (1, 16),
        "mbit": (1, 10_000),
        "mark_from": (0, 1 << 18),
        "seconds": (0.01, 3600),
    },
    choices={"lanes": COMPILED_LANES, "ports": tuple(PLAYED)},
)
