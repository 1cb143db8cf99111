"""A strategy goes on after one gradient that is far too large, as it would have without it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from network_model import World

pytest.importorskip("torch", reason="torch is not installed")

from peelsum.allreduce import LocalSummation
from peelsum.compress import DENSE, CompressedSum, Flexible, LinkModel, Memory
from peelsum.compress.reducers import compressor_of

WORKERS, ELEMENTS = 2, 60
SPIKE_AT, LATER, STEPS = 15, 75, 100
SETTINGS = Flexible(ratios=(0.5, 0.2), explore_steps=2, explore_after=20)
#: Links over which dense sums are best, and those over which sparse ones are.
LINKS = {"dense": LinkModel(1e-5, 100.0), "sparse": LinkModel(1e-4, 1.0)}


class Group:
    """Workers that sum a gradient by a strategy's decisions; `error` is that of all later sums together."""

    def __init__(self, spike):
        self.spike, self.error, self.gain = spike, np.zeros(ELEMENTS), 1.0
        self.seats = [(seat, Memory()) for seat in LocalSummation.group(WORKERS)]
        self.sums = {}

    def step(self, step, plan):
        """Sum a gradient of every worker, as the step's decision says."""
        given = np.random.default_rng(step).standard_normal((WORKERS, ELEMENTS)).astype(np.float32)
        given *= np.float32(self.spike if step == SPIKE_AT else 1.0)
        key = plan.method, plan.ratio
        if key not in self.sums:
            compressor = compressor_of(*key)
            self.sums[key] = [
                CompressedSum(seat, compressor, kept, error_feedback=True) for seat, kept in self.seats
            ]
        with ThreadPoolExecutor(WORKERS) as pool:
            results = list(pool.map(lambda own, one: own.sum({"a": one}, step), self.sums[key], given))
        self.gain = results[0].sent_energy / results[0].offered_energy
        if step >= LATER:
            self.error += results[0]["a"].values - given.astype(np.float64).mean(0)


@pytest.mark.parametrize("best", LINKS)
def test_later_sums_are_as_close_to_the_gradients_as_without_a_spike(best):
    errors, methods = [], []
    for spike in (1.0, 1e9):
        group = Group(spike)
        gain, select_s = lambda step, ratio, group=group: group.gain, 0.02 if best == "dense" else 1e-3
        world = World(lambda _: LINKS[best], gain=gain, noise=0.0, select_s=select_s, summing=group.step)
        world.run(SETTINGS, STEPS)
        errors.append(np.abs(group.error).max())
        methods.append({method for method, _, _ in world.used[LATER:]})
    assert all((set(DENSE) >= one) == (best == "dense") for one in methods)
    assert errors[1] <= errors[0] + 1e-6
