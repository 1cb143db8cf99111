"""Racks below a spine: every worker gets the exact sums, under any losses and restarts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from test_virtual_network import LANES, SLOTS, TIMERS, check, drawn_rounds, play
from virtual_network import Faults, VirtualNetwork

from peelsum.transport import JobConfig
from peelsum.wire import Kind, Verdict
from peelsum.wire.clock import NEVER_TICKS

SERVER_PORT = {1: 10, 2: 150}


def drawn_config(random: Random, job_id: int, racks: int, first_chunk: int) -> JobConfig:
    sizes = tuple(random.randint(1, 3) for _ in range(racks))
    window = random.choice([1, 3, 8, 16])
    return JobConfig(
        job_id=job_id,
        generation=random.randrange(1 << 16),
        workers=sum(sizes),
        lanes=LANES,
        window=window,
        first_chunk=first_chunk,
        initial_window=random.choice([1, 4, window]),
        racks=sizes,
        timers=TIMERS,
    )


def run(seed: int, *, racks: int = 2, jobs: int = 1, restarts: bool = False) -> VirtualNetwork:
    random = Random(seed)
    faults = Faults.drawn(random, 0.25)
    age = random.choice([0, 40, 15_625, NEVER_TICKS])
    network = VirtualNetwork(seed, lanes=LANES, slots=SLOTS, racks=racks, faults=faults, age_limit=age)
    played = []
    start = random.choice([0, 1000, (1 << 32) - random.randint(1, 40)])
    for job_id in range(1, jobs + 1):
        config = drawn_config(random, job_id, racks, start)
        actors = network.admit(config, SERVER_PORT[job_id])
        rounds = drawn_rounds(random, config.workers)
        play(network, actors, rounds)
        played.append((actors, rounds))
    if restarts:
        network.at(random.uniform(0, 0.05), lambda: network.restart_server(SERVER_PORT[1]))
        network.at(random.uniform(0, 0.05), network.restart_switch)
        for rack in range(racks):
            network.at(random.uniform(0, 0.05), lambda rack=rack: network.restart_switch(1 + rack))
    network.run_until(
        lambda: not any(actor.alive for actors, _ in played for actor in actors),
        seconds=30.0,
        packets=20_000 * jobs,
    )
    for actors, rounds in played:
        check(actors, rounds)
    return network


@pytest.mark.parametrize("block", range(6))
def test_sums_are_exact_whatever_the_network_does(block: int) -> None:
    for seed in range(4000 + block * 10, 4000 + block * 10 + 10):
        run(seed)


@pytest.mark.parametrize("block", range(5))
def test_sums_are_exact_when_leaves_spine_and_server_restart(block: int) -> None:
    for seed in range(5000 + block * 10, 5000 + block * 10 + 10):
        run(seed, restarts=True)


@pytest.mark.parametrize("block", range(3))
def test_sums_are_exact_when_two_jobs_share_the_slots_of_both_levels(block: int) -> None:
    collided = 0
    for seed in range(7000 + block * 5, 7000 + block * 5 + 5):
        network = run(seed, jobs=2, restarts=seed % 2 == 0)
        collided += sum(one.verdicts[Verdict.COLLIDED] for one in network.switches)
    assert collided


@pytest.mark.parametrize("seed", range(6000, 6010))
def test_any_number_of_racks(seed: int) -> None:
    run(seed, racks=1 + seed % 4, restarts=True)


@pytest.mark.parametrize("seed", range(5))
def test_a_quiet_network_sums_every_chunk_in_the_switches(seed: int) -> None:
    network = VirtualNetwork(seed, lanes=LANES, slots=SLOTS, racks=2, faults=Faults(), age_limit=NEVER_TICKS)
    config = JobConfig(job_id=1, generation=3, workers=5, lanes=LANES, window=8, racks=(2, 3), timers=TIMERS)
    actors = network.admit(config, SERVER_PORT[1])
    rounds = drawn_rounds(network.random, 5)
    for worker, actor in enumerate(actors):
        for one in rounds:
            actor.machine.submit(one.inputs[worker], one.op)
        actor.machine.finish(0.0)
        network.poke(actor)
    network.run_until(lambda: not any(actor.alive for actor in actors), seconds=1.0, packets=10_000)
    check(actors, rounds)
    chunks = sum(-(-one.inputs[0].size // LANES) for one in rounds) + 1
    stats = network.actors[SERVER_PORT[1]].machine.stats()
    assert (stats.chunks_in_switch, stats.chunks_at_server) == (chunks, 0)
    assert network.switch.verdicts[Verdict.BYPASSED] == 0
    assert all(actor.machine.stats().resends == 0 and actor.confirmed for actor in actors)
    assert all(slot.tag == 0 for one in network.switches for slot in one.state)


def test_what_a_rack_gives_up_reaches_the_server() -> None:
    """One worker is silent: the server learns both partial sums by asking, before any worker resends."""
    timers = replace(TIMERS, first_answer=10.0)
    config = JobConfig(job_id=1, generation=3, workers=4, lanes=LANES, window=8, racks=(2, 2), timers=timers)
    network = VirtualNetwork(1, lanes=LANES, slots=SLOTS, racks=2, faults=Faults(), age_limit=NEVER_TICKS)
    actors = network.admit(config, SERVER_PORT[1])
    for worker in (0, 1, 2):
        actors[worker].machine.submit(np.full(1, 1 << worker, np.uint32), "add")
        network.poke(actors[worker])
    server = network.actors[SERVER_PORT[1]].machine
    # Something of the chunk has to come for the server to ask: worker 1's contribution, once more by hand.

    def bypass() -> None:
        packet = actors[1].machine.state.packets[0].view(np.uint8).copy()
        packet[1] = Kind.BYPASS
        network.inject(actors[1].port, packet.tobytes())

    network.at(0.001, bypass)
    network.run_until(lambda: server.progress().missing_workers == (33,), seconds=0.02, packets=200)
    assert all(actor.machine.stats().resends == 0 for actor in actors)
    # ... and tells everybody whom it waits for.
    network.run_until(
        lambda: actors[0].machine.stalled(network.now).missing_workers == (33,), seconds=1.0, packets=400
    )
