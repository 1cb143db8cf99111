"""A step sends the words of its rounds and no more: near the lower bound, in as few exchanges as can be."""

import math

import numpy as np
import pytest
from sums_of_floats import FAR, SLOW, check, workers_of

from peelsum.allreduce import Allreduce, BitmapIndex, BlockIndex, BloomIndex, Choice, NetworkModel
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import CostEstimate, lower_bound_bits

N, STEPS = 1 << 16, 30
LARGE = 1 << 20
WORDS_ONLY, DEFAULT = NetworkModel(gbps=1e-6, round_trip_s=0.0), NetworkModel()


def ops_of(group):
    return [[op for op, _, _ in call] for call in group.take()]


def forced(monkeypatch, index, form="compact"):
    """Give every sparse tensor this index, from the first step on."""
    own = Chooser._find_cheapest

    def choose(chooser, asked, *rest):
        if asked == "dense":
            return own(chooser, asked, *rest)
        return CostEstimate(Choice(form, index), words=0, exchanges=1, codec_s=0)  # ahead is no faster

    monkeypatch.setattr(Chooser, "_find_cheapest", choose)


@pytest.mark.parametrize(
    ("index", "cells", "rounds"),
    [
        (BitmapIndex(), None, [["or", "or"], ["add"]]),
        (BlockIndex(64, refined=False), None, [["or", "or"], ["or"], ["add"]]),  # too many are zeros
        (BlockIndex(64, refined=True), None, [["or", "or"], ["or"], ["add"]]),
        (BloomIndex(8, 300, refined=False), None, [["or", "or"], ["add"]]),
        (BloomIndex(2, 100, refined=True), None, [["or", "or"], ["or"], ["add"]]),
        (BitmapIndex(), 2.0, [["or", "or"], ["add"]]),
        (BitmapIndex(), 0.5, [["or", "or"], ["add"], ["add"]]),
        (BlockIndex(64, refined=True), 0.5, [["or", "or"], ["or"], ["add"], ["add"]]),
    ],
    ids=str,
)
def test_rounds(make_workers, monkeypatch, index, cells, rounds):
    """They are those of the table that opens `peelsum.allreduce.two_rounds`. New tensors agree alone."""
    form = "sketch" if cells else "compact"
    forced(monkeypatch, index, form)
    group = make_workers(
        2, forms={"d": "dense", "s": "sparse"}, values=form, cells_per_candidate=cells, network=SLOW
    )
    for step in range(2):
        sparse, dense = workers_of(9000, 2, 0.01, step), workers_of(70, 2, 1.0, step)
        results = group.sum([{"s": one, "d": other} for one, other in zip(sparse, dense, strict=True)])
        check(results, sparse, "s")
        check(results, dense, "d")
        ops = ops_of(group)
        assert ops == (rounds if step else [["or"], ["or"], *rounds[1:]])


def test_zeros_and_what_is_not_finite_send_no_values(make_workers):
    group = make_workers(2, lanes=16, forms={"d": "dense", "i": "dense", "s": "sparse"}, values="compact")
    zeros = {name: np.zeros(99, np.float32) for name in "dis"}
    infinite = zeros | {"i": np.full(99, np.inf, np.float32)}
    for inputs, index in (([zeros, zeros], 4), ([zeros, infinite], 1)):
        result = group.sum(inputs)[1]
        # A word for the exponent, four blocks of 32 elements or fewer, and a bit for each element; of a
        # tensor that was zero, a bit for all of them.
        assert {one.name: one.words_sent for one in result.tensors} == {"d": 5, "i": 5, "s": 5 + index}
        assert len(group.take()) <= 2
    assert result["s"].error_bound == 0.0
    assert result["i"].error_bound == math.inf


def test_a_step_without_elements_agrees_and_sends_nothing(make_workers):
    group = make_workers(2)
    for tensors in ({}, {"g": np.zeros((0, 3), np.float32)}):
        for _ in range(2):
            result = group.sum([tensors] * 2)[0]
            assert group.take()[-1][0][1].size == 4
            assert [one.words_sent for one in result.tensors] == [0] * len(tensors)
            assert all(one.values.shape == (0, 3) for one in result.tensors)
            assert result.density == 0.0


