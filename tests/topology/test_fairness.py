"""Jobs that compete for a switch port: each gets its share, queues stay short, sums stay exact."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from benchmarks.experiments.slots import jain
from peelsum.simulation import Job, NetworkSection, Scenario, Simulation
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

LANES, WINDOW = 32, 512


@dataclass(frozen=True)
class Scene:
    """Jobs of two workers that always have more to sum, with one port to the servers of all.

    Every port sends `mbit` Mbit/s, and sets ECN marks from `mark_from` waiting packets on.
    """

    jobs: int = 2
    mbit: float = 200.0
    mark_from: int = 64
    starts_s: Sequence[float] = ()

    @property
    def frame_s(self):
        """Seconds that a port takes to send one chunk's frame."""
        return 8 * (FRAME_HEADER_BYTES + packet_bytes(LANES)) / (self.mbit * 1e6)

    def simulation(self):
        network = NetworkSection(gbps=self.mbit / 1000, delay_us=10.0, mark_from=self.mark_from)
        starts, fields = self.starts_s or [0.0] * self.jobs, {"workers": 2, "elements": 1000 * LANES}
        jobs = tuple(Job(window=WINDOW, sums=1 << 30, start_s=start_s, **fields) for start_s in starts)
        return Simulation(Scenario(lanes=LANES, shared_server=True, network=network, jobs=jobs))


def summed(network):
    """Return the number of chunks that each job has summed, the mean over its workers."""
    results = [[host.endpoint.stats().results for host in job.workers] for job in network.jobs]
    return np.array(list(map(np.mean, results)))


def depths(network, start_s, end_s):
    """Run on, and return the packets at the servers' port at 500 instants."""
    engine, waiting = network.engine, []
    for time in np.linspace(start_s, end_s, 500):
        engine.run_until(time)
        waiting.append(engine.links["to server"].waiting(engine.now))
    return np.array(waiting)


@pytest.mark.parametrize("jobs", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_jobs_share_a_port_and_keep_its_queue_short(jobs):
    scene = Scene(jobs)
    network = scene.simulation()
    network.engine.run_until(0.02)
    before = summed(network)
    waiting = depths(network, 0.02, 0.05)
    gained = summed(network) - before
    assert jain(gained) > 0.97
    assert gained.min() > gained.mean() / 2
    assert gained.sum() * scene.frame_s > 0.94 * 0.03
    assert np.percentile(waiting, 99) < 1.5 * scene.mark_from
    assert waiting.max() < 2 * scene.mark_from
    assert network.engine.links["to server"].counts().queue_full == 0
    assert [job.wrong for job in network.jobs] == [0] * jobs


@pytest.mark.slow
def test_without_marks_the_queue_takes_every_window():
    network = replace(Scene(), mark_from=(1 << 19) - 1).simulation()
    waiting = depths(network, 0.1, 0.12)
    assert [job.workers[0].endpoint.stats().window for job in network.jobs] == [WINDOW] * 2
    assert waiting.mean() > 1.5 * WINDOW


@pytest.mark.slow
def test_a_job_that_comes_later_gets_its_share():
    scene = Scene(mbit=1000.0, starts_s=(0.0, 0.01))
    network = scene.simulation()
    network.engine.run_until(0.01)
    alone = summed(network)
    assert alone[0] * scene.frame_s > 0.9 * 0.01
    assert alone[1] == 0
    network.engine.run_until(0.03)
    before = summed(network)
    network.engine.run_until(0.05)
    assert jain(summed(network) - before) > 0.95


def test_jain_s_index_is_one_for_equals_and_one_over_n_for_one_who_has_all():
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert jain([2.0, 1.0]) == pytest.approx(0.9)
    assert jain([0.0, 0.0]) == 0
