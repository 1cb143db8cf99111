"""Sent and kept add up to the gradients, bit for bit, over any sparsifier, any scale and any step."""

import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from compressors import Workers, exactly, grown
from compressors import kept as kept_by

from peelsum.allreduce import LocalSummation
from peelsum.compress import (
    CompressConfigError,
    CompressedSum,
    Dense,
    Memory,
    RandomK,
    Residual,
    Threshold,
    TopK,
)

SPARSIFIERS = [
    TopK(0.1),
    TopK(0.05, sample=0.3, warm_up_steps=3),
    TopK(0.1, per="bucket"),
    RandomK(0.2, seeds="own"),
    Threshold(1e-3),
]


def gradients(rng, workers, spread):
    """Of every worker: two tensors, of magnitudes that differ by tensor, worker and element."""

    def drawn(n):
        return (rng.standard_normal(n) * 2.0 ** rng.integers(-spread, spread + 1, n)).astype(np.float32)

    return [{"a": drawn(60), "b": drawn(17)} for _ in range(workers)]


def test_momentum_is_that_of_deep_gradient_compression():
    """u = m u + g, v = v + u; of v the largest is sent, and there u starts again from zero."""
    workers = Workers(TopK(1 / 60, momentum=0.5), 1)
    velocity, kept = np.zeros(60), np.zeros(60)
    for step in range(5):
        own = {"a": np.full(60, 2.0**-step, np.float32)}
        own["a"][7 * step] = 1.5
        velocity = 0.5 * velocity + own["a"]
        kept += velocity
        largest = int(np.argmax(kept))
        (result,) = workers.step([own])
        assert result["a"].values[largest] == kept[largest]
        velocity[largest] = kept[largest] = 0
        residual = workers.sums[0].memory.residuals["a"]
        np.testing.assert_array_equal(kept_by(residual), kept)
        np.testing.assert_array_equal(kept_by(replace(residual, numbers=residual.velocity)), velocity)


@pytest.mark.parametrize(("overflows", "other"), ["ab", "ba"])
@pytest.mark.parametrize("sparsifier", [*SPARSIFIERS, TopK(0.1, momentum=0.5)], ids=str)
def test_an_overflow_on_one_worker_has_every_worker_keep_all_of_the_step(sparsifier, overflows, other):
    """Bucket "a" is the first of a step, "b" the last."""
    rng, workers = np.random.default_rng(2), Workers(sparsifier, 2, kind=Memory)
    finite, infinite = gradients(rng, 2, 3), gradients(rng, 2, 3)
    infinite[1][overflows][5] = np.inf
    before = []
    for step, tensors in enumerate([finite, infinite]):
        before = [copy.deepcopy(one.memory.residuals) for one in workers.sums]
        for bucket in "ab":
            results = workers.step([{bucket: own[bucket]} for own in tensors], step)
            assert all(one[bucket].finite != (step == 1 and bucket == overflows) for one in results)
    for own, one, was in zip(infinite, workers.sums, before, strict=True):
        np.testing.assert_equal(vars(one.memory.residuals[overflows]), vars(was[overflows]))
        added = [Fraction(float(value)) for value in own[other]]
        if sparsifier.momentum:
            velocity = exactly(was[other].velocity, was[other].scales)
            added = [last / 2 + fresh for last, fresh in zip(velocity, added, strict=True)]
            assert exactly(one.memory.residuals[other].velocity, one.memory.residuals[other].scales) == added
        kept = zip(exactly(was[other].numbers, was[other].scales), added, strict=True)
        residual = one.memory.residuals[other]
        assert exactly(residual.numbers, residual.scales) == [sum(pair) for pair in kept]


def test_a_residual_of_another_shape_is_refused():
    memory = Memory()
    memory.residuals |= memory.add_gradients({"a": np.zeros(4, np.float32)})
    with pytest.raises(CompressConfigError, match="residual: a has 4 elements, its gradient 5"):
        memory.add_gradients({"a": np.ones(5, np.float32)})


def test_velocities_are_rounded_to_the_nearest_on_the_grid():
    """If there is room, the grid becomes finer first, so that no velocity stops to decay."""
    for kept, expected in ((0, [1.5, -1.5, 2.5, 3.5]), (2**58, [2, -2, 2, 4])):
        residual = Residual(np.full(4, kept), np.zeros(4, np.int16), np.array([3, -3, 5, 7]))
        more = grown(residual, np.zeros(4, np.float32), 0.5)
        assert np.ldexp(more.velocity, -more.scales).tolist() == expected
        assert [one - kept for one in exactly(more.numbers, more.scales)] == expected


@pytest.mark.parametrize(
    ("numbers", "scales"),
    [([1.0], [0]), ([1, 2], [0]), ([[1]], [[0]]), ([-(2**63)], [0]), ([2**61 + 1], [0]), ([1], [-2000])],
    ids=["floats", "too few", "matrix", "least", "many bits", "coarse"],
)
def test_damaged_residuals_are_refused(numbers, scales):
    kind = np.float64 if isinstance(numbers[0], float) else np.int64
    damaged = Residual(np.array(numbers, kind), np.array(scales, np.int16))
    with pytest.raises(CompressConfigError, match="residual: w has arrays of other types, sizes or ranges"):
        Memory().restore({"w": damaged})


def test_momentum_begins_with_no_velocity_and_ends_without_one():
    """As in a training that goes on from a checkpoint with another momentum."""
    plain = grown(Residual(np.zeros(2, np.int64), np.zeros(2, np.int16)), np.float32([1, 2]), 0.0)
    moving = grown(grown(plain, np.float32([4, 0]), 0.5), np.float32([0, 1]), 0.5)
    assert plain.velocity is None
    assert exactly(moving.velocity, moving.scales) == [2, 1]
    assert exactly(moving.numbers, moving.scales) == [1 + 4 + 2, 2 + 1]
    assert grown(moving, np.float32([1, 1]), 0.0).velocity is None


@pytest.mark.parametrize("broken", [0, 1])
def test_sums_over_one_memory_have_steps_of_their_own(broken):
    """A step that is skipped changes nothing that the other sum has sent or keeps."""
    (seat,), memory = LocalSummation.group(1), Memory()
    sums = CompressedSum(seat, TopK(1.0), memory), CompressedSum(seat, Dense(), memory, error_feedback=True)
    for number, one in enumerate(sums):
        last = np.float32([np.nan if number == broken else 5])
        result = one.sum({f"x{number}": np.float32([1, 2, 3]), "y": last})
        assert result["y"].finite == (number != broken)
    for number in range(2):
        left = kept_by(memory.residuals[f"x{number}"])
        np.testing.assert_array_equal(left, np.float32([1, 2, 3]) * (number == broken))
