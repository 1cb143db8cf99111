"""Sent and kept add up to the gradients, bit for bit, over any way to choose, any scale and any step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

from peelsum.allreduce import Allreduce, LocalSummation
from peelsum.torch import HookConfigError, RandomK, Threshold, TopK
from peelsum.torch.checkpoint import loaded, saved
from peelsum.torch.error_feedback import ErrorFeedback

SPARSIFIERS = {
    "exact": TopK(0.1),
    "sampled": TopK(0.1, sample=0.3),
    "bucket": TopK(0.1, per="bucket"),
    "warm-up": TopK(0.05, warm_up_steps=3),
    "random": RandomK(0.2),
    "threshold": Threshold(1e-3),
}


class Books:
    """One worker's account, in Python's fractions, of what went into its error feedback and what came out."""

    def __init__(self, feedback, momentum=0.0):
        self.feedback, self.momentum = feedback, Fraction(momentum)
        self.accumulated, self.sent = {}, {}

    def enter(self, gradients, step):
        offered, grown = self.feedback.offered(gradients, step)
        for name, residual in grown.items():
            units = Fraction(2) ** -(residual.scale or 0)
            if residual.velocity is not None:
                fresh = [int(one) * units for one in residual.velocity]
            else:
                fresh = [round(Fraction(float(one)) / units) * units for one in gradients[name]]
            before = self.accumulated.get(name, [Fraction(0)] * len(fresh))
            self.accumulated[name] = [a + b for a, b in zip(before, fresh, strict=True)]
        return offered, grown

    def leave(self, grown, result, step):
        self.feedback.keep(grown, result, step)
        for name in grown:
            tensor = result[name]
            sent = np.asarray(tensor.quantized, np.int64).ravel()
            units = Fraction(2) ** -(tensor.scale or 0)
            before = self.sent.get(name, [Fraction(0)] * len(sent))
            self.sent[name] = [a + int(b) * units for a, b in zip(before, sent, strict=True)]

    def balance(self):
        for name, residual in self.feedback.residuals.items():
            units = Fraction(2) ** -(residual.scale or 0)
            kept = [int(one) * units for one in residual.numbers]
            assert [a + b for a, b in zip(self.sent[name], kept, strict=True)] == self.accumulated[name]


def step_of_all(books, reduces, gradients, step):
    """One step of every worker at once; the results."""

    def work(book, reduce, own):
        offered, grown = book.enter(own, step)
        result = reduce.sum(offered)
        book.leave(grown, result, step)
        return result

    with ThreadPoolExecutor(len(books)) as pool:
        return list(pool.map(work, books, reduces, gradients))


def gradients(rng, workers, spread):
    """Of every worker: two tensors, of magnitudes that differ by tensor, worker and element."""
    return [
        {
            name: (rng.standard_normal(n) * 2.0 ** rng.integers(-spread, spread + 1, n)).astype(np.float32)
            for name, n in (("a", 60), ("b", 17))
        }
        for _ in range(workers)
    ]


def group(sparsifier, workers=2, momentum=0.0, **options):
    reduces = [Allreduce(one, sparse=("a", "b"), **options) for one in LocalSummation.group(workers, 8)]
    return [Books(ErrorFeedback(sparsifier, momentum, seed=3), momentum) for _ in range(workers)], reduces


@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["", "momentum"])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS.values(), ids=SPARSIFIERS)
def test_sent_and_kept_balance_at_every_step(sparsifier, momentum):
    rng = np.random.default_rng(5)
    books, reduces = group(sparsifier, momentum=momentum)
    for step in range(6):
        step_of_all(books, reduces, gradients(rng, 2, 3), step)
        for book in books:
            book.balance()
    assert any(residual.numbers.any() for residual in books[0].feedback.residuals.values())


@given(st.integers(0, 2**32 - 1), st.sampled_from(list(SPARSIFIERS)), st.integers(0, 12), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_magnitudes_balance(seed, name, spread, predict):
    rng = np.random.default_rng(seed)
    books, reduces = group(SPARSIFIERS[name], workers=3, predict=predict, limbs=1 + seed % 2)
    for step in range(4):
        step_of_all(books, reduces, gradients(rng, 3, spread), step)
        for book in books:
            book.balance()


def test_all_that_is_kept_is_sent_in_the_end():
    """With gradients of zero from some step on, the sums come to all gradients, each exactly once."""
    rng = np.random.default_rng(1)
    books, reduces = group(TopK(0.5))
    own = gradients(rng, 2, 1)
    zero = [{name: np.zeros_like(one) for name, one in each.items()} for each in own]
    for step in range(12):
        step_of_all(books, reduces, own if step == 0 else zero, step)
    for book in books:
        book.balance()
        assert not any(residual.numbers.any() for residual in book.feedback.residuals.values())
        for name, accumulated in book.accumulated.items():
            assert book.sent[name] == accumulated


def test_a_gradient_that_is_not_finite_is_forgotten_and_told_to_all():
    rng = np.random.default_rng(2)
    books, reduces = group(TopK(0.3))
    step_of_all(books, reduces, gradients(rng, 2, 1), 0)
    before = [{name: one.numbers.copy() for name, one in book.feedback.residuals.items()} for book in books]
    own = gradients(rng, 2, 1)
    own[1]["b"][3] = np.inf
    for result in step_of_all(books, reduces, own, 1):
        assert result["a"].finite
        assert np.isnan(result["b"].values).all()
    for book, kept in zip(books, before, strict=True):
        np.testing.assert_array_equal(book.feedback.residuals["b"].numbers, kept["b"])


def test_a_checkpoint_in_the_middle_changes_nothing():
    def run(restored):
        rng = np.random.default_rng(9)
        books, reduces = group(TopK(0.2), momentum=0.5)
        for step in range(4):
            if restored and step == 2:
                for book in books:
                    values = saved(step, book.feedback)
                    book.feedback = ErrorFeedback(TopK(0.2), 0.5, seed=3)
                    assert loaded(values, book.feedback) == step
            results = step_of_all(books, reduces, gradients(rng, 2, 2), step)
            for book in books:
                book.balance()
        return results[0]["a"].values

    np.testing.assert_array_equal(run(False), run(True))


def test_numbers_that_outgrow_the_grid_get_a_coarser_one():
    books, reduces = group(TopK(0.02))
    grid = {"a": np.linspace(0.5, 1, 60, dtype=np.float32), "b": np.zeros(17, np.float32)}
    step_of_all(books, reduces, [grid, grid], 0)
    fine = books[0].feedback.residuals["a"].scale
    large = {name: one * np.float32(2.0**40) for name, one in grid.items()}
    step_of_all(books, reduces, [large, large], 1)
    kept = books[0].feedback.residuals["a"]
    assert kept.scale == fine - 41
    assert books[0].feedback.residuals["b"].scale is None
    expected = large["a"].astype(np.float64)
    inside = kept.numbers != 0
    assert inside.sum() == 58
    np.testing.assert_allclose(
        np.ldexp(kept.numbers[inside].astype(float), -kept.scale), expected[inside], 1e-6
    )


def test_momentum_is_that_of_deep_gradient_compression():
    """u = m u + g, v = v + u; of v the largest is sent, and there u starts again from zero."""
    books, reduces = group(TopK(1 / 60), workers=1, momentum=0.5)
    velocity, kept = np.zeros(60), np.zeros(60)
    for step in range(5):
        own = {"a": np.full(60, 2.0**-step, np.float32), "b": np.zeros(17, np.float32)}
        own["a"][7 * step] = 1.5
        velocity = 0.5 * velocity + own["a"]
        kept += velocity
        largest = int(np.argmax(kept))
        (result,) = step_of_all(books, reduces, [own], step)
        assert result["a"].values[largest] == kept[largest]
        velocity[largest] = kept[largest] = 0
        residual = books[0].feedback.residuals["a"]
        np.testing.assert_array_equal(np.ldexp(residual.numbers.astype(float), -residual.scale), kept)
        np.testing.assert_array_equal(np.ldexp(residual.velocity.astype(float), -residual.scale), velocity)


def test_a_residual_of_another_shape_is_refused():
    feedback = ErrorFeedback(TopK(0.5), 0.0, 0)
    values = saved(3, feedback)
    other = ErrorFeedback(TopK(0.5), 0.0, 0)
    other.residuals["a"] = other._residual("a", np.zeros(4, np.float32))
    with pytest.raises(HookConfigError, match="residual: a has 4 elements, its gradient 5"):
        other.offered({"a": np.ones(5, np.float32)}, 0)
    with pytest.raises(HookConfigError, match="make the state with no sparsifier"):
        loaded(saved(3, None) | {"residuals": {}}, None)
    with pytest.raises(HookConfigError, match="make the state with a sparsifier"):
        loaded(saved(3, None), feedback)
    with pytest.raises(HookConfigError, match="version: 9 is not supported"):
        loaded(values | {"version": 9}, feedback)