def test_many_tensors_take_the_exchanges_of_one(make_workers):
    group = make_workers(2, network=SLOW)
    for step in range(3):
        inputs = [{}, {}]
        for number in range(40):
            arrays = workers_of(100 + 31 * number, 2, [1.0, 0.05, 0.005][number % 3], step)
            for tensors, array in zip(inputs, arrays, strict=True):
                tensors[str(number)] = array
        results = group.sum(inputs)
        for name in inputs[0]:
            check(results, [tensors[name] for tensors in inputs], name)
        assert len(group.take()) <= 4


@pytest.mark.parametrize(
    ("network", "values"), [(SLOW, "auto"), (DEFAULT, "compact")], ids=["slow", "default"]
)
def test_a_mixture_stays_near_the_bound(echo, network, values):
    """An embedding of rows, of which 1 % are used, beside a layer of 15 % and dense layers."""
    rng, reduce = np.random.default_rng(1), Allreduce(echo, values=values, network=network)
    for _ in range(3):
        chosen = {
            "embedding": np.repeat(rng.random(8192) < 0.01, 64),
            "scattered": rng.random(2**18) < 0.01,
            "layer": rng.random(2**17) < 0.15,
            **{f"dense{n}": np.ones(3000 + n, np.bool_) for n in range(20)},
        }
        result = reduce.sum({name: one.astype(np.float32) for name, one in chosen.items()})
    bound = sum(lower_bound_bits(one.size, int(one.sum())) for one in chosen.values()) / 32
    assert sum(one.words_sent for one in result.tensors) <= 1.25 * bound + 64
    assert [result[name].form for name in ("scattered", "layer", "dense7")] == ["compact", "compact", "dense"]


