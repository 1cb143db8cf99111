"""Build a scenario's network, run it, and report each job and every packet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from peelsum.control.description import SwitchMember, SwitchPlan
from peelsum.control.sections import SwitchSection
from peelsum.simulation.engine import Engine
from peelsum.simulation.hosts import OnSum, ServerHost, WorkerHost
from peelsum.simulation.links import LinkSpec, SimulatedLink
from peelsum.simulation.scenario import Job, Scenario
from peelsum.simulation.switches import CompiledSwitch, SpecifiedSwitch, SummingSwitch, refused
from peelsum.simulation.topologies import attach, connect_racks
from peelsum.simulation.trains import PS_PER_S
from peelsum.spec import SpecSwitch
from peelsum.transport import AggregationServer, JobConfig, WorkerEndpoint
from peelsum.wire import FRAME_HEADER_BYTES, MAX_WORKERS, Level, Verdict, packet_bytes

#: The first port of a switch that leads to a server, or to the spine.
UP_PORT = 256
_SALT_FACTOR = 0x9E3779B1
_GENERATION = 1

Words = NDArray[np.uint32]


@dataclass(frozen=True)
class SimulatedJob:
    """The results of one job."""

    job: int
    """Its number, from 1 on."""
    workers: int
    """Number of workers."""
    elements: int
    """Words of each sum."""
    sums: int
    """Sums that every worker has."""
    seconds: float
    """Mean simulated seconds of a sum, from the first start to the last result."""
    goodput_gbps: float
    """Gigabits of each worker's words summed per second."""
    in_switch: float
    """Share of chunks whose sum the switches completed."""
    contributions: int
    """Packets sent for the first time by workers."""
    resends: int
    """Packets that workers sent again."""
    results: int
    """Results that workers took."""
    marked: int
    """Results with an ECN mark."""
    rtt_us: float
    """Mean round trip of a chunk at worker 0, in microseconds."""
    window: int
    """Congestion window of worker 0 at the end, in chunks."""
    wrong: int
    """Sums with a wrong bit, over all workers."""


@dataclass(frozen=True)
class Report:
    """The results of a simulation. Two runs of one scenario compare equal."""

    jobs: tuple[SimulatedJob, ...]
    """One row for each job."""
    seconds: float
    """Simulated seconds until the last sum."""
    packets: dict[str, int]
    """Packets that switches processed, by the program's verdict, over all switches."""
    offered: int
    """Packets that came to links' queues, over all links."""
    delivered: int
    """Packets that arrived, or are under way at the end."""
    drops: dict[str, int]
    """Packets dropped, by reason: `queue_full` and `lost` by links, others by switches."""
    marked: int
    """Packets that queues marked."""
    octets: int
    """Bytes on all links."""
    deepest: int
    """Most packets that waited at one port of a switch."""
    wall_s: float = field(compare=False, default=0.0)
    """Seconds that the simulation took."""


@dataclass(eq=False)
class RunningJob:
    """A job in a simulation: its hosts, and what they have summed."""

    number: int
    job: Job
    config: JobConfig
    words: list[Words]
    sum: Words
    workers: list[WorkerHost] = field(default_factory=list)
    server: ServerHost | None = None
    done: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    wrong: int = 0

    @property
    def salt(self) -> int:
        """Slot of chunk 0 in every switch, before reduction."""
        return self.number * _SALT_FACTOR & 0xFFFFFFFF if self.job.salt is None else self.job.salt

    @property
    def finished(self) -> bool:
        """Whether every worker has all sums."""
        return min(self.done) >= self.job.sums

    def on_sum(self, worker: int) -> OnSum:
        """Return what checks a worker's sums and begins the next."""

        def check(ticket: int, words: Words, now: int) -> list[Words]:
            self.wrong += not np.array_equal(words, self.sum)
            self.done[worker] += 1
            self.ended[worker] = now
            begun = ticket + self._ahead
            return [self.words[worker]] if begun < self.job.sums else []

        return check

    @property
    def _ahead(self) -> int:
        """Sums that a worker has submitted at once: a long row of them leaves no gap between two."""
        return min(2, self.job.sums) if self.job.sums > 1 else 1

    def first_words(self, worker: int) -> list[Words]:
        """Return what a worker submits at its start."""
        return [self.words[worker]] * self._ahead


