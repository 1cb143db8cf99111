"""The state between steps: across changing buckets and scales, and in a checkpoint."""

from __future__ import annotations

import math
import threading
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from compressors import grown
from torch_alone import Sums

from peelsum.allreduce import Allreduce
from peelsum.compress import CompressedSum, Memory, Residual, Sparsifier
from peelsum.torch import HookConfigError, RandomK, SwitchAllreduceState, Threshold, TopK

SIZES = {"a": 6, "b": 11, "c": 3}


pytestmark = pytest.mark.usefixtures("alone")


class Training:
    """One worker's state, handed buckets of named gradients; `sent` and `given` add up, float64 by name."""

    def __init__(self, sparsifier, over=None, **options):
        self.parameters = {name: torch.nn.Parameter(torch.zeros(size)) for name, size in SIZES.items()}
        names = self.parameters.items()
        self.over = over or Sums()
        self.state = SwitchAllreduceState(over=self.over, names=names, compressor=sparsifier, **options)
        self.given = {name: np.zeros(size) for name, size in SIZES.items()}
        self.sent = {name: np.zeros(size) for name, size in SIZES.items()}

    def step(self, gradients, *buckets):
        """Run a step of buckets, each a string of names; return what was sent, by name."""
        sent = {}
        for names in buckets:
            buffer = torch.cat([torch.from_numpy(gradients[name]) for name in names])
            result = self.state.submit(buffer, [self.parameters[name] for name in names]).wait()
            parts = torch.split(result, [SIZES[name] for name in names])
            sent |= {name: part.numpy().copy() for name, part in zip(names, parts, strict=True)}
        self.state.end_step()
        for name, one in sent.items():
            self.given[name] += gradients[name]
            self.sent[name] += one
        return sent

    def kept(self, name):
        """The residual in the gradient's units."""
        return residual_of(self, name, "numbers")


def eighths(seed):
    """Gradients that every grid and float of these tests holds exactly."""
    rng = np.random.default_rng(seed)
    return {name: (rng.integers(-99, 100, size) / 8).astype(np.float32) for name, size in SIZES.items()}


@pytest.mark.parametrize("per", ["tensor", "bucket"])
@pytest.mark.parametrize("kind", [TopK, RandomK])
def test_buckets_in_another_order_and_of_other_members(kind, per):
    """A parameter's residual is sent with that parameter, in whatever bucket DDP has put it."""
    training = Training(kind(0.3, per=per))
    for seed, buckets in enumerate([("abc",), ("cab",), ("b", "ca"), ("bca",), ("abc",)]):
        training.step(eighths(seed), *buckets)
        for name in SIZES:
            np.testing.assert_array_equal(training.sent[name] + training.kept(name), training.given[name])
    assert training.kept("b").any()


def test_rebuilt_buckets_send_what_the_largest_residuals_are():
    training, largest = Training(TopK(1 / 11)), np.zeros(11)
    for seed, bucket in enumerate(["abc", "cba", "bac", "abc"]):
        gradients = eighths(seed)
        largest += gradients["b"]
        at = np.abs(largest).argmax()
        expected = np.zeros(11)
        expected[at], largest[at] = largest[at], 0.0
        np.testing.assert_array_equal(training.step(gradients, bucket)["b"], expected)


def test_random_choices_differ_by_step_seed_and_name_but_not_by_bucket():
    ones = {name: np.ones(size, np.float32) for name, size in SIZES.items()}

    def choices(buckets, seed=0):
        training = Training(RandomK(0.3, seed=seed))
        return [tuple(np.flatnonzero(training.step(ones, *one)["b"])) for one in buckets]

    usual = choices([("abc",)] * 6)
    assert len(set(usual)) > 1
    assert choices([("cab",), ("b", "ac")] * 3) == usual
    assert choices([("abc",)] * 6, seed=1) != usual


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_checkpoint_is_not_changed_by_further_steps(momentum):
    """Neither the one that was taken, nor the one that another state goes on from. It shares no memory."""
    training, other = (Training(TopK(0.3, momentum=momentum)) for _ in range(2))
    training.step(eighths(0), "abc")
    taken = training.state.state_dict()
    before = written(taken)
    sent = training.step(eighths(1), "abc")
    assert written(taken) == before != written(training.state.state_dict())
    other.state.load_state_dict(taken)
    np.testing.assert_equal(other.step(eighths(1), "abc"), sent)
    assert written(taken) == before
    assert written(other.state.state_dict()) == written(training.state.state_dict())
    latest, after = training.state.state_dict(), written(training.state.state_dict())
    other.state.load_state_dict(latest)
    for residual in latest["residuals"].values():
        for one in filter(torch.is_tensor, residual.values()):
            one.fill_(77)
    assert written(other.state.state_dict()) == after == written(training.state.state_dict())


