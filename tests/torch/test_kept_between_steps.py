"""The state between steps: across changing buckets and scales, and in a checkpoint."""

import itertools
import math
import threading
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch_alone import Sums

from peelsum.allreduce import Allreduce
from peelsum.compress import Sparsifier
from peelsum.torch import HookConfigError, RandomK, SwitchAllreduceState, TopK

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
        residual = self.state.state_dict()["residuals"][name]
        return np.ldexp(residual["numbers"].numpy().astype(float), -residual["scales"].numpy().astype(int))


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


def test_what_sums_of_ever_other_groups_keep(monkeypatch):
    """Sums that were not used for longest are forgotten, but no residual, and no name of the others."""
    for module in ("buckets", "stats"):
        monkeypatch.setattr(f"peelsum.torch.{module}.MOST_SUMS", 4)
    training = Training(TopK(0.3))
    groups = ["".join(group) for size in (1, 2, 3) for group in itertools.permutations(SIZES, size)]
    for seed, group in enumerate(3 * groups):
        training.step(eighths(seed), group)
        for name in group:
            np.testing.assert_array_equal(training.sent[name] + training.kept(name), training.given[name])
    sums = training.state._sums
    assert len(groups) > 3 * 4
    assert max(map(len, (sums._sums, sums._recent, sums.queue._last_tickets))) <= 4
    assert len(training.state._stats._sums) <= 4
    assert set(training.state.stats().tensors) == set(SIZES)


def test_a_module_of_many_groups_keeps_its_history(monkeypatch):
    """However many it has. The limit is for groups that are not summed any more."""
    monkeypatch.setattr("peelsum.torch.buckets.MOST_SUMS", 4)
    state = SwitchAllreduceState(over=Sums())

    def train(parameters, steps):
        """Return the bytes of each step."""
        sent = [state.stats().wire_bytes]
        for _ in range(steps):
            for parameter in parameters:
                state.submit((torch.arange(20_000) % 100 == 0).float(), [parameter]).wait()
            state.end_step()
            sent.append(state.stats().wire_bytes)
        return np.diff(sent)

    for _ in range(8):
        first, *later = train([torch.nn.Parameter(torch.zeros(20_000)) for _ in range(6)], 4)
        assert max(later) < first / 2
        assert len(state._sums._recent) <= 4 * 6
        assert len(state._sums.history.saved()["unions"]) <= 4 * 6


def test_models_that_are_replaced_do_not_add_up(monkeypatch):
    monkeypatch.setattr("peelsum.torch.buckets.MOST_SUMS", 4)
    monkeypatch.setattr("peelsum.torch.state._MANY_NAMES", 4)
    state, kept = SwitchAllreduceState(over=Sums()), torch.nn.Parameter(torch.zeros(9))
    state.name([("kept", kept)])
    for _ in range(20):
        state.submit(torch.ones(9), [torch.nn.Parameter(torch.zeros(9))]).wait()
        state.end_step()
        assert len(state._sums.history.saved()["unions"]) <= 5
        assert len(state._names.assigned) <= 5
    assert dict(state._names.items())["kept"] is kept


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

    def plain(one):
        return one.tolist() if torch.is_tensor(one) else one

    return {name: written(one) if isinstance(one, dict) else plain(one) for name, one in values.items()}


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
        with pytest.raises(HookConfigError, match=r"seen: 'b' has .*; give the result of state_dict"):
            training.state.load_state_dict({**before, "seen": seen})
        assert str(training.state.state_dict()) == str(before)


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
        sent = training.step(ones, "abc")
        chosen.append({name: np.flatnonzero(one).tolist() for name, one in sent.items()})
    assert chosen == [{"a": [0, 3], "b": [1], "c": [1]}] * 3
    assert Shuffled.steps == [0, 1, 2]


def test_what_the_user_chose_reaches_the_all_reduce(monkeypatch):
    """For every bucket the forms of its own parameters."""
    made = []

    class Watched(Allreduce):
        def __init__(self, summation, **options):
            made.append(options)
            super().__init__(summation, **options)

    monkeypatch.setattr("peelsum.torch.settings.Allreduce", Watched)
    chosen = {"forms": {"a": "sparse", "b": "dense"}, "values": "sketch"}
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