class Simulation:
    """A scenario's network in virtual time. All its randomness comes from the scenario's seed.

    step_ps: batch no more than so much time, for tests; results do not depend on it. link: as of `Engine`.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        step_ps: int | None = None,
        link: Callable[[LinkSpec, int, int], SimulatedLink] = SimulatedLink,
    ) -> None:
        self.scenario = scenario
        self.engine = Engine(scenario.seed, step_ps=step_ps, link=link)
        random = np.random.default_rng(scenario.seed)
        self.jobs = [_running(scenario, n, job, random) for n, job in enumerate(scenario.jobs, 1)]
        self.switches: list[SummingSwitch] = []
        self._connect()

    def run(self, on_step: Callable[[Simulation], None] | None = None) -> Report:
        """Run until every worker has every sum. Raises SimulationError if it has not by `limit_s`."""
        started = time.perf_counter()
        tell = None if on_step is None else (lambda: on_step(self))
        self.engine.run(lambda: all(job.finished for job in self.jobs), self.scenario.limit_s, tell)
        return self.report(time.perf_counter() - started)

    def progress(self) -> float:
        """Return the share of results that workers have."""
        chunks = [-(-job.job.elements // self.scenario.lanes) * job.job.sums for job in self.jobs]
        have = [sum(w.endpoint.stats().results for w in job.workers) / len(job.workers) for job in self.jobs]
        return sum(have) / sum(chunks)

    def report(self, wall_s: float = 0.0) -> Report:
        """Return what was done up to now."""
        links, verdicts = self.engine.total(), Counter[Verdict]()
        for switch in self.switches:
            verdicts.update(switch.verdicts())
        at_switches = [c for name, c in self.engine.counts().items() if not name.startswith("host")]
        return Report(
            jobs=tuple(_row(job) for job in self.jobs),
            seconds=max(max(job.ended) for job in self.jobs) / PS_PER_S,
            packets={verdict.name.lower(): count for verdict, count in sorted(verdicts.items())},
            offered=links.offered,
            delivered=links.delivered,
            drops={"queue_full": links.queue_full, "lost": links.lost, **refused(verdicts)},
            marked=links.marked,
            octets=links.octets,
            deepest=max(counts.deepest for counts in at_switches),
            wall_s=wall_s,
        )

    def _connect(self) -> None:
        """Add switches, workers and servers, and admit the jobs. With racks, each has a switch."""
        network, places, top = self.scenario.network, _places(self.scenario), self._switch()
        homes = [top]
        if network.racks > 1:
            homes = [self._switch() for _ in range(network.racks)]
            hosts = [sum(len(job[rack]) for job in places) for rack in range(network.racks)]
            connect_racks(self.engine, network, top, homes, hosts, UP_PORT)
        free_port = [1] * len(homes)
        for job, by_rack in zip(self.jobs, places, strict=True):
            returns: dict[int, int] = {}
            plan = partial(SwitchPlan, SwitchSection(), job.config.job_id, job.job.window)
            for rack, home in enumerate(homes):
                first, local = free_port[rack], by_rack[rack]
                free_port[rack] += len(local)
                ids = range(rack * MAX_WORKERS, rack * MAX_WORKERS + len(local))
                members = tuple(SwitchMember(first + k, 1 << k, worker) for k, worker in enumerate(ids))
                returns |= dict.fromkeys(ids, 1 + rack)
                back = {worker: port for port, worker in enumerate(ids, first)}
                level, up = (Level.ONLY, self._server_port(job)) if home is top else (Level.LEAF, UP_PORT)
                home.admit(plan(level, up, members, back), _GENERATION, job.salt)
                for port, worker in enumerate(local, first):
                    self._attach_worker(job, worker, home, port)
            if homes != [top]:
                racks = tuple(
                    SwitchMember(1 + rack, 1 << rack, rack * MAX_WORKERS, is_rack=True)
                    for rack in range(network.racks)
                )
                spine = plan(Level.SPINE, self._server_port(job), racks, returns)
                top.admit(spine, _GENERATION, job.salt)
        self._attach_servers(top)

    def _server_port(self, job: RunningJob) -> int:
        return UP_PORT + (0 if self.scenario.shared_server else job.number)

    def _switch(self) -> SummingSwitch:
        scenario = self.scenario
        switch: SummingSwitch = (
            CompiledSwitch(scenario.lanes)
            if scenario.compiled
            else SpecifiedSwitch(SpecSwitch(scenario.lanes, scenario.slots))
        )
        self.engine.add(switch)
        self.switches.append(switch)
        return switch

    def _attach_worker(self, job: RunningJob, worker: int, switch: SummingSwitch, port: int) -> None:
        odd = next((straggler for straggler in job.job.stragglers if straggler.worker == worker), None)
        start_s = job.job.start_s + (odd.late_s if odd else 0.0)
        endpoint = WorkerEndpoint(job.config, job.config.worker_ids[worker])
        host = WorkerHost(endpoint, job.first_words(worker), job.on_sum(worker), start_s=start_s)
        job.workers.append(host)
        name, gbps = f"job {job.number} worker {worker}", odd.gbps if odd else None
        attach(self.engine, self.scenario.network, host, switch, port, name, gbps)

    def _attach_servers(self, switch: SummingSwitch) -> None:
        each = [self.jobs] if self.scenario.shared_server else [[job] for job in self.jobs]
        for jobs in each:
            host = ServerHost([AggregationServer(job.config) for job in jobs])
            name = "server" if self.scenario.shared_server else f"server {jobs[0].number}"
            port = self._server_port(jobs[0])
            attach(self.engine, self.scenario.network, host, switch, port, name, None)
            for job in jobs:
                job.server = host


def simulate(scenario: Scenario, on_step: Callable[[Simulation], None] | None = None) -> Report:
    """Run a scenario to its end and report. Raises SimulationError if it does not end by `limit_s`."""
    return Simulation(scenario).run(on_step)


def frame_bytes(lanes: int) -> int:
    """Return the bytes of a chunk's frame, from Ethernet header to last lane."""
    return FRAME_HEADER_BYTES + packet_bytes(lanes)