def support(kind, density, rng):
    if kind == "uniform":
        return rng.random(LARGE) < density
    if kind == "rows":
        return np.repeat(rng.random(LARGE // 64) < density, 64)
    alive = rng.permutation(256) < 128
    return np.tile(alive, LARGE // 256) & (rng.random(LARGE) < 2 * density)


@pytest.mark.parametrize("kind", ["uniform", "rows", "columns"])
@pytest.mark.parametrize(
    ("density", "most"), [(0.001, 1.25), (0.01, 1.25), (0.03, 1.1), (0.1, 1.1), (0.3, 1.1), (0.5, 1.1)]
)
def test_the_smallest_choice_is_near_the_bound(echo, kind, density, most):
    rng, reduce = np.random.default_rng(5), Allreduce(echo, network=SLOW)
    for _ in range(2):
        chosen = support(kind, density, rng)
        tensor = reduce.sum({"g": chosen.astype(np.float32)})["g"]
    assert tensor.total_at.shape == (np.count_nonzero(chosen),)
    assert 32 * tensor.words_sent < most * lower_bound_bits(LARGE, int(np.count_nonzero(chosen)))


UNIFORM = {
    **{f"x{high}": [0.001] * 10 + [0.001 * high] * 10 + [0.001] * 10 for high in (2, 10)},
    "alternating": [0.002, 0.01] * 15,
    "log-uniform": np.exp(np.random.default_rng(4).uniform(np.log(0.001), np.log(0.05), STEPS)).tolist(),
    "empty": [0.01] * 10 + [0.0] * 10 + [0.01] * 10,
}


def moving(shape):
    rng = np.random.default_rng(len(shape))
    for step in range(STEPS):
        if shape == "rows that dissolve" and step >= STEPS // 2:
            yield rng.random(N, np.float32) < 0.003
        elif shape.startswith("rows "):
            width = 1024 if shape == "rows of 1024" else 64
            rows = rng.random(N // width) < 0.003
            rows[rng.integers(rows.size)] = True
            yield np.repeat(rows, width)
        else:
            yield rng.random(N, np.float32) < UNIFORM[shape][step]


@pytest.mark.parametrize("shape", [*UNIFORM, "rows of 1024", "rows of 64", "rows that dissolve"])
def test_words_stay_near_the_bound_as_densities_change(echo, shape):
    """After a change, or without knowledge, a step may send two more bits for each element."""
    reduce, counts = Allreduce(echo, forms="sparse", network=WORDS_ONLY), [0]
    for chosen in moving(shape):
        tensor = reduce.sum({"g": chosen.astype(np.float32)})["g"]
        np.testing.assert_array_equal(tensor.values, chosen)
        count, fewest, largest = int(np.count_nonzero(chosen)), min(counts[-6:]), max(counts[-6:])
        most = 1.5 * lower_bound_bits(N, count) / 32 + 64
        if not largest <= 1.5 * count <= 2.25 * fewest or shape == "rows that dissolve":
            most += 2 * N / 32
        assert tensor.words_sent <= most
        counts.append(count)


@pytest.mark.parametrize(
    ("shape", "network", "most_words", "most_exchanges"),
    [
        ("x10", DEFAULT, 2.2, 1.35),
        ("alternating", DEFAULT, 1.8, 1.3),
        ("log-uniform", DEFAULT, 2.4, 2.1),
        ("alternating", NetworkModel(gbps=1.0, round_trip_s=2e-4), 1.5, 2.2),
    ],
    ids=["x10", "alternating", "log-uniform", "alternating, near"],
)
def test_steps_ahead_stay_near_the_bound_as_densities_change(
    make_workers, shape, network, most_words, most_exchanges
):
    """Also where an exchange takes as long as many words: the second one ends what an estimate has missed."""
    group, rng = make_workers(1, 256, network=network), np.random.default_rng(8)
    words = bound = exchanges = 0.0
    for step, density in enumerate(UNIFORM[shape]):
        chosen = rng.random(LARGE, np.float32) < density
        result = group.sum([{"g": chosen.astype(np.float32)}])[0]
        np.testing.assert_array_equal(result["g"].values, chosen)
        exchanges += result.exchanges / STEPS
        if step:
            words += result["g"].words_sent
            bound += lower_bound_bits(LARGE, int(np.count_nonzero(chosen))) / 32
    assert words <= most_words * bound
    assert exchanges <= most_exchanges


@pytest.mark.parametrize("network", [DEFAULT, FAR], ids=["default", "far"])
def test_false_positives_are_not_learnt(echo, network):
    """After a jump that overfills the filter, the next step is as small as if nothing had happened."""
    reduce = Allreduce(echo, forms="sparse", network=network)
    for density in (0.001, 0.001, 0.01, 0.01, 0.01):
        chosen = np.random.default_rng(2).random(4 * N) < density
        tensor = reduce.sum({"g": chosen.astype(np.float32)})["g"]
    assert tensor.density < 1.25 * np.count_nonzero(chosen) / chosen.size


def test_auto_follows_the_density_that_all_have_seen(make_workers):
    group = make_workers(2, network=SLOW)
    dense, thin = np.ones(N, np.float32), np.zeros(N, np.float32)
    thin[::100] = 1
    forms = []
    for values in (thin, thin, dense, dense, dense, thin, thin):
        results = group.sum([{"g": values}, {"g": thin}])
        assert len({result["g"].form for result in results}) == 1
        forms.append(results[0]["g"].form)
    # Dense after a step with many non-zeros, as long as one of the last three had.
    assert forms == ["compact"] * 3 + ["dense"] * 4


def test_each_step_lays_out_its_sketches_differently(make_workers):
    group = make_workers(2, forms="sparse", values="sketch", cells_per_candidate=0.8)
    inputs = [{name: workers_of(3000, 2, 0.1, 1)[w] for name in "gh"} for w in range(2)]
    sent = [tensor.words_sent for _ in range(4) for tensor in group.sum(inputs)[0].tensors]
    assert len(set(sent)) > 3
