"""Every worker gets its exact words in bounded time, under any losses, repeats, reordering and restarts.

With racks, leaves below a spine sum, too.
"""

from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest
from rounds import (
    LANES,
    QUIET,
    SERVER_PORT,
    SLOTS,
    Round,
    check,
    drawn_config,
    drawn_network,
    drawn_rounds,
    play,
    quiet,
    stray,
    submit_all,
)
from virtual_network import Faults, VirtualNetwork

from peelsum.transport import Timers
from peelsum.wire import Kind, Verdict
from peelsum.wire.clock import NEVER_TICKS

STRAY_KINDS = (Kind.CONTRIBUTION, Kind.RETRY, Kind.RESEND, Kind.BYPASS)


def run(seed, *, worst=0.3, racks=0, jobs=1, restarts=False, server_restarts=False, collectives=False):
    random = Random(seed)
    network = drawn_network(random, seed, worst, racks)
    windows = (1, 3, 16, 64, 64, 128) if collectives else (1, 3, 8, 16)
    played = []
    start = random.choice([0, 1000, (1 << 32) - random.randint(1, 80)])
    for job_id in range(1, jobs + 1):
        config = drawn_config(random, job_id, start, racks, windows)
        actors = network.admit(config, SERVER_PORT[job_id])
        rounds = drawn_rounds(random, config.workers, collectives=collectives)
        play(network, actors, rounds)
        played.append((actors, rounds))
    if restarts or server_restarts:
        network.at(random.uniform(0, 0.05), lambda: network.restart_server(SERVER_PORT[1]))
    if restarts:
        for number in range(1 + racks):
            network.at(random.uniform(0, 0.05), lambda number=number: network.restart_switch(number))
    network.run_until(
        lambda: all(not actor.alive for actors, _ in played for actor in actors),
        seconds=60.0 if collectives else 30.0,
        packets=(300_000 if collectives else 20_000) * (max(jobs, 1 + collectives) if racks else 1),
    )
    for actors, rounds in played:
        check(actors, rounds)
    return network


#: For each scene, the first seeds of its blocks, how many seeds a block has, and the settings of a seed.
SCENES = {
    "sums": (range(0, 150, 10), 10, lambda seed: {}),
    "restarts": (range(1000, 1080, 10), 10, lambda seed: {"restarts": True}),
    "two jobs": (range(2000, 2050, 10), 10, lambda seed: {"jobs": 2}),
    "racks": (range(4000, 4060, 10), 10, lambda seed: {"worst": 0.25, "racks": 2}),
    "racks restart": (range(5000, 5050, 10), 10, lambda seed: {"worst": 0.25, "racks": 2, "restarts": True}),
    # A leaf keeps a result that another rack, and then the server, have lost.
    "racks' server restarts": (
        range(8000, 8160, 40),
        40,
        lambda seed: {"worst": 0.25, "racks": 2, "server_restarts": True},
    ),
    "any racks": (
        range(6000, 6010, 10),
        10,
        lambda seed: {"worst": 0.25, "racks": 1 + seed % 4, "restarts": True},
    ),
    "two jobs in racks": (
        range(7000, 7015, 5),
        5,
        lambda seed: {"worst": 0.25, "racks": 2, "jobs": 2, "restarts": seed % 2 == 0},
    ),
    # Reduce-scatters, all-gathers and broadcasts beside sums.
    "collectives": (range(0, 120, 5), 5, lambda seed: COLLECTIVES),
    "collectives restart": (range(1000, 1080, 5), 5, lambda seed: {**COLLECTIVES, "restarts": True}),
    "collectives over racks": (
        range(2000, 2040, 5),
        5,
        lambda seed: {**COLLECTIVES, "racks": 1 + seed % 3, "restarts": seed % 2 == 0},
    ),
}
COLLECTIVES = {"worst": 0.2, "collectives": True}


@pytest.mark.parametrize(
    ("scene", "first"),
    [
        pytest.param(name, first, marks=[pytest.mark.slow] if first > firsts[0] else [])
        for name, (firsts, _, _) in SCENES.items()
        for first in firsts
    ],
)
def test_results_are_exact_whatever_the_network_does(scene, first):
    _, count, settings = SCENES[scene]
    networks = [run(seed, **settings(seed)) for seed in range(first, first + count)]
    if scene == "two jobs in racks":  # they share slots, in both levels
        assert sum(one.verdicts[Verdict.COLLIDED] for network in networks for one in network.switches)


def rejoin(seed):
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
    network.reset_slots()
    rounds = drawn_rounds(random, old.workers)
    play(network, actors, rounds)
    network.run_until(lambda: not any(actor.alive for actor in actors), seconds=30.0, packets=20_000)
    check(actors, rounds)


@pytest.mark.parametrize(
    "first", [3000, *(pytest.param(first, marks=pytest.mark.slow) for first in (3010, 3020, 3030))]
)
def test_a_new_generation_is_not_touched_by_the_old_one_s_packets(first):
    for seed in range(first, first + 10):
        rejoin(seed)


