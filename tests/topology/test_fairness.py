"""Jobs that compete for a switch port: each gets its share, queues stay short, sums stay exact."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command_line import peelsum

from peelsum.bench.fairness.scene import Scene, jain
from peelsum.bench.fairness.udp import over_udp
from peelsum.bench.fairness.virtual import VirtualNetwork, simulated

SCENE = Scene(2, lanes=32, mbit=200.0, mark_from=64, settle_s=0.04, seconds=0.1)
FAIR = 1 / 2


def depths_since(network: VirtualNetwork, time: float) -> np.ndarray:
    """Packets at the servers' port after each batch that came to it from a time on."""
    return np.array(network.depths.packets)[np.array(network.depths.times) >= time]


@pytest.mark.parametrize("jobs", [2, 4])
def test_jobs_share_a_port_and_keep_its_queue_short(jobs: int) -> None:
    scene = replace(SCENE, jobs=jobs)
    network = VirtualNetwork(scene)
    network.run_until(scene.settle_s)
    before = np.array(network.summed())
    network.run_until(scene.settle_s + scene.seconds)
    gained = np.array(network.summed()) - before
    assert jain(gained) > 0.97
    assert gained.min() > FAIR * gained.mean()
    assert gained.sum() * scene.frame_s > 0.95 * scene.seconds
    depths = depths_since(network, scene.settle_s)
    assert np.percentile(depths, 99) < 1.5 * scene.mark_from
    assert depths.max() < 2 * scene.mark_from
    assert network.queues.counts()[scene.server_port].dropped == 0
    assert network.wrong == 0


def test_without_marks_the_queue_takes_every_window() -> None:
    scene = replace(SCENE, mark_from=(1 << 19) - 1, settle_s=0.1)
    network = VirtualNetwork(scene)
    network.run_until(scene.settle_s + 0.02)
    assert network.windows() == [scene.window] * 2
    assert depths_since(network, scene.settle_s).mean() > 1.5 * scene.window


def test_a_job_that_comes_later_gets_its_share() -> None:
    scene = replace(SCENE, mbit=1000.0)
    network = VirtualNetwork(scene, starts_s=[0.0, 0.01])
    network.run_until(0.01)
    alone = network.summed()
    assert alone[0] * scene.frame_s > 0.9 * 0.01
    assert alone[1] == 0
    network.run_until(0.03)
    before = np.array(network.summed())
    network.run_until(0.05)
    assert jain(np.array(network.summed()) - before) > 0.95


def test_a_scene_is_the_same_every_time() -> None:
    scene = replace(SCENE, settle_s=0.005, seconds=0.01, chunks=40)
    shares = simulated(scene)
    assert simulated(scene) == shares
    assert sum(shares.chunks_per_s) * scene.seconds > 5 * scene.chunks
    assert shares.wrong == 0


@pytest.mark.system
@pytest.mark.parametrize("jobs", [2, 4])
def test_jobs_share_a_port_over_udp(jobs: int) -> None:
    scene = Scene(jobs, settle_s=0.5, seconds=1.5, chunks=300)
    shares = over_udp(scene)
    # How fair and how full depends on what else the machine does: exactly that is tested in virtual time.
    assert min(shares.chunks_per_s) > 0
    assert shares.fairness > 1 / jobs
    assert 0 < shares.used < 1.1
    assert shares.queue.mean < scene.window * jobs
    assert shares.wrong == 0


def test_jain_s_index_is_one_for_equals_and_one_over_n_for_one_who_has_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert jain([2.0, 1.0]) == pytest.approx(0.9)
    assert jain([0.0, 0.0]) == 0


def test_the_bench_says_so_in_json() -> None:
    scene = ("--jobs", "2", "--lanes", "32", "--mbit", "100", "--seconds", "0.05")
    done = peelsum("bench", "fairness", *scene, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["ports"], row["jobs"]) for row in rows] == [("virtual", 2), ("udp", 2)]
    assert all(len(row["chunks_per_s"]) == 2 and row["wrong"] == 0 for row in rows)
    assert rows[0]["fairness"] == pytest.approx(jain(rows[0]["chunks_per_s"]), abs=1e-3)
