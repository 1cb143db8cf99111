"""Tensors that all workers of a job sum, with results computed independently, and jobs of a virtual network.

Jobs are drawn by a seed; workers submit their tensors at their own times, or all at once.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from virtual_network import Faults, VirtualNetwork

from peelsum.summation import Op, Words
from peelsum.transport import JobConfig, Timers
from peelsum.transport.endpoint_state import GATHER, SCATTER, SUM
from peelsum.wire import MAX_WORKERS, pack
from peelsum.wire.clock import NEVER_TICKS

LANES, SLOTS = 4, 256
TIMERS = Timers(
    first_answer=0.02, resend_least=0.002, resend_most=0.1, need=0.004, need_most=0.1, linger=3.0, stall=50.0
)
QUIET = JobConfig(job_id=1, generation=3, workers=3, lanes=LANES, window=8, timers=TIMERS)
#: By job.
SERVER_PORT = {1: 10, 2: 150}


@dataclass
class Round:
    """One tensor of every worker, and its expected result."""

    op: Op
    inputs: list[Words]
    collective: Literal["sum", "scatter", "gather"] = "sum"
    root: int | None = None

    def submit(self, endpoint, worker):
        """Submit a worker's tensor, and return its ticket."""
        collective = {"sum": SUM, "scatter": SCATTER, "gather": GATHER}[self.collective]
        return endpoint.submit(self.inputs[worker], self.op, collective=collective, root=self.root)

    def expected_at(self, worker):
        """Return the result of one worker."""
        if self.collective == "sum":
            return self.expected
        if self.collective == "scatter":
            return np.split(self.expected, len(self.inputs))[worker]
        return np.concatenate(self.inputs) if self.root is None else self.inputs[self.root]

    @property
    def expected(self):
        """Return the workers' sum modulo 2**32, or their bitwise OR."""
        if self.op == "or":
            return np.bitwise_or.reduce(self.inputs)
        return np.sum(np.asarray(self.inputs, np.uint64), axis=0).astype(np.uint32)


def drawn_rounds(random, workers, *, collectives=False):
    """One to four tensors, about 40 chunks in all, of any length from nothing up; more for collectives."""
    numbers = np.random.default_rng(random.randrange(1 << 32))
    rounds = []
    for _ in range(random.randint(1, 5 if collectives else 4)):
        kind = random.choice(["sum", "scatter", "gather", "gather"]) if collectives else "sum"
        size = random.choice([0, 1, LANES, random.randint(2, (60 if collectives else 20) * LANES)])
        length = size * workers if kind == "scatter" else size
        inputs = [numbers.integers(0, 1 << 32, length, dtype=np.uint32) for _ in range(workers)]
        op = {"sum": random.choice(["add", "add", "or"]), "scatter": "add", "gather": "or"}[kind]
        root = random.choice([None, random.randrange(workers)]) if kind == "gather" else None
        rounds.append(Round(op, inputs, kind, root))
    return rounds


def drawn_config(random, job_id, first_chunk, racks=0, windows=(1, 3, 8, 16)):
    sizes = tuple(random.randint(1, 3) for _ in range(racks))
    window = random.choice(windows)
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


def drawn_network(random, seed, worst, racks=0):
    """Return a network with faults of at most these probabilities, and some age limit of slots."""
    faults, age = Faults.drawn(random, worst), random.choice([0, 40, 15_625, NEVER_TICKS])
    return VirtualNetwork(seed, lanes=LANES, slots=SLOTS, racks=racks, faults=faults, age_limit=age)


def quiet(seed, *, slots=SLOTS, racks=0, drop=0.0):
    """Return a network that at most loses packets, with slots that do not age."""
    faults = Faults(drop=drop)
    return VirtualNetwork(seed, lanes=LANES, slots=slots, racks=racks, faults=faults, age_limit=NEVER_TICKS)


def play(network, actors, rounds):
    """Let each worker submit its tensors at its own times, some at once and some after a result."""
    for worker, actor in enumerate(actors):
        start = network.random.choice([0.0, network.random.uniform(0, 0.05)])
        network.at(start, lambda worker=worker, actor=actor: submit_next(network, actor, worker, rounds, 0))


def submit_next(network, actor, worker, rounds, number):
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


def submit_all(network, actors, rounds):
    """Let all workers submit all their tensors now."""
    for worker, actor in enumerate(actors):
        for round_ in rounds:
            round_.submit(actor.machine, worker)
        network.poke(actor)


def check(actors, rounds):
    """Assert that every worker has every result, and that all are exact."""
    for worker, actor in enumerate(actors):
        assert sorted(actor.sums) == list(range(len(rounds)))
        for ticket, round_ in enumerate(rounds):
            np.testing.assert_array_equal(actor.sums[ticket], round_.expected_at(worker))


def stray(config, worker, chunk, kind):
    """Return a packet from `worker`, of a chunk outside its window."""
    header = {"job_id": config.job_id, "generation": config.generation, "sender": worker}
    lanes, place = np.full((1, config.lanes), 0x5EED5EED, np.uint32), 1 << worker % MAX_WORKERS
    return pack(lanes, kind=kind, chunk_id=chunk & 0xFFFFFFFF, bitmap=place, **header).tobytes()