def written(values):
    """A checkpoint in plain numbers."""
    return {
        name: written(one) if isinstance(one, dict) else one.tolist() if torch.is_tensor(one) else one
        for name, one in values.items()
    }


def test_a_checkpoint_waits_for_the_step_under_way():
    held = SlowSums()
    training = Training(TopK(0.3), over=held)
    buffer = torch.cat([torch.from_numpy(one) for one in eighths(0).values()])
    work = training.state.submit(buffer, list(training.parameters.values()))
    held.let_go_soon()
    assert set(training.state.state_dict()["residuals"]) == set(SIZES)
    work.wait()


class SlowSums(Sums):
    """Sums only when another thread has had time to look."""

    def __init__(self):
        super().__init__()
        self._gone = torch.futures.Future()

    def sum_words(self, parts):
        self._gone.wait()
        return super().sum_words(parts)

    def let_go_soon(self):
        threading.Timer(0.2, self._gone.set_result, [None]).start()


def test_restored_residuals_replace_others_and_steps_go_on():
    training = Training(RandomK(0.3))
    for seed in range(3):
        training.step(eighths(seed), "abc")
    taken = training.state.state_dict()
    assert taken["steps"] == 3
    other = Training(RandomK(0.3))
    other.step(eighths(7), "abc")
    other.state.load_state_dict(taken | {"residuals": {}})
    assert other.state.state_dict()["residuals"] == {}
    other.state.load_state_dict(taken)
    np.testing.assert_equal(other.step(eighths(3), "abc"), training.step(eighths(3), "abc"))


@pytest.mark.parametrize("overflows", ["a", "c"])
def test_a_step_that_is_skipped_leaves_all_as_if_nothing_had_been_sent(overflows):
    """In the first or the last of its buckets; velocities go on. The next sends again, restored or not."""
    training, restored = (Training(TopK(0.5, momentum=0.5)) for _ in range(2))
    largest = eighths(1)
    training.step(eighths(0), "a", "b", "c")
    velocity = residual_of(training, "b", "velocity")
    kept = residual_of(training, "b", "numbers")
    gradients = {name: one.copy() for name, one in largest.items()}
    gradients[overflows][1] = math.inf
    training.step(gradients, "a", "b", "c")
    velocity = 0.5 * velocity + largest["b"]
    np.testing.assert_array_equal(residual_of(training, "b", "velocity"), velocity)
    np.testing.assert_array_equal(residual_of(training, "b", "numbers"), kept + velocity)
    restored.state.load_state_dict(training.state.state_dict())
    nothing = {name: np.zeros_like(one) for name, one in largest.items()}
    sent = training.step(nothing, "a", "b", "c")
    assert np.count_nonzero(sent["b"]) == 6
    np.testing.assert_equal(restored.step(nothing, "a", "b", "c"), sent)


def test_the_step_after_a_skipped_one_is_sent_and_counted():
    training, kept = Training(TopK(0.5)), np.zeros(11)
    for step in range(8):
        gradients = eighths(step)
        kept += gradients["b"]
        skipped = step in (1, 4, 5)
        if skipped:
            gradients["c"][0] = math.nan
        sent = training.step(gradients, "a", "b", "c")["b"]
        assert np.count_nonzero(sent) == 6
        kept -= 0 if skipped else sent
        np.testing.assert_array_equal(training.kept("b"), kept)


