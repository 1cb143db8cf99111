"""Every worker gets the exact sums in bounded time, under any losses, repeats and reordering."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from rounds import Round
from virtual_network import Actor, Faults, VirtualNetwork

from peelsum.transport import JobConfig, Timers
from peelsum.wire.clock import NEVER_TICKS

LANES, SLOTS = 4, 256
TIMERS = Timers(
    first_answer=0.02, resend_least=0.002, resend_most=0.1, need=0.004, need_most=0.1, linger=3.0, stall=50.0
)
SERVER_PORT = {1: 100, 2: 120}


def drawn_rounds(random: Random, workers: int) -> list[Round]:
    """One to four tensors, about 40 chunks in all, of any length from nothing up."""
    numbers = np.random.default_rng(random.randrange(1 << 32))
    rounds = []
    for _ in range(random.randint(1, 4)):
        length = random.choice([0, 1, LANES, random.randint(2, 20 * LANES)])
        inputs = [numbers.integers(0, 1 << 32, length, dtype=np.uint32) for _ in range(workers)]
        rounds.append(Round(random.choice(["add", "add", "or"]), inputs))
    return rounds


def play(network: VirtualNetwork, actors: list[Actor], rounds: list[Round]) -> None:
    """Let each worker submit its tensors at its own times, some at once and some after a result."""
    for worker, actor in enumerate(actors):
        start = network.random.choice([0.0, network.random.uniform(0, 0.05)])
        network.at(start, lambda worker=worker, actor=actor: submit_next(network, actor, worker, rounds, 0))


def submit_next(network: VirtualNetwork, actor: Actor, worker: int, rounds: list[Round], number: int) -> None:
    """Submit round `number` and schedule the next one."""
    if number == len(rounds):
        actor.machine.finish(network.now)
    elif number == 0 or network.random.random() < 0.5 or number - 1 in actor.sums:
        assert actor.machine.submit(rounds[number].inputs[worker], rounds[number].op) == number
        number += 1
    network.poke(actor)
    if actor.machine._finishing:
        return
    pause = network.random.choice([1e-4, 5e-3])
    network.at(network.now + pause, lambda: submit_next(network, actor, worker, rounds, number))


def check(actors: list[Actor], rounds: list[Round]) -> None:
    for actor in actors:
        assert sorted(actor.sums) == list(range(len(rounds)))
        for ticket, one in enumerate(rounds):
            np.testing.assert_array_equal(actor.sums[ticket], one.expected)


def drawn_config(random: Random, job_id: int, first_chunk: int) -> JobConfig:
    window = random.choice([1, 3, 8, 16])
    return JobConfig(
        job_id=job_id,
        generation=random.randrange(1 << 16),
        workers=random.randint(1, 5),
        lanes=LANES,
        window=window,
        first_chunk=first_chunk,
        initial_window=random.choice([1, 4, window]),
        timers=TIMERS,
    )


def run(seed: int, *, worst: float, jobs: int = 1, restarts: bool = False) -> VirtualNetwork:
    random = Random(seed)
    faults = Faults.drawn(random, worst)
    age = random.choice([0, 40, 15_625, NEVER_TICKS])
    network = VirtualNetwork(seed, lanes=LANES, slots=SLOTS, faults=faults, age_limit=age)
    played = []
    start = random.choice([0, 1000, (1 << 32) - random.randint(1, 40)])
    for job_id in range(1, jobs + 1):
        config = drawn_config(random, job_id, first_chunk=start)
        actors = network.admit(config, SERVER_PORT[job_id])
        rounds = drawn_rounds(random, config.workers)
        play(network, actors, rounds)
        played.append((actors, rounds))
    if restarts:
        network.at(random.uniform(0, 0.05), lambda: network.restart_server(SERVER_PORT[1]))
        network.at(random.uniform(0, 0.05), network.restart_switch)
    network.run_until(
        lambda: all(not actor.alive for actors, _ in played for actor in actors),
        seconds=30.0,
        packets=20_000,
    )
    for actors, rounds in played:
        check(actors, rounds)
    return network


@pytest.mark.parametrize("block", range(15))
def test_sums_are_exact_whatever_the_network_does(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        run(seed, worst=0.3)


@pytest.mark.parametrize("block", range(8))
def test_sums_are_exact_when_server_and_switch_restart(block: int) -> None:
    for seed in range(1000 + block * 10, 1000 + block * 10 + 10):
        run(seed, worst=0.3, restarts=True)


@pytest.mark.parametrize("block", range(5))
def test_sums_are_exact_when_two_jobs_share_the_slots(block: int) -> None:
    for seed in range(2000 + block * 10, 2000 + block * 10 + 10):
        run(seed, worst=0.3, jobs=2)


def rejoin(seed: int, *, reset: bool) -> None:
    """A job is cut off in the middle and starts again, under the next generation, at the same chunk."""
    random = Random(seed)
    faults = Faults.drawn(random, 0.3)
    network = VirtualNetwork(seed, lanes=LANES, slots=SLOTS, faults=faults, age_limit=NEVER_TICKS)
    old = drawn_config(random, 1, first_chunk=7)
    play(network, network.admit(old, SERVER_PORT[1]), drawn_rounds(random, old.workers))
    over = []
    network.at(random.uniform(0, 0.03), lambda: over.append(True))
    network.run_until(lambda: bool(over), seconds=1.0, packets=20_000)
    for actor in network.actors.values():
        actor.alive = False
    actors = network.admit(replace(old, generation=(old.generation + 1) & 0xFFFF), SERVER_PORT[1])
    if reset:
        network.reset_slots()
    rounds = drawn_rounds(random, old.workers)
    play(network, actors, rounds)
    network.run_until(lambda: not any(actor.alive for actor in actors), seconds=30.0, packets=20_000)
    check(actors, rounds)


@pytest.mark.parametrize("block", range(4))
def test_a_new_generation_is_not_touched_by_the_old_one_s_packets(block: int) -> None:
    for seed in range(3000 + block * 10, 3000 + block * 10 + 10):
        rejoin(seed, reset=True)


@pytest.mark.parametrize("seed", range(10))
def test_a_quiet_network_sums_every_chunk_in_the_switch(seed: int) -> None:
    network = VirtualNetwork(seed, lanes=LANES, slots=SLOTS, faults=Faults(), age_limit=NEVER_TICKS)
    config = JobConfig(
        job_id=1, generation=3, workers=3, lanes=LANES, window=8, first_chunk=0xFFFFFFF0, timers=TIMERS
    )
    actors = network.admit(config, SERVER_PORT[1])
    rounds = drawn_rounds(network.random, 3)
    for worker, actor in enumerate(actors):
        for one in rounds:
            actor.machine.submit(one.inputs[worker], one.op)
        actor.machine.finish(0.0)
        network.poke(actor)
    network.run_until(lambda: not any(actor.alive for actor in actors), seconds=1.0, packets=5000)
    check(actors, rounds)
    chunks = sum(-(-one.inputs[0].size // LANES) for one in rounds) + 1
    stats = network.actors[SERVER_PORT[1]].machine.stats()
    assert (stats.chunks_in_switch, stats.chunks_at_server) == (chunks, 0)
    assert all(actor.machine.stats().resends == 0 and actor.confirmed for actor in actors)


@pytest.mark.parametrize("seed", range(10))
def test_a_worker_that_computes_keeps_nobody_waiting_for_a_result_it_has(seed: int) -> None:
    """Worker 0 takes its results and is deaf from then on; the others get theirs, lost ones too."""
    network = VirtualNetwork(seed, lanes=LANES, slots=SLOTS, faults=Faults(drop=0.2), age_limit=NEVER_TICKS)
    config = JobConfig(job_id=1, generation=3, workers=3, lanes=LANES, window=8, timers=TIMERS)
    actors = network.admit(config, SERVER_PORT[1])
    for worker, actor in enumerate(actors):
        actor.machine.submit(np.full(20 * LANES, 1 << worker, np.uint32), "add")
        network.poke(actor)
    network.run_until(lambda: bool(actors[0].sums), seconds=10.0, packets=10_000)
    actors[0].alive = False
    until = network.now + 5.0
    network.run_until(lambda: all(actor.sums for actor in actors), seconds=until, packets=10_000)
    for actor in actors:
        assert (actor.sums[0] == 7).all()


def test_random_loss_costs_round_trips_not_timeouts() -> None:
    """4000 chunks at 2% loss a hop: round trips of 0.2 ms for each window of 256, no chain of timers."""
    network = VirtualNetwork(5, lanes=LANES, slots=4096, faults=Faults(drop=0.02), age_limit=NEVER_TICKS)
    config = JobConfig(job_id=1, generation=3, workers=3, lanes=LANES, window=256)
    actors = network.admit(config, SERVER_PORT[1])
    for worker, actor in enumerate(actors):
        actor.machine.submit(np.full(4000 * LANES, 1 << worker, np.uint32), "add")
        network.poke(actor)
    network.run_until(lambda: all(actor.sums for actor in actors), seconds=1.0, packets=60_000)
    stats = network.actors[SERVER_PORT[1]].machine.stats()
    assert stats.chunks_in_switch > 3 * stats.chunks_at_server
    for actor in actors:
        assert (actor.sums[0] == 7).all()


def test_a_twentieth_lost_at_every_hop_costs_round_trips_too() -> None:
    """4000 chunks, 8 hops each: 63 times 64 on the way, 0.2 ms the round trip."""
    network = VirtualNetwork(6, lanes=LANES, slots=4096, faults=Faults(drop=0.05), age_limit=NEVER_TICKS)
    config = JobConfig(job_id=1, generation=3, workers=3, lanes=LANES, window=256)
    actors = network.admit(config, SERVER_PORT[1])
    for worker, actor in enumerate(actors):
        actor.machine.submit(np.full(4000 * LANES, 1 << worker, np.uint32), "add")
        network.poke(actor)
    network.run_until(lambda: all(actor.sums for actor in actors), seconds=0.2, packets=100_000)
    for actor in actors:
        assert (actor.sums[0] == 7).all()
        assert actor.machine.stats().window_cuts <= 1, "half of a window may be lost by chance, hardly twice"
