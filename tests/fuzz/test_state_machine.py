"""A state machine for Hypothesis: two jobs with colliding slots, on a lossy network whose parts fail.

The jobs share one switch, or two racks below a spine. Ports also send packets that they must not send. Every
sum must be exact, every slot must become free in the end, and the number of packets is bounded.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from restarts import LONGEST_RTO, FailingNetwork, JobUnderTest
from rounds import TIMERS, Round
from virtual_network import Faults

from peelsum.transport import JobConfig
from peelsum.wire import Kind
from peelsum.wire.clock import NEVER_TICKS

#: Packets that each host may send per chunk and level of switches, by the share that each hop drops.
#: Outages add one window per host for each `LONGEST_RTO`.
STORM = {0.0: 2, 0.05: 4, 0.2: 12}
#: Most RESENDs per switch, and NEEDs, that a packet of a chunk outside the window may cause.
ASKED_FOR_A_STRAY = 16
JOBS = st.integers(0, 1)
#: Far enough apart for the ports of 64 workers after each.
SERVER_PORTS = {1: 10, 2: 100}
GAPS = st.floats(0, 0.3)


class Failures(RuleBasedStateMachine):
    """All events, in any order, on one level."""

    racks = 0

    @initialize(
        seed=st.integers(0, 2**32 - 1),
        workers=st.tuples(st.integers(2, 8), st.integers(2, 8)),
        windows=st.tuples(*[st.sampled_from([1, 3, 8, 16])] * 2),
        worst=st.sampled_from(sorted(STORM)),
        age=st.sampled_from([0, 40, 15_625, NEVER_TICKS]),
        first=st.sampled_from([0, 1000, 2**32 - 3, 2**32 - 40]),
    )
    def begin(
        self,
        seed: int,
        workers: tuple[int, int],
        windows: tuple[int, int],
        worst: float,
        age: int,
        first: int,
    ) -> None:
        """Admit two jobs whose first chunks have different ids but the same slot."""
        faults = Faults(drop=worst, repeat=worst, reorder=worst, delay=worst / 4)
        self.network = FailingNetwork(seed, faults, age, self.racks)
        self.numbers = np.random.default_rng(seed)
        for job_id in (1, 2):
            ahead, of_first = 77 * (job_id - 1), workers[job_id - 1] // 3 + 1
            config = JobConfig(
                job_id=job_id,
                generation=0xFFFE,
                workers=workers[job_id - 1],
                lanes=self.network.lanes,
                window=windows[job_id - 1],
                racks=(of_first, workers[job_id - 1] - of_first) if self.racks else (),
                first_chunk=(first + ahead) % 2**32,
                timers=TIMERS,
            )
            self.network.start(JobUnderTest(config, server_port=SERVER_PORTS[job_id], salt=-ahead % 2**32))
            self.submit(job_id - 1, chunks=10, short=1, unite=False)

    @rule(which=JOBS, chunks=st.integers(0, 20), short=st.integers(0, 3), unite=st.booleans())
    def submit(self, which: int, chunks: int, short: int, unite: bool) -> None:
        job = self.network.jobs[which]
        size = max(0, chunks * job.config.lanes - short)
        inputs = [self.numbers.integers(0, 1 << 32, size, dtype=np.uint32) for _ in job.workers]
        self.network.submit(job, Round("or" if unite else "add", inputs))

    @rule(seconds=st.floats(0, 0.05))
    def pass_time(self, seconds: float) -> None:
        self.network.pass_time(seconds)

    @rule(which=JOBS, gap=st.floats(0, 0.02))
    def restart_worker(self, which: int, gap: float) -> None:
        self.network.restart_worker(self.network.jobs[which], gap)

    @rule(which=JOBS, gap=GAPS)
    def fail_server(self, which: int, gap: float) -> None:
        self.network.fail_server(self.network.jobs[which], gap)

    @rule(which=st.integers(0, 2), gap=GAPS)
    def fail_switch(self, which: int, gap: float) -> None:
        self.network.fail_switch(which, gap)

    @rule(gap=GAPS)
    def cut(self, gap: float) -> None:
        self.network.cut(gap)

    @rule(
        which=JOBS,
        worker=st.integers(0, 7),
        kind=st.sampled_from([Kind.CONTRIBUTION, Kind.RETRY, Kind.RESEND, Kind.BYPASS]),
        far=st.sampled_from([2**20, 2**30, 2**31 - 1, -(2**20), -(2**30)]),
        count=st.integers(1, 3),
    )
    def stray(self, which: int, worker: int, kind: Kind, far: int, count: int) -> None:
        for number in range(count):
            self.network.stray(self.network.jobs[which], worker, kind, far + number)

    @invariant()
    def sums_are_exact(self) -> None:
        for job in self.network.jobs if hasattr(self, "network") else ():
            job.check()

    def teardown(self) -> None:
        if not hasattr(self, "network"):
            return
        network = self.network
        network.settle()
        for job in network.jobs:
            hosts = job.config.workers + 1
            waited = 1 + network.outage / LONGEST_RTO
            storm = min(2, 1 + self.racks) * STORM[network.faults.drop] * job.chunks * hosts
            strays = job.strays * ASKED_FOR_A_STRAY * (1 + len(job.config.racks))
            assert job.packets_before <= storm + waited * job.config.window * hosts + strays
        if network.age_limit != NEVER_TICKS:
            assert network.all_slots_claimable()


class FailuresOfRacks(Failures):
    """All events, with two racks below a spine."""

    racks = 2


@pytest.mark.parametrize(
    ("machine", "examples"),
    [
        (Failures, 15),
        (FailuresOfRacks, 6),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((Failures, 200), (FailuresOfRacks, 80))),
    ],
)
def test_whatever_fails_sums_stay_exact(machine: type[Failures], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