def residual_of(training, name, field):
    """The residual or the velocity, in the gradient's units."""
    one = training.state.state_dict()["residuals"][name]
    return np.ldexp(one[field].numpy().astype(float), -one["scales"].numpy().astype(int))


def test_momentum_over_a_change_of_the_grid():
    """Velocity and residual move to the coarser scale together: u = m u + g holds, in its units."""
    kept = grown(Residual.zeros(4), np.full(4, 1.0, np.float32), 0.5)
    large = np.float32(2.0**30) * np.arange(1, 5, dtype=np.float32)
    more = grown(kept, large, 0.5)
    large = large.astype(float)
    assert np.ldexp(more.velocity, -more.scales).tolist() == (0.5 + large).tolist()
    assert np.ldexp(more.numbers, -more.scales).tolist() == (1.5 + large).tolist()


def test_the_grid_gives_way_to_velocities_too():
    """Velocities are added to the residual in every step, whatever the gradients; it must fit 62 bits."""
    velocity = np.array([2**59, -(2**59)], np.int64)
    kept = Residual(np.zeros(2, np.int64), np.full(2, 40, np.int16), velocity)
    more = grown(kept, np.full(2, 1.0, np.float32), 0.99)
    assert more.scales.max() < 40
    values = np.ldexp(more.velocity, -more.scales)
    np.testing.assert_allclose(values, velocity * 0.99 * 2.0**-40 + 1.0, rtol=1e-9)


@pytest.mark.parametrize(("bits", "scale"), [(59, 40), (60, 40), (61, 39)])
def test_the_scale_changes_when_the_next_sum_could_leave_61_bits(bits, scale):
    kept = Residual(np.array([2 ** (bits - 1)], np.int64), np.array([40], np.int16))
    more = grown(kept, np.full(1, 1.0, np.float32), 0.0)
    assert more.scales.tolist() == [scale]
    assert more.numbers[0] == round((2 ** (bits - 1) + 2**40) * 2.0 ** (scale - 40))


def test_a_gradient_beyond_all_of_the_scale_leaves_nothing_of_what_its_element_kept():
    kept = Residual(np.array([1, 1], np.int64), np.full(2, 140, np.int16), np.array([1, 1], np.int64))
    more = grown(kept, np.array([2.0**100, 0.0], np.float32), 0.5)
    assert np.ldexp(more.numbers, -more.scales).tolist() == [2.0**100, 1.5 * 2.0**-140]


@pytest.mark.parametrize("spike", [1e6, 1e12, 1e30])
def test_steps_after_a_spike_count_as_if_there_had_been_none(spike):
    """Also in a state that was restored when half of it had been sent."""
    training, other = (Training(TopK(0.5)) for _ in range(2))
    for step in range(60):
        gradients = {name: one * np.float32(spike if step == 2 else 1) for name, one in eighths(step).items()}
        sent = training.step(gradients, "abc")
        if step == 3:
            other.state.load_state_dict(training.state.state_dict())
        elif step > 3:
            np.testing.assert_equal(other.step(gradients, "abc"), sent)
    for name in SIZES:
        before, training.given[name], training.sent[name] = training.kept(name), 0.0, 0.0
        assert np.abs(before).max() < 1000
        training.given[name] = training.given[name] + before
    for step in range(60, 65):
        training.step(eighths(step), "abc")
        for name in SIZES:
            np.testing.assert_array_equal(training.sent[name] + training.kept(name), training.given[name])


def test_a_checkpoint_with_a_damaged_history_changes_nothing():
    training = Training(None)
    for step in range(3):
        training.step(eighths(step), "abc")
    before = training.state.state_dict()
    for kind, damaged in [
        ("unions", torch.ones(3, 3, dtype=torch.float64)),
        ("unions", before["seen"]["unions"]["b"] - 5),
        ("levels", torch.ones(2, 2, 2, dtype=torch.int32)),
        ("levels", torch.tensor([11, 0, 32, 0, 300], dtype=torch.int32)),
    ]:
        seen = {**before["seen"], kind: {**before["seen"][kind], "b": damaged}}
        with pytest.raises(HookConfigError, match=r"seen: 'b' has .*; give what state_dict returned"):
            training.state.load_state_dict({**before, "seen": seen})
        assert str(training.state.state_dict()) == str(before)


