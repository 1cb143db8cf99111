"""Jobs that compete for a switch port: each gets its share, queues stay short, sums stay exact."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import benchmarks

from benchmarks.experiments.fairness import (
    SERVERS,
    PortScene,
    jain,
    over_udp,
    queue,
    simulated,
    summed,
    virtual_network,
)
from peelsum.simulation import Simulation

SCENE = PortScene(2, lanes=32, mbit=200.0, mark_from=64, settle_s=0.03, seconds=0.06)
FAIR = 1 / 2


def depths(network: Simulation, start_s: float, end_s: float) -> np.ndarray:
    """Run on, and return the packets at the servers' port at 500 instants."""
    engine, found = network.engine, []
    for time in np.linspace(start_s, end_s, 500):
        engine.run_until(time)
        found.append(engine.links[SERVERS].waiting(engine.now))
    return np.array(found)


@pytest.mark.parametrize("jobs", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_jobs_share_a_port_and_keep_its_queue_short(jobs: int) -> None:
    scene = replace(SCENE, jobs=jobs)
    network = virtual_network(scene)
    network.engine.run_until(scene.settle_s)
    before = np.array(summed(network))
    waiting = depths(network, scene.settle_s, scene.settle_s + scene.seconds)
    gained = np.array(summed(network)) - before
    assert jain(gained) > 0.97
    assert gained.min() > FAIR * gained.mean()
    assert gained.sum() * scene.frame_s > 0.94 * scene.seconds
    assert np.percentile(waiting, 99) < 1.5 * scene.mark_from
    assert waiting.max() < 2 * scene.mark_from
    assert queue(network).dropped == 0
    assert [job.wrong for job in network.jobs] == [0] * jobs


@pytest.mark.slow
def test_without_marks_the_queue_takes_every_window() -> None:
    scene = replace(SCENE, mark_from=(1 << 19) - 1, settle_s=0.1)
    network = virtual_network(scene)
    waiting = depths(network, scene.settle_s, scene.settle_s + 0.02)
    assert [job.workers[0].endpoint.stats().window for job in network.jobs] == [scene.window] * 2
    assert waiting.mean() > 1.5 * scene.window


@pytest.mark.slow
def test_a_job_that_comes_later_gets_its_share() -> None:
    scene = replace(SCENE, mbit=1000.0)
    network = virtual_network(scene, starts_s=[0.0, 0.01])
    network.engine.run_until(0.01)
    alone = summed(network)
    assert alone[0] * scene.frame_s > 0.9 * 0.01
    assert alone[1] == 0
    network.engine.run_until(0.03)
    before = np.array(summed(network))
    network.engine.run_until(0.05)
    assert jain(np.array(summed(network)) - before) > 0.95


@pytest.mark.system
def test_a_scene_is_the_same_every_time() -> None:
    scene = replace(SCENE, settle_s=0.005, seconds=0.01, chunks=40)
    row = simulated(scene)
    assert simulated(scene) == row
    assert sum(row["chunks_per_s"]) * scene.seconds > 5 * scene.chunks
    assert row["wrong"] == 0


@pytest.mark.system
@pytest.mark.parametrize("jobs", [2, 4])
def test_jobs_share_a_port_over_udp(jobs: int) -> None:
    scene = PortScene(jobs, settle_s=0.5, seconds=1.5, chunks=300)
    row = over_udp(scene)
    # How fair and how full depends on what else the machine does: exactly that is tested in virtual time.
    assert min(row["chunks_per_s"]) > 0
    assert row["fairness"] > 1 / jobs
    assert 0 < row["used"] < 1.1
    assert row["queue_mean"] < scene.window * jobs
    assert row["wrong"] == 0


def test_jain_s_index_is_one_for_equals_and_one_over_n_for_one_who_has_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert jain([2.0, 1.0]) == pytest.approx(0.9)
    assert jain([0.0, 0.0]) == 0


@pytest.mark.system
@pytest.mark.usefixtures("forked_children")
def test_the_bench_says_so_in_json(tmp_path: Path) -> None:
    scene = ("--jobs", "2", "--lanes", "32", "--mbit", "100", "--seconds", "0.05")
    done = benchmarks("fairness", *scene, "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["ports"], row["jobs"]) for row in rows] == [("virtual", 2), ("udp", 2)]
    assert all(len(row["chunks_per_s"]) == 2 and row["wrong"] == 0 for row in rows)
    assert rows[0]["fairness"] == pytest.approx(jain(rows[0]["chunks_per_s"]), abs=1e-3)
