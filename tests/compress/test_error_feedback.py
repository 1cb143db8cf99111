"""Sent and kept add up to the gradients, bit for bit, over any sparsifier, any scale and any step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compressors import Workers
from hypothesis import given, settings
from hypothesis import strategies as st

from peelsum.compress import CompressConfigError, Indexed, Memory, RandomK, Residual, Threshold, TopK
from peelsum.compress.memory import Exact

SPARSIFIERS = {
    "exact": TopK(0.1),
    "sampled": TopK(0.1, sample=0.3),
    "bucket": TopK(0.1, per="bucket"),
    "warm-up": TopK(0.05, warm_up_steps=3),
    "random": RandomK(0.2),
    "random, indexed": Indexed(RandomK(0.2)),
    "threshold": Threshold(1e-3),
}


def gradients(rng, workers, spread):
    """Of every worker: two tensors, of magnitudes that differ by tensor, worker and element."""
    return [
        {
            name: (rng.standard_normal(n) * 2.0 ** rng.integers(-spread, spread + 1, n)).astype(np.float32)
            for name, n in (("a", 60), ("b", 17))
        }
        for _ in range(workers)
    ]


@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["", "momentum"])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS.values(), ids=SPARSIFIERS)
def test_sent_and_kept_balance_at_every_step(sparsifier, momentum):
    rng, workers = np.random.default_rng(5), Workers(sparsifier, 2, memory={"momentum": momentum})
    for _ in range(6):
        workers.step(gradients(rng, 2, 3))
        for one in workers.sums:
            one.memory.balance()
    assert any(residual.numbers.any() for residual in workers.sums[0].memory.residuals.values())


@given(st.integers(0, 2**32 - 1), st.sampled_from(list(SPARSIFIERS)), st.integers(0, 12), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_magnitudes_balance(seed, name, spread, predict):
    rng = np.random.default_rng(seed)
    allreduce = {"sparse": ("a", "b"), "predict": predict}
    workers = Workers(SPARSIFIERS[name], 3, allreduce=allreduce)
    for _ in range(4):
        workers.step(gradients(rng, 3, spread))
        for one in workers.sums:
            one.memory.balance()


def test_all_that_is_kept_is_sent_in_the_end():
    """With gradients of zero from some step on, the sums come to all gradients, each exactly once."""
    rng, workers = np.random.default_rng(1), Workers(TopK(0.5), 2)
    own = gradients(rng, 2, 1)
    zero = [{name: np.zeros_like(one) for name, one in each.items()} for each in own]
    for step in range(12):
        workers.step(own if step == 0 else zero)
    for one in workers.sums:
        one.memory.balance()
        assert not any(residual.numbers.any() for residual in one.memory.residuals.values())
        assert one.memory.sent == one.memory.accumulated


def test_numbers_that_outgrow_the_grid_get_a_coarser_one():
    workers = Workers(TopK(0.02), 2)
    grid = {"a": np.linspace(0.5, 1, 60, dtype=np.float32), "b": np.zeros(17, np.float32)}
    memory = workers.sums[0].memory
    workers.step([grid, grid])
    fine = memory.residuals["a"].scale
    large = {name: one * np.float32(2.0**40) for name, one in grid.items()}
    workers.step([large, large])
    kept = memory.residuals["a"]
    assert kept.scale == fine - 41
    assert memory.residuals["b"].scale is None
    expected = large["a"].astype(np.float64)
    inside = kept.numbers != 0
    assert inside.sum() == 58
    np.testing.assert_allclose(
        np.ldexp(kept.numbers[inside].astype(float), -kept.scale), expected[inside], 1e-6
    )


def test_momentum_is_that_of_deep_gradient_compression():
    """u = m u + g, v = v + u; of v the largest is sent, and there u starts again from zero."""
    workers = Workers(TopK(1 / 60), 1, memory={"momentum": 0.5})
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
        np.testing.assert_array_equal(np.ldexp(residual.numbers.astype(float), -residual.scale), kept)
        np.testing.assert_array_equal(np.ldexp(residual.velocity.astype(float), -residual.scale), velocity)


def test_a_residual_of_another_shape_is_refused():
    memory = Memory()
    memory.residuals |= memory.grown({"a": np.zeros(4, np.float32)}, 1)
    with pytest.raises(CompressConfigError, match="residual: a has 4 elements, its gradient 5"):
        memory.grown({"a": np.ones(5, np.float32)}, 1)


def test_what_is_put_back_is_the_same_though_the_grid_became_finer_meanwhile():
    """The second of two buckets sends quarters. What was there before comes back, in quarters."""
    residual = Residual(np.array([8, 3]), np.array([5, 7]), scale=0)
    sent = [
        residual.send(Exact(np.array([at]), np.array([units]), scale))
        for at, units, scale in ((0, 8, 0), (1, 3, 2))
    ]
    assert (residual.scale, residual.numbers.tolist(), residual.velocity.tolist()) == (2, [0, 9], [0, 0])
    for one in sent:
        one.put_back()
    assert (residual.scale, residual.numbers.tolist(), residual.velocity.tolist()) == (2, [32, 12], [20, 28])


def test_velocities_are_rounded_to_the_nearest_on_the_grid():
    residual = Residual(np.zeros(4, np.int64), np.array([3, -3, 5, 7]), scale=0)
    grown = residual.grown(np.zeros(4, np.float32), 0.5)
    assert grown.velocity.tolist() == grown.numbers.tolist() == [2, -2, 2, 4]


@pytest.mark.parametrize("seed", range(20))
def test_grids_do_not_depend_on_what_is_known_of_the_numbers(seed):
    """A bound on the numbers is kept between steps, but not in a checkpoint; residuals are the same."""
    rng, known, other = np.random.default_rng(seed), *(Residual(np.zeros(6, np.int64)) for _ in range(2))
    scales = set()
    for step in range(30):
        gradient = np.ldexp(rng.standard_normal(6), step + int(rng.integers(0, 4))).astype(np.float32)
        known, other = known.grown(gradient, 0.0), replace(other, most=None).grown(gradient, 0.0)
        at, finer, back = rng.permutation(6)[:2], int(rng.integers(0, 3)), rng.integers(3) == 0
        sent = Exact(at, -known.numbers[at] << finer, known.scale + finer)  # so that numbers become larger
        for one in (known, other):
            taken = one.send(sent)
            if back:
                taken.put_back()
        assert known.most is None or known.most >= abs(known.numbers).max()
        assert known.scale == other.scale
        np.testing.assert_array_equal(known.numbers, other.numbers)
        scales.add(known.scale)
    assert len(scales) > 1