@pytest.mark.parametrize(("racks", "seed"), [((), seed) for seed in range(2)] + [((2, 3), 0)])
def test_a_quiet_network_sums_every_chunk_in_the_switches(racks, seed):
    network = quiet(seed, racks=len(racks))
    config = replace(QUIET, workers=sum(racks) or 3, racks=racks, first_chunk=0xFFFFFFF0)
    actors = network.admit(config, SERVER_PORT[1])
    rounds = drawn_rounds(network.random, config.workers)
    submit_all(network, actors, rounds)
    for actor in actors:
        actor.machine.finish(0.0)

    def done():
        return not any(actor.alive for actor in actors)

    network.run_until(done, seconds=1.0, packets=10_000 if racks else 5000)
    check(actors, rounds)
    chunks = sum(-(-one.inputs[0].size // LANES) for one in rounds) + 1
    stats = network.actors[SERVER_PORT[1]].machine.stats()
    assert (stats.chunks_in_switch, stats.chunks_at_server) == (chunks, 0)
    assert network.switch.verdicts[Verdict.BYPASSED] == 0
    assert all(actor.machine.stats().resends == 0 and actor.confirmed for actor in actors)
    assert all(slot.tag == 0 or slot.keeps_result for one in network.switches for slot in one.state)


def summing(network, config, chunks):
    """Admit a job of three workers that sum 1, 2 and 4."""
    actors = network.admit(config, SERVER_PORT[1])
    submit_all(network, actors, [Round("add", [np.full(chunks * LANES, n, np.uint32) for n in (1, 2, 4)])])
    return actors


@pytest.mark.parametrize(
    ("seed", "drop", "seconds", "packets", "most_cuts"),
    [
        # 2% lost a hop: round trips of 0.2 ms for each window of 256, no chain of timers.
        pytest.param(5, 0.02, 1.0, 60_000, None, id="2%"),
        # 8 hops each: 63 times 64 on the way. Half of a window may be lost by chance, hardly twice.
        pytest.param(6, 0.05, 0.2, 100_000, 1, id="5%"),
    ],
)
def test_random_loss_costs_round_trips_not_timeouts(seed, drop, seconds, packets, most_cuts):
    network = quiet(seed, slots=4096, drop=drop)
    actors = summing(network, replace(QUIET, window=256, timers=Timers()), 4000)
    network.run_until(lambda: all(actor.sums for actor in actors), seconds=seconds, packets=packets)
    stats = network.actors[SERVER_PORT[1]].machine.stats()
    assert stats.chunks_in_switch > (3 if most_cuts is None else 0) * stats.chunks_at_server
    for actor in actors:
        assert (actor.sums[0] == 7).all()
        assert most_cuts is None or actor.machine.stats().window_cuts <= most_cuts


@pytest.mark.parametrize("gap_ms", [0.1, 0.4, 0.5, 1.0, 3.0])
def test_a_worker_that_submits_slowly_is_not_taken_for_loss(gap_ms):
    """A round trip takes 0.2 ms. Without loss, the others wait for the slow one's chunks."""
    network = quiet(1, slots=512)
    actors = network.admit(replace(QUIET, window=256, timers=Timers()), SERVER_PORT[1])
    sums = [Round("add", [np.full(chunks * LANES, 1, np.uint32)] * 3) for chunks in (32, *[1] * 200)]

    def submit(actor, worker, sum_):
        actor.machine.submit(sums[sum_].inputs[worker], "add")
        network.poke(actor)

    for worker, actor in enumerate(actors):
        for number in range(len(sums)):
            late = number * gap_ms / 1000 if worker == 0 else 0.0
            network.at(0.1 + late if number else 0.0, partial(submit, actor, worker, number))
    network.run_until(lambda: all(len(one.sums) == len(sums) for one in actors), seconds=10, packets=100_000)
    assert all((words == 3).all() for actor in actors for words in actor.sums.values())
    assert max(actor.machine.stats().resends for actor in actors) <= len(sums) / 4


def join_and_sum(network, actor, rounds, numbers):
    """Join with `numbers`, go to the run's start, and submit each round after the previous results."""
    machine, worker = actor.machine, actor.machine.worker_id
    mine = np.where(np.arange(len(numbers)) == worker, numbers, 0).astype(np.uint32)
    tickets = [machine.submit(mine, "add")]
    network.poke(actor)

    def look():
        if tickets[-1] in actor.sums:
            if len(tickets) == 1:
                np.testing.assert_array_equal(actor.sums.pop(0), numbers)
                machine.start_run(int(np.bitwise_xor.reduce(numbers)))
            if len(tickets) > len(rounds):
                machine.finish(network.now)
                network.poke(actor)
                return
            one = rounds[len(tickets) - 1]
            tickets.append(machine.submit(one.inputs[worker], one.op))
            network.poke(actor)
        network.at(network.now + 1e-3, look)

    network.at(0.0, look)


def run_with_strays(seed, *, worst, restart):
    """A job of one to five workers, and twenty strays from its ports, within 50 ms."""
    random = Random(seed)
    config = drawn_config(random, 1, first_chunk=random.choice([0, 1000, 2**32 - 2]))
    network = drawn_network(random, seed, worst)
    actors, rounds = network.admit(config, SERVER_PORT[1]), drawn_rounds(random, config.workers)
    numbers = np.random.default_rng(seed).integers(1, 1 << 32, config.workers, dtype=np.uint32)
    for actor in actors:
        join_and_sum(network, actor, rounds, numbers)
    for _ in range(20):
        actor, chunk, kind = random.choice(actors), random.randrange(1 << 32), random.choice(STRAY_KINDS)
        packet = stray(config, actor.machine.worker_id, chunk, kind)
        for _ in range(random.choice([1, 1, 2])):
            at = random.uniform(0, 0.05)
            network.at(at, lambda port=actor.port, packet=packet: network.inject(port, packet))
    if restart:
        network.at(random.uniform(0, 0.05), lambda: network.restart_server(SERVER_PORT[1]))
    network.run_until(lambda: all(not actor.alive for actor in actors), seconds=30.0, packets=30_000)
    for actor in actors:
        actor.sums = {ticket - 1: words for ticket, words in actor.sums.items()}
    check(actors, rounds)
    return network


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("worst", [0.0, 0.2])
@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 5))]
)
def test_sums_are_exact_whatever_strays_come(block, worst, restart):
    for seed in range(block * 10, block * 10 + 10):
        run_with_strays(seed, worst=worst, restart=restart)
