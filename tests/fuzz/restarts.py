"""A virtual network whose parts fail and come back, and the jobs that must not notice.

Owns what a controller does about a failure, what each job's sums must be, and how many packets hosts sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from rigs import EmbeddedRig
from virtual_network import Actor, Faults, VirtualNetwork, Words

from peelsum.spec import TICK_US, SpecSwitch
from peelsum.transport import AggregationServer, JobConfig, Op, Timers, WorkerEndpoint
from peelsum.wire import CPU_PORT, Kind, Verdict, pack

TIMERS = Timers(
    first_answer=0.02, resend_least=0.002, resend_most=0.1, need=0.004, need_most=0.1, linger=1.0, stall=50.0
)
LONGEST_RTO = TIMERS.resend_most
#: Everything dropped: a cut.
CUT = Faults(drop=1.0)
PROBER, PROBER_PORT = 99, 200


class SpecUnderTest(SpecSwitch):
    """The specification, with what a power failure and a controller do to it."""

    def withdraw(self, job_id: int) -> None:
        """Take a job's row away."""
        self.jobs.pop(job_id, None)

    def lose_everything(self) -> None:
        """Registers and tables as after power-up."""
        limit = self.age_limit
        self.__init__(self.lanes, self.slots)  # type: ignore[misc]
        self.set_age_limit(limit)

    def reset_all(self, now_us: int) -> None:
        """Free every slot, one PacketOut each."""
        for packet in resets(self.lanes, self.slots):
            assert self.process(CPU_PORT, packet.tobytes(), now_us)

    def absorbed(self) -> int:
        """Contributions absorbed so far."""
        return self.verdicts[Verdict.ABSORBED]


class EmbeddedUnderTest(EmbeddedRig):
    """The compiled pipeline, likewise."""

    age_limit = 15_625

    def set_age_limit(self, ticks):
        self.age_limit = ticks
        super().set_age_limit(ticks)

    def withdraw(self, job_id):
        if ("jobs", (job_id,)) in self._written:
            self._named(self.switch.tables, "jobs").delete((job_id,))
            self._written.discard(("jobs", (job_id,)))

    def lose_everything(self):
        self.fresh()
        self.set_age_limit(self.age_limit)

    def reset_all(self, now_us):
        from frames import frame

        frames = [(CPU_PORT, frame(packet.tobytes())) for packet in resets(self.lanes, self.slots)]
        assert len(self.process_frames(frames, now_us)) == self.slots

    def absorbed(self):
        return self.verdicts().get(Verdict.ABSORBED, 0)


def resets(lanes: int, slots: int) -> np.ndarray:
    """A RESET for every slot."""
    return pack(np.zeros((slots, lanes), np.uint32), kind=Kind.RESET, chunk_id=range(slots))


@dataclass
class Round:
    """One tensor of every worker, and what must come of it, computed apart."""

    op: Op
    inputs: list[Words]

    @property
    def expected(self) -> Words:
        """Their sum modulo 2**32, or their union."""
        if self.op == "or":
            return np.bitwise_or.reduce(self.inputs)
        return np.sum(np.asarray(self.inputs, np.uint64), axis=0).astype(np.uint32)

    def computed_anew(self) -> Round:
        """The same tensors after a restart: other values, so that anything left of the old ones shows."""
        return Round(self.op, [words ^ np.uint32(0x5A5A5A5A + len(self.inputs)) for words in self.inputs])