def test_a_checkpoint_with_arrays_that_do_not_fit_changes_nothing():
    training = Training(TopK(0.5))
    training.step(eighths(0), "abc")
    before = training.state.state_dict()
    damaged = training.state.state_dict()
    damaged["residuals"]["b"]["scales"] = damaged["residuals"]["b"]["scales"][:3]
    with pytest.raises(HookConfigError, match="residual: b has arrays of other types, sizes or ranges"):
        training.state.load_state_dict(damaged)
    assert written(training.state.state_dict()) == written(before)


def test_a_value_equal_to_the_threshold_is_sent():
    training = Training(Threshold(2.0))
    gradients = {name: np.full(size, 2.0, np.float32) for name, size in SIZES.items()}
    gradients["c"][1] = 1.875
    assert training.step(gradients, "abc")["c"].tolist() == [2.0, 0.0, 2.0]


class Shuffled(Sparsifier):
    """A sparsifier that returns positions in no order, as it may."""

    name = "shuffled"
    steps: ClassVar[list[int]] = []

    def choose(self, tensor, state):
        self.steps.append(state.step)
        return np.array([18, 3, 7, 0])


def test_positions_of_a_bucket_in_any_order_and_steps_that_are_counted():
    training, chosen = Training(Shuffled(per="bucket")), []
    for _ in range(3):
        ones = {name: np.ones(size, np.float32) for name, size in SIZES.items()}
        chosen.append(
            {name: np.flatnonzero(one).tolist() for name, one in training.step(ones, "abc").items()}
        )
    assert chosen == [{"a": [0, 3], "b": [1], "c": [1]}] * 3
    assert Shuffled.steps == [0, 1, 2]


def test_units_that_are_coarser_than_the_grid_and_finer():
    """The residual loses exactly what was sent, whichever of the two scales is larger."""
    for numbers, scale in (([5 << 38, 1 << 38], 40), ([5, 1], 2)):
        memory = Memory()
        memory.restore({"a": Residual(np.array(numbers, np.int64), np.full(2, scale, np.int16))})
        result = CompressedSum(Sums(), TopK(1.0), memory).sum({"a": np.zeros(2, np.float32)})
        assert result["a"].values.tolist() == [1.25, 0.25]
        assert memory.residuals["a"].numbers.tolist() == [0, 0]


def test_what_the_user_chose_reaches_the_all_reduce(monkeypatch):
    """For every bucket the forms of its own parameters."""
    made = []

    class Watched(Allreduce):
        def __init__(self, summation, **options):
            made.append(options)
            super().__init__(summation, **options)

    monkeypatch.setattr("peelsum.torch.settings.Allreduce", Watched)
    chosen = {
        "forms": {"a": "sparse", "b": "dense"},
        "values": "sketch",
    }
    training = Training(None, **chosen)
    for _ in range(2):
        training.step(eighths(0), "ac", "b")
    _, first, second = made
    assert (first["forms"], second["forms"]) == ({"a": "sparse"}, {"b": "dense"})
    for options in (first, second):
        assert options["values"] == "sketch"
        assert options["average"] is True
    stats = training.state.stats()
    assert (stats.steps, stats.buckets, stats.elements) == (2, 4, 40)
    assert set(stats.tensors) == set(SIZES)
    assert stats.tensors["a"].density_worker == np.count_nonzero(eighths(0)["a"]) / 6
    training.state.close()
    assert not training.over.closed.is_set()


def test_gradients_that_are_not_finite_are_counted():
    training = Training(None)
    gradients = eighths(0)
    gradients["a"][0] = math.nan
    for count in (1, 2):
        training.step(gradients, "ab", "c")
        assert training.state.stats().non_finite == count
    assert math.isnan(training.state.stats().tensors["a"].density_worker)


def test_bfloat16_is_summed_by_its_bits():
    buffer = torch.tensor([1.5, -2.0, 3.0, 0.0, -0.5, 100.0], dtype=torch.bfloat16)
    training = Training(None)
    assert training.state.submit(buffer.clone(), [training.parameters["a"]]).wait().equal(buffer)
