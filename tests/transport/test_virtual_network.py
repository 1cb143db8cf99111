"""Every worker gets the exact sums in bounded time, under any losses, repeats, reordering and restarts.

With racks, leaves below a spine sum, too.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from rounds import Round
from virtual_network import Actor, Faults, VirtualNetwork

from peelsum.transport import JobConfig, Timers
from peelsum.wire import Kind, Verdict
from peelsum.wire.clock import NEVER_TICKS

LANES, SLOTS = 4, 256
TIMERS = Timers(
    first_answer=0.02, resend_least=0.002, resend_most=0.1, need=0.004, need_most=0.1, linger=3.0, stall=50.0
)
QUIET = JobConfig(job_id=1, generation=3, workers=3, lanes=LANES, window=8, timers=TIMERS)
SERVER_PORT = {1: 10, 2: 150}


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
        assert rounds[number].submit(actor.machine, worker) == number
        number += 1
    network.poke(actor)
    if actor.machine._finishing:
        return
    pause = network.random.choice([1e-4, 5e-3])
    network.at(network.now + pause, lambda: submit_next(network, actor, worker, rounds, number))


def quiet(seed: int, *, slots: int = SLOTS, racks: int = 0, drop: float = 0.0) -> VirtualNetwork:
    """Return a network that at most loses packets, with slots that do not age."""
    faults = Faults(drop=drop)
    return VirtualNetwork(seed, lanes=LANES, slots=slots, racks=racks, faults=faults, age_limit=NEVER_TICKS)


def summing(network: VirtualNetwork, config: JobConfig, chunks: int) -> list[Actor]:
    """Admit a job of three workers that sum 1, 2 and 4."""
    actors = network.admit(config, SERVER_PORT[1])
    for worker, actor in enumerate(actors):
        actor.machine.submit(np.full(chunks * LANES, 1 << worker, np.uint32), "add")
        network.poke(actor)
    return actors


def check(actors: list[Actor], rounds: list[Round]) -> None:
    for worker, actor in enumerate(actors):
        assert sorted(actor.sums) == list(range(len(rounds)))
        for ticket, one in enumerate(rounds):
            np.testing.assert_array_equal(actor.sums[ticket], one.expected_at(worker))


def drawn_config(random: Random, job_id: int, first_chunk: int, racks: int = 0) -> JobConfig:
    sizes = tuple(random.randint(1, 3) for _ in range(racks))
    window = random.choice([1, 3, 8, 16])
    return JobConfig(
        job_id=job_id,
        generation=random.randrange(1 << 16),
        workers=sum(sizes) or random.randint(1, 5),
        lanes=LANES,
        window=window,
        first_chunk=first_chunk,
        initial_window=random.choice([1, 4, window]),
        racks=sizes,
        timers=TIMERS,
    )


def run(
    seed: int, *, worst: float = 0.3, racks: int = 0, jobs: int = 1, restarts: bool = False
) -> VirtualNetwork:
    random = Random(seed)
    faults = Faults.drawn(random, worst)
    age = random.choice([0, 40, 15_625, NEVER_TICKS])
    network = VirtualNetwork(seed, lanes=LANES, slots=SLOTS, racks=racks, faults=faults, age_limit=age)
    played = []
    start = random.choice([0, 1000, (1 << 32) - random.randint(1, 40)])
    for job_id in range(1, jobs + 1):
        config = drawn_config(random, job_id, start, racks)
        actors = network.admit(config, SERVER_PORT[job_id])
        rounds = drawn_rounds(random, config.workers)
        play(network, actors, rounds)
        played.append((actors, rounds))
    if restarts:
        network.at(random.uniform(0, 0.05), lambda: network.restart_server(SERVER_PORT[1]))
        for number in range(1 + racks):
            network.at(random.uniform(0, 0.05), lambda number=number: network.restart_switch(number))
    network.run_until(
        lambda: all(not actor.alive for actors, _ in played for actor in actors),
        seconds=30.0,
        packets=20_000 * (jobs if racks else 1),
    )
    for actors, rounds in played:
        check(actors, rounds)
    return network


def blocks(first: int, count: int, of: int = 10) -> pytest.MarkDecorator:
    """Run a test with `count` blocks of seeds."""
    each = [range(first + of * number, first + of * (number + 1)) for number in range(count)]
    return pytest.mark.parametrize("seeds", each, ids=lambda seeds: f"from {seeds.start}")


@blocks(0, 15)
def test_sums_are_exact_whatever_the_network_does(seeds: range) -> None:
    for seed in seeds:
        run(seed)


@blocks(1000, 8)
def test_sums_are_exact_when_server_and_switch_restart(seeds: range) -> None:
    for seed in seeds:
        run(seed, restarts=True)


@blocks(2000, 5)
def test_sums_are_exact_when_two_jobs_share_the_slots(seeds: range) -> None:
    for seed in seeds:
        run(seed, jobs=2)


@blocks(4000, 6)
def test_sums_of_racks_are_exact_whatever_the_network_does(seeds: range) -> None:
    for seed in seeds:
        run(seed, worst=0.25, racks=2)


@blocks(5000, 5)
def test_sums_are_exact_when_leaves_spine_and_server_restart(seeds: range) -> None:
    for seed in seeds:
        run(seed, worst=0.25, racks=2, restarts=True)


@blocks(6000, 1)
def test_any_number_of_racks(seeds: range) -> None:
    for seed in seeds:
        run(seed, worst=0.25, racks=1 + seed % 4, restarts=True)


@blocks(7000, 3, of=5)
def test_sums_are_exact_when_two_jobs_share_the_slots_of_both_levels(seeds: range) -> None:
    networks = [run(seed, worst=0.25, racks=2, jobs=2, restarts=seed % 2 == 0) for seed in seeds]
    assert sum(one.verdicts[Verdict.COLLIDED] for network in networks for one in network.switches)


def rejoin(seed: int) -> None:
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


@blocks(3000, 4)
def test_a_new_generation_is_not_touched_by_the_old_one_s_packets(seeds: range) -> None:
    for seed in seeds:
        rejoin(seed)


@pytest.mark.parametrize(
    ("racks", "seed"), [((), seed) for seed in range(10)] + [((2, 3), n) for n in range(5)]
)
def test_a_quiet_network_sums_every_chunk_in_the_switches(racks: tuple[int, ...], seed: int) -> None:
    network = quiet(seed, racks=len(racks))
    config = replace(QUIET, workers=sum(racks) or 3, racks=racks, first_chunk=0xFFFFFFF0)
    actors = network.admit(config, SERVER_PORT[1])
    rounds = drawn_rounds(network.random, config.workers)
    for worker, actor in enumerate(actors):
        for one in rounds:
            actor.machine.submit(one.inputs[worker], one.op)
        actor.machine.finish(0.0)
        network.poke(actor)
    network.run_until(
        lambda: not any(actor.alive for actor in actors), seconds=1.0, packets=10_000 if racks else 5000
    )
    check(actors, rounds)
    chunks = sum(-(-one.inputs[0].size // LANES) for one in rounds) + 1
    stats = network.actors[SERVER_PORT[1]].machine.stats()
    assert (stats.chunks_in_switch, stats.chunks_at_server) == (chunks, 0)
    assert network.switch.verdicts[Verdict.BYPASSED] == 0
    assert all(actor.machine.stats().resends == 0 and actor.confirmed for actor in actors)
    assert all(slot.tag == 0 for one in network.switches for slot in one.state)


@pytest.mark.parametrize("seed", range(10))
def test_a_worker_that_computes_keeps_nobody_waiting_for_a_result_it_has(seed: int) -> None:
    """Worker 0 takes its results and is deaf from then on; the others get theirs, lost ones too."""
    network = quiet(seed, drop=0.2)
    actors = summing(network, QUIET, 20)
    network.run_until(lambda: bool(actors[0].sums), seconds=10.0, packets=10_000)
    actors[0].alive = False
    until = network.now + 5.0
    network.run_until(lambda: all(actor.sums for actor in actors), seconds=until, packets=10_000)
    assert all((actor.sums[0] == 7).all() for actor in actors)


@pytest.mark.parametrize(
    ("seed", "drop", "seconds", "packets", "most_cuts"),
    [
        # 2% lost a hop: round trips of 0.2 ms for each window of 256, no chain of timers.
        pytest.param(5, 0.02, 1.0, 60_000, None, id="2%"),
        # 8 hops each: 63 times 64 on the way. Half of a window may be lost by chance, hardly twice.
        pytest.param(6, 0.05, 0.2, 100_000, 1, id="5%"),
    ],
)
def test_random_loss_costs_round_trips_not_timeouts(
    seed: int, drop: float, seconds: float, packets: int, most_cuts: int | None
) -> None:
    network = quiet(seed, slots=4096, drop=drop)
    actors = summing(network, replace(QUIET, window=256, timers=Timers()), 4000)
    network.run_until(lambda: all(actor.sums for actor in actors), seconds=seconds, packets=packets)
    stats = network.actors[SERVER_PORT[1]].machine.stats()
    assert stats.chunks_in_switch > (3 if most_cuts is None else 0) * stats.chunks_at_server
    for actor in actors:
        assert (actor.sums[0] == 7).all()
        assert most_cuts is None or actor.machine.stats().window_cuts <= most_cuts


def test_what_a_rack_gives_up_reaches_the_server() -> None:
    """One worker is silent: the server learns both partial sums by asking, before any worker resends."""
    config = replace(QUIET, workers=4, racks=(2, 2), timers=replace(TIMERS, first_answer=10.0))
    network = quiet(1, racks=2)
    actors = network.admit(config, SERVER_PORT[1])
    for worker in (0, 1, 2):
        actors[worker].machine.submit(np.full(1, 1 << worker, np.uint32), "add")
        network.poke(actors[worker])
    server = network.actors[SERVER_PORT[1]].machine

    def bypass() -> None:
        packet = actors[1].machine.state.packets[0].view(np.uint8).copy()
        packet[1] = Kind.BYPASS
        network.inject(actors[1].port, packet.tobytes())

    # Something of the chunk has to come for the server to ask: worker 1's contribution, once more by hand.
    network.at(0.001, bypass)
    network.run_until(
        lambda: (stall := server.stalled(network.now)) is not None and stall.missing_workers == (33,),
        seconds=0.02,
        packets=200,
    )
    assert all(actor.machine.stats().resends == 0 for actor in actors)
    # ... and tells everybody whom it waits for.
    network.run_until(
        lambda: actors[0].machine.stalled(network.now).missing_workers == (33,), seconds=1.0, packets=400
    )
