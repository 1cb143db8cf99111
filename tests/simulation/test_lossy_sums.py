"""What lost packets cost: a sum's virtual time, and what workers do, beside the same without loss."""

from functools import cache, partial

import numpy as np
import pytest

from peelsum.simulation import Job, NetworkSection, Scenario, Simulation, Train
from peelsum.simulation.links import SimulatedLink
from peelsum.simulation.scenario import Straggler
from peelsum.simulation.trains import ps

LANES, CHUNKS = 32, 1024


class FaultyLink(SimulatedLink):
    """A link that loses packets in bursts (Gilbert and Elliott), or holds some back behind later ones.

    bursts: how many bursts begin per packet, and a burst's mean length. late: the share of packets that
    arrive up to `late_s` later.
    """

    def __init__(self, spec, seed, number, *, bursts=(0.0, 1.0), late=0.0, late_s=2e-6):
        super().__init__(spec, seed, number)
        self._random, self._bad = np.random.default_rng([seed, number]), False
        self._begins, self._ends = bursts[0], 1 / bursts[1]
        self._late, self._late_ps = late, ps(late_s)

    def send(self, train):
        arrived, random = super().send(train), self._random
        kept = np.ones(len(arrived), np.bool_)
        for row in range(len(arrived)):
            self._bad = random.random() < (1 - self._ends if self._bad else self._begins)
            kept[row] = not self._bad
        held = np.where(random.random(len(arrived)) < self._late, self._late_ps, 0)
        times = (arrived.times + held * random.random(len(arrived)).round(3)).astype(np.int64)[kept]
        order = np.argsort(times, kind="stable")
        return Train(times[order], arrived.sizes[kept][order], arrived.data[kept][order])


#: 1% of packets lost, four at a time.
BURSTS = partial(FaultyLink, bursts=(0.0025, 4.0))
REORDERED = partial(FaultyLink, late=0.01)


def summed(loss, seed, *, link=SimulatedLink, workers=8, **job):
    """Simulate a sum at 20 Gbit/s, with the timers by default."""
    network = NetworkSection(gbps=20.0, loss=loss)
    jobs = (Job(workers=workers, **{"elements": LANES * CHUNKS, **job}),)
    row = Simulation(Scenario(seed=seed, lanes=LANES, network=network, jobs=jobs), link=link).run().jobs[0]
    assert row.wrong == 0
    return row


SLOW = (Straggler(worker=3, gbps=5.0),)
SEEDS = range(1, 8)


@cache
def without_loss(*, slow=False):
    return summed(0.0, 1, stragglers=SLOW if slow else ()).seconds


@pytest.mark.parametrize("slow", [False, True], ids=["equal", "slow link"])
@pytest.mark.parametrize(("loss", "least"), [(0.001, 0.95), (0.01, 0.68), (0.05, 0.35)])
def test_random_loss_leaves_this_share_of_the_goodput(loss, least, slow):
    """Windows that losses shrink, and tries that follow timers, left 0.38 at 1% and 0.11 at 5%.

    Slots that keep no results left 0.62 and 0.30.
    """
    job = {"stragglers": SLOW} if slow else {}
    shares = [without_loss(slow=slow) / summed(loss, seed, **job).seconds for seed in SEEDS]
    assert np.median(shares) >= least, shares


@pytest.mark.parametrize(("link", "least"), [(BURSTS, 0.6), (REORDERED, 0.75)], ids=["bursts", "reordered"])
def test_bursts_of_losses_and_reordering_leave_this_share_of_the_goodput(link, least):
    shares = [without_loss() / summed(0.0, seed, link=link).seconds for seed in SEEDS]
    assert np.median(shares) >= least, shares


@pytest.mark.parametrize("chunks", [1, 8])
@pytest.mark.parametrize(("loss", "times"), [(0.001, 2.0), (0.01, 3.0), (0.05, 8.0)])
def test_the_end_of_a_sum_waits_for_round_trips_not_for_timers(chunks, loss, times):
    """200 sums end 200 times where no later packet reveals a loss. By a timer, each could take 0.1 s."""
    sums = {"elements": LANES * chunks, "sums": 200}
    assert summed(loss, 1, **sums).seconds <= times * summed(0.0, 1, **sums).seconds