def _places(scenario: Scenario) -> list[list[range]]:
    """Return each job's workers by rack, numbered over all racks, divided evenly."""
    racks = scenario.network.racks
    return [
        [range(rack * job.workers // racks, (rack + 1) * job.workers // racks) for rack in range(racks)]
        for job in scenario.jobs
    ]


def _running(scenario: Scenario, number: int, job: Job, random: np.random.Generator) -> RunningJob:
    racks = scenario.network.racks
    sizes = tuple(len(rack) for rack in _places(scenario)[number - 1]) if racks > 1 else ()
    config = JobConfig(
        job_id=number,
        generation=_GENERATION,
        workers=job.workers,
        lanes=scenario.lanes,
        window=job.window,
        initial_window=job.initial_window,
        racks=sizes,
        timers=job.timers.timers(),
    )
    words = [random.integers(0, 1 << 32, job.elements, np.uint32) for _ in range(job.workers)]
    # Whole numbers of 64 bits: independent of the wrap that hosts and switches rely on.
    expected: Words = np.array(np.sum(words, axis=0, dtype=np.uint64) & np.uint64(0xFFFFFFFF), np.uint32)
    return RunningJob(number, job, config, words, expected, done=[0] * job.workers, ended=[0] * job.workers)


def _row(job: RunningJob) -> SimulatedJob:
    stats = [host.endpoint.stats() for host in job.workers]
    assert job.server is not None
    served = job.server.servers[job.config.job_id].stats()
    sums, chunks = min(job.done), served.chunks_in_switch + served.chunks_at_server
    seconds = max(job.ended) / PS_PER_S - job.job.start_s
    bits = 32 * job.job.elements * sums
    return SimulatedJob(
        job=job.number,
        workers=job.job.workers,
        elements=job.job.elements,
        sums=sums,
        seconds=seconds / sums if sums else 0.0,
        goodput_gbps=bits / seconds / 1e9 if sums else 0.0,
        in_switch=served.chunks_in_switch / chunks if chunks else 0.0,
        contributions=sum(worker.contributions for worker in stats),
        resends=sum(worker.resends for worker in stats),
        results=sum(worker.results for worker in stats),
        marked=sum(worker.marked for worker in stats),
        rtt_us=1e6 * (stats[0].rtt_mean or 0.0),
        window=stats[0].window,
        wrong=job.wrong,
    )