@dataclass
class JobUnderTest:
    """One job: its hosts in this generation, the rounds they are at, and what those before them sent."""

    config: JobConfig
    server_port: int
    salt: int
    rounds: list[Round] = field(default_factory=list)
    workers: list[Actor] = field(default_factory=list)
    submitted: list[int] = field(default_factory=list)
    packets_before: int = 0
    chunks: int = 0

    def chunks_of(self, one: Round) -> int:
        """Chunks of one tensor."""
        return -(-one.inputs[0].size // self.config.lanes)

    def check(self) -> None:
        """Whatever has come back so far is exact."""
        for actor in self.workers:
            for ticket, words in actor.sums.items():
                np.testing.assert_array_equal(words, self.rounds[ticket].expected)

    @property
    def done(self) -> bool:
        """Whether every worker has every sum."""
        return all(len(actor.sums) == len(self.rounds) for actor in self.workers)


class FailingNetwork(VirtualNetwork):
    """One switch, two jobs or more, and failures."""

    def __init__(
        self, seed: int, switch: SpecUnderTest | EmbeddedUnderTest, faults: Faults, age: int
    ) -> None:
        super().__init__(seed, lanes=switch.lanes, slots=switch.slots, faults=faults, age_limit=age)
        self.switch = switch
        switch.set_age_limit(age)
        self.age_limit = age
        self.jobs: list[JobUnderTest] = []
        self.outage = 0.0

    # -- jobs ------------------------------------------------------------------------------------------

    def start(self, job: JobUnderTest) -> None:
        """Admit a job that is new here, or has a new generation."""
        if job not in self.jobs:
            self.jobs.append(job)
        job.workers = self.admit(job.config, job.server_port, job.salt)
        job.submitted = [0] * len(job.workers)

    def submit(self, job: JobUnderTest, one: Round) -> None:
        """Have each worker submit it, at a time of its own."""
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
        """Packets that the job's hosts have sent since the beginning, lost ones too."""
        server = self.actors[job.server_port].machine
        return job.packets_before + sum(map(_sent_by, [server, *(a.machine for a in job.workers)]))

    # -- failures --------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Let things happen for so long."""
        over: list[bool] = []
        self.at(self.now + seconds, lambda: over.append(True))
        self.run_until(lambda: bool(over), seconds=self.now + seconds + 1, packets=self.packets + 200_000)

    def pass_outage(self, seconds: float) -> None:
        """The same, counted as time in which nobody can be expected to get on."""
        self.outage += seconds
        self.pass_time(seconds)

    def restart_worker(self, job: JobUnderTest, gap: float) -> None:
        """A worker is back without its memory: the job starts anew with what not every worker has."""
        job.check()
        job.packets_before = self.sent(job)
        for actor in (self.actors[job.server_port], *job.workers):
            actor.alive = False
        self.switch.withdraw(job.config.job_id)
        self.pass_outage(gap)
        self.switch.reset_all(int(self.now * 1e6))
        self.pass_outage(gap)
        job.rounds = [one.computed_anew() for one in job.rounds[min(map(_first_missing, job.workers)) :]]
        job.chunks += sum(job.chunks_of(one) for one in job.rounds)
        job.config = replace(job.config, generation=(job.config.generation + 1) & 0xFFFF)
        self.start(job)
        for _ in job.rounds:
            self._see_to_submission(job)

    def fail_server(self, job: JobUnderTest, gap: float) -> None:
        """The server is gone for a while and comes back knowing nothing."""
        actor = self.actors[job.server_port]
        actor.alive = False
        self.pass_outage(gap)
        job.packets_before += _sent_by(actor.machine)
        self.restart_server(job.server_port)
        actor.alive = True

    def fail_switch(self, gap: float) -> None:
        """The switch comes back empty at once, its tables when the controller gets to it."""
        self.switch.lose_everything()
        self.pass_outage(gap)
        for job in self.jobs:
            self._put_back(job)

    def _put_back(self, job: JobUnderTest) -> None:
        actors = {port: self.actors[port] for port in (job.server_port, *(a.port for a in job.workers))}
        self.admit(job.config, job.server_port, job.salt)
        self.actors.update(actors)

    def cut(self, gap: float) -> None:
        """Nothing gets through for a while."""
        faults, self.faults = self.faults, CUT
        self.pass_outage(gap)
        self.faults = faults

    # -- the end ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Run until every worker has every sum, and no packet is under way any more."""
        self.run_until(self._done, seconds=self.now + 60, packets=self.packets + 500_000)
        for job in self.jobs:
            job.check()
            job.packets_before = self.sent(job)
            for port in (job.server_port, *(actor.port for actor in job.workers)):
                self.actors[port].alive = False
        self.pass_time(0.5)

    def _done(self) -> bool:
        return all(job.done for job in self.jobs)

    def claimable_slots(self) -> int:
        """How many slots take a new job's contribution once the age limit has passed."""
        self.switch.admit_job(
            PROBER, generation=0, salt=0, expected_mask=3, up_port=PROBER_PORT, group=PROBER
        )
        self.switch.admit_worker(PROBER, PROBER_PORT, worker_mask=1, worker_id=0)
        batch = pack(
            np.zeros((self.slots, self.lanes), np.uint32),
            kind=Kind.CONTRIBUTION,
            job_id=PROBER,
            chunk_id=range(self.slots),
        )
        before = self.switch.absorbed()
        now_us = int(self.now * 1e6) + (self.age_limit + 1) * TICK_US
        for packet in batch:
            self.switch.process(PROBER_PORT, packet.tobytes(), now_us)
        return self.switch.absorbed() - before


def _first_missing(actor: Actor) -> int:
    """The first tensor whose sum a worker does not have."""
    return next(ticket for ticket in range(len(actor.sums) + 1) if ticket not in actor.sums)


def _sent_by(machine: WorkerEndpoint | AggregationServer) -> int:
    stats = machine.stats()
    if isinstance(machine, WorkerEndpoint):
        return stats.contributions + stats.resends
    return stats.results + stats.replies + stats.resends + stats.needs
