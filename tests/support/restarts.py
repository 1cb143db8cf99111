"""A virtual network whose parts fail and restart, with jobs whose sums must stay exact.

Plays the controller after each failure, computes each job's expected sums, and counts the packets of hosts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from rounds import LANES, SLOTS, TIMERS, Round, stray
from virtual_network import Actor, Faults, VirtualNetwork

from peelsum.spec import SpecSwitch
from peelsum.transport import AggregationServer, JobConfig, WorkerEndpoint
from peelsum.wire import Kind, Verdict, pack
from peelsum.wire.clock import TICK_US

LONGEST_RTO = TIMERS.resend_most
#: Everything dropped: a cut.
CUT = Faults(drop=1.0)
PROBER, PROBER_PORT = 99, 253


@dataclass
class JobUnderTest:
    """One job: the hosts of this generation, their current rounds, and the packets of earlier hosts."""

    config: JobConfig
    server_port: int
    salt: int
    rounds: list[Round] = field(default_factory=list)
    workers: list[Actor] = field(default_factory=list)
    submitted: list[int] = field(default_factory=list)
    packets_before: int = 0
    chunks: int = 0
    strays: int = 0

    def chunks_of(self, one: Round) -> int:
        """Return the number of chunks of one tensor."""
        return -(-one.inputs[0].size // self.config.lanes)

    def check(self) -> None:
        """Assert that all results so far are exact."""
        for actor in self.workers:
            for ticket, words in actor.sums.items():
                np.testing.assert_array_equal(words, self.rounds[ticket].expected)

    @property
    def done(self) -> bool:
        """Return whether every worker has every sum."""
        return all(len(actor.sums) == len(self.rounds) for actor in self.workers)


class FailingNetwork(VirtualNetwork):
    """One switch, or racks below a spine, with two or more jobs, and failures."""

    def __init__(self, seed: int, faults: Faults, age: int, racks: int) -> None:
        super().__init__(seed, lanes=LANES, slots=SLOTS, faults=faults, age_limit=age, racks=racks)
        self.age_limit = age
        self.jobs: list[JobUnderTest] = []
        self.outage = 0.0

    # -- jobs ------------------------------------------------------------------------------------------

    def start(self, job: JobUnderTest) -> None:
        """Admit a new job, or a job's new generation."""
        if job not in self.jobs:
            self.jobs.append(job)
        job.workers = self.admit(job.config, job.server_port, job.salt)
        job.submitted = [0] * len(job.workers)

    def submit(self, job: JobUnderTest, one: Round) -> None:
        """Submit a tensor at each worker, at the worker's own time."""
        job.rounds.append(one)
        job.chunks += job.chunks_of(one)
        self._see_to_submission(job)

    def _see_to_submission(self, job: JobUnderTest) -> None:
        generation = job.config.generation
        for worker in range(len(job.workers)):
            late = self.random.choice([0.0, 0.0, self.random.uniform(0, 0.05)])
            self.at(self.now + late, lambda worker=worker: self._submit_next(job, worker, generation))

    def _submit_next(self, job: JobUnderTest, worker: int, generation: int) -> None:
        if generation != job.config.generation or job.submitted[worker] == len(job.rounds):
            return
        number = job.submitted[worker]
        one, actor = job.rounds[number], job.workers[worker]
        assert actor.machine.submit(one.inputs[worker], one.op) == number
        job.submitted[worker] += 1
        self.poke(actor)

    def sent(self, job: JobUnderTest) -> int:
        """Return the number of packets that the job's hosts have sent, lost ones included."""
        server = self.actors[job.server_port].machine
        return job.packets_before + sum(map(_sent_by, [server, *(a.machine for a in job.workers)]))

    def stray(self, job: JobUnderTest, worker: int, kind: Kind, far: int) -> None:
        """Send a packet from one of the job's ports, with a chunk id `far` from all of the job's."""
        job.strays += 1
        actor = job.workers[worker % len(job.workers)]
        packet = stray(job.config, actor.machine.worker_id, job.config.first_chunk + far, kind)
        self.send(actor.port, packet)

    # -- failures --------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Run the network for this long."""
        over: list[bool] = []
        self.at(self.now + seconds, lambda: over.append(True))
        self.run_until(
            lambda: bool(over), seconds=self.now + seconds + 1, packets=self.engine.packets + 200_000
        )

    def pass_outage(self, seconds: float) -> None:
        """Run the network for this long, as time in which no progress is expected."""
        self.outage += seconds
        self.pass_time(seconds)

    def restart_worker(self, job: JobUnderTest, gap: float) -> None:
        """Restart a worker without its state; the job resumes at the first tensor that a worker lacks."""
        job.check()
        job.packets_before = self.sent(job)
        for actor in (self.actors[job.server_port], *job.workers):
            actor.alive = False
        for switch in self.switches:
            switch.jobs.pop(job.config.job_id, None)
        self.pass_outage(gap)
        self.reset_slots()
        self.pass_outage(gap)
        job.rounds = [one.recomputed() for one in job.rounds[min(map(_first_missing, job.workers)) :]]
        job.chunks += sum(job.chunks_of(one) for one in job.rounds)
        job.config = replace(job.config, generation=(job.config.generation + 1) & 0xFFFF)
        self.start(job)
        for _ in job.rounds:
            self._see_to_submission(job)

    def fail_server(self, job: JobUnderTest, gap: float) -> None:
        """Stop the server for a while, then start it without state."""
        actor = self.actors[job.server_port]
        actor.alive = False
        self.pass_outage(gap)
        job.packets_before += _sent_by(actor.machine)
        self.restart_server(job.server_port)
        actor.alive = True

    def fail_switch(self, which: int, gap: float) -> None:
        """Restart a switch empty; the controller restores its tables later."""
        switch = self.switches[which % len(self.switches)]
        switch.__init__(self.lanes, self.slots)  # type: ignore[misc]
        switch.set_age_limit(self.age_limit)
        self.pass_outage(gap)
        for job in self.jobs:
            self._put_back(job)

    def _put_back(self, job: JobUnderTest) -> None:
        actors = {port: self.actors[port] for port in (job.server_port, *(a.port for a in job.workers))}
        self.admit(job.config, job.server_port, job.salt)
        self.actors.update(actors)

    def cut(self, gap: float) -> None:
        """Drop all packets for a while."""
        faults, self.faults = self.faults, CUT
        self.pass_outage(gap)
        self.faults = faults

    # -- the end ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Run until every worker has every sum and no packet is in flight."""
        self.run_until(self._done, seconds=self.now + 60, packets=self.engine.packets + 500_000)
        for job in self.jobs:
            job.check()
            job.packets_before = self.sent(job)
            for port in (job.server_port, *(actor.port for actor in job.workers)):
                self.actors[port].alive = False
        self.pass_time(0.5)

    def _done(self) -> bool:
        return all(job.done for job in self.jobs)

    def all_slots_claimable(self) -> bool:
        """Return whether every slot takes a new job's contribution once the age limit has passed."""
        return all(self._claimable_slots(switch) == self.slots for switch in self.switches)

    def _claimable_slots(self, switch: SpecSwitch) -> int:
        switch.admit_job(PROBER, generation=0, salt=0, expected_mask=3, up_port=PROBER_PORT, group=PROBER)
        switch.admit_worker(PROBER, PROBER_PORT, worker_mask=1, worker_id=0)
        batch = pack(
            np.zeros((self.slots, self.lanes), np.uint32),
            kind=Kind.CONTRIBUTION,
            job_id=PROBER,
            chunk_id=range(self.slots),
        )
        before = switch.verdicts[Verdict.ABSORBED]
        now_us = int(self.now * 1e6) + (self.age_limit + 1) * TICK_US
        for packet in batch:
            switch.process(PROBER_PORT, packet.tobytes(), now_us)
        return switch.verdicts[Verdict.ABSORBED] - before


def _first_missing(actor: Actor) -> int:
    """Return the first tensor whose sum a worker lacks."""
    return next(ticket for ticket in range(len(actor.sums) + 1) if ticket not in actor.sums)


def _sent_by(machine: WorkerEndpoint | AggregationServer) -> int:
    stats = machine.stats()
    if isinstance(machine, WorkerEndpoint):
        return stats.contributions + stats.resends
    return stats.results + stats.replies + stats.resends + stats.needs
