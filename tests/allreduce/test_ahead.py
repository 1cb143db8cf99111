"""Steps in one round: by predictions of scales and unions, exact where these are wrong."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from patience import PATIENCE_S
from sums_of_floats import DTYPES, FAR, SLOW, check, typed, workers_of

from peelsum.allreduce import Allreduce, History, NetworkModel, PlanMismatchError
from peelsum.allreduce.history import BlockExponents
from peelsum.allreduce.plan import Choice, Layout, TensorPlan

WORKERS = 3


def drawn(step, *, density=0.05, factor=1.0, n=20_000):
    """Draw every worker's dense and sparse tensor, of like magnitudes in all steps."""
    dense = workers_of(3000, WORKERS, 1.0, step, spread=1)
    sparse = workers_of(n, WORKERS, density, 100 + step, spread=1)
    pairs = zip(dense, sparse, strict=True)
    return [{"d": np.float32(factor) * own, "s": np.float32(factor) * other} for own, other in pairs]


def checked(group, inputs):
    """Sum; return the first worker's result if all bits are right."""
    results = group.sum(inputs)
    for name in inputs[0]:
        check(results, [tensors[name] for tensors in inputs], name)
    return results[0]


@pytest.mark.parametrize("values", ["sketch", "auto"])
def test_a_step_like_the_ones_before_takes_one_exchange(make_workers, values):
    group = make_workers(WORKERS, 256, values=values)
    results = [checked(group, drawn(step)) for step in range(12)]
    assert [result.one_round for result in results] == [False] + 11 * [True]
    assert sum(result.exchanges for result in results[2:]) <= 11
    calls = group.take()
    assert len(calls) == sum(result.exchanges for result in results)
    one_exchange = calls[-1] if results[-1].exchanges == 1 else calls[-2]
    assert {op for op, _, _ in one_exchange} == {"or", "add"}


@pytest.mark.parametrize("sign", [1, -1])
def test_values_of_sums_beyond_float64_are_rounded_once(make_workers, sign):
    """2**28 + 16 + 2**-26 is above half of float32's spacing there; float64 rounds it to that half."""
    group = make_workers(WORKERS, 256, forms="dense", network=FAR)
    ones = np.ones(64, np.float32)
    for _ in range(3):
        checked(group, [{"g": ones}] * WORKERS)
    inputs = [{"g": ones.copy()} for _ in range(WORKERS)]
    for tensors, value in zip(inputs, (2.0**28, 16.0, 2.0**-26), strict=True):
        tensors["g"][0] = sign * value
    found = group.sum(inputs)[0]
    assert found.one_round
    assert found["g"].total[0] == sign * (2**54 + 2**30 + 1)
    assert found["g"].values[0] == sign * (2**28 + 32)


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**-20, 2.0**35, 2.0**60])
def test_scales_that_are_far_off_cost_one_more_exchange(make_workers, factor):
    group = make_workers(WORKERS, 256, values="sketch")
    for step in range(4):
        checked(group, drawn(step))
    far = checked(group, drawn(4, factor=factor))
    assert (far.one_round, far.exchanges) == (True, 2)
    after = [checked(group, drawn(step, factor=factor)) for step in range(5, 9)]
    assert after[-1].exchanges == 1


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("forms", ["dense", "sparse"])
@pytest.mark.parametrize("values", ["sketch", "auto", "compact"])
def test_no_step_after_a_spike_is_less_precise(make_workers, dtype, forms, values):
    """Of a scale that is too coarse for the largest values, no bits are missing: they are sent again."""
    group, n = make_workers(WORKERS, 256, forms=forms, values=values, network=FAR), 5000
    for step in range(12):
        factor = np.float32(2.0 ** (10 * (step % 6 == 3)) * 2.0**-8)
        tensors = [factor * one for one in workers_of(n, WORKERS, 0.05, step, spread=1)]
        pairs = [typed(one, dtype) for one in tensors]
        result = group.sum([{"g": tensor} for tensor, _ in pairs])[0]["g"]
        exact = np.sum([floats.astype(np.float64) for _, floats in pairs], axis=0)
        assert np.abs(result.values - exact).max() <= 2.0**-21 * np.abs(exact).max()


@pytest.mark.parametrize("factor", [2.0**-12, 2.0**5, 2.0**12, 2.0**20])
def test_scales_that_are_off_cost_no_exchange_if_there_is_room_for_upper_parts(make_workers, factor):
    group = make_workers(WORKERS, 256, values="sketch")
    for step in range(3):
        checked(group, drawn(step))
    grown = drawn(3)
    for tensors in grown:
        tensors["d"][64:72] *= np.float32(factor)
    assert checked(group, grown).exchanges == 1


def test_a_tensor_that_is_zero_or_not_finite_takes_no_other_tensor_along(make_workers):
    group = make_workers(WORKERS, 256, values="sketch")
    for step in range(9):
        inputs = drawn(step)
        for tensors in inputs:
            tensors["z"] = np.zeros(500, np.float32) if step % 3 else np.ones(500, np.float32)
        if step == 5:
            inputs[1]["d"][7] = np.inf
        if step == 7:
            inputs[2]["s"][7] = np.nan
        results = group.sum(inputs)
        for name in inputs[0]:
            with np.errstate(invalid="ignore"):
                check(results, [tensors[name] for tensors in inputs], name)


@pytest.mark.parametrize("bad", ["d", "s"])
def test_upper_parts_of_a_tensor_that_is_not_finite_elsewhere(make_workers, bad):
    """A worker sends them before it knows, and they must not be taken for another tensor's."""
    group = make_workers(WORKERS, 256, values="sketch")
    for step in range(3):
        checked(group, drawn(step))
    grown = drawn(3)
    for tensors in grown:  # few enough to be peeled
        tensors["d"][:32] *= np.float32(256)
        tensors["s"][:100] *= np.float32(256)
    grown[1][bad][7] = np.inf
    result = checked(group, grown)
    assert (result.one_round, result[bad].local_non_zeros, result[bad].union_size) == (True, 0, 0)


def with_histories(make_workers):
    """Return workers, and the history of each."""
    group = make_workers(WORKERS, 256, values="sketch", timeout_s=PATIENCE_S)
    histories = [History() for _ in range(WORKERS)]
    group.reduces = [
        Allreduce(one, values="sketch", history=history)
        for one, history in zip(group.summations, histories, strict=True)
    ]
    return group, histories


@pytest.mark.parametrize("restored", [False, True])
def test_a_worker_with_other_expectations_stops_all(make_workers, restored):
    """Numbers by other scales would add up to nothing: also in the first step from a checkpoint."""
    (group, histories), (other, odd) = (with_histories(make_workers) for _ in range(2))
    for step in range(3):
        checked(group, drawn(step))
        checked(other, drawn(step, factor=8.0))
    if restored:
        group.reduces = [
            Allreduce(one, values="sketch", history=history)
            for one, history in zip(group.summations, histories, strict=True)
        ]
    histories[1].restore(odd[1].saved())
    failures = group.failures(drawn(3))
    assert [type(failure) for failure in failures] == [PlanMismatchError] * WORKERS
    assert "or restore the history of the same step, on all of them" in str(failures[0])


def test_steps_go_ahead_where_an_exchange_takes_longer_than_its_words(make_workers):
    """Compact values always follow their index."""
    for values, network, ahead in [
        ("sketch", FAR, True),
        ("auto", FAR, True),
        ("sketch", SLOW, False),
        ("auto", SLOW, False),
        ("compact", FAR, False),
    ]:
        group = make_workers(WORKERS, 256, values=values, network=network)
        results = [checked(group, drawn(step)) for step in range(3)]
        assert [result.one_round for result in results] == [False, ahead, ahead], (values, network)


def test_guesses_that_are_always_wrong_are_given_up(make_workers):
    group = make_workers(WORKERS, 256, values="sketch", network=NetworkModel(0.05, 3e-3))
    results = [checked(group, drawn(step, factor=4.0 ** (30 * (step % 2)))) for step in range(40)]
    given_up = [result.one_round for result in results].index(False, 1)
    assert 3 < given_up < 30
    assert sum(result.one_round for result in results[given_up:]) < 10, "tried again now and then"


def table(elements, block):
    return Layout([TensorPlan("g", (elements,), "float32", Choice("dense", scale_block=block))]).table


def test_exponents_of_blocks_of_another_size():
    """A larger block has the largest field in it; smaller ones all have that of theirs. So restored ones."""
    levels, key = BlockExponents(), ("g", 1000)
    levels.of((key,), table(1000, 32))[:] = np.arange(32)
    assert levels.of((key,), table(1000, 256)).tolist() == [7, 15, 23, 31]
    levels = BlockExponents.restored(levels.saved())
    assert levels.of((key,), table(1000, 128)).tolist() == [7, 7, 15, 15, 23, 23, 31, 31]
    levels.forget(key)
    assert not levels.of((key,), table(1000, 128)).any()


@given(arrays(np.int32, st.integers(0, 12), elements=st.integers(-1, 300)))
def test_any_array_is_restored_as_it_was_saved_or_refused(array):
    with suppress(ValueError):
        restored = BlockExponents.restored({"g": array})
        np.testing.assert_array_equal(restored.saved().get("g", np.empty(0, np.int32)), array)


@pytest.mark.parametrize(
    "array",
    [[1, 0, 32, 0], [33, 0, 32, 0, 5], [32, 0, 31, 0, 5], [32, 0, 16, 0, 5, 5], [32, 0, 32, 0, 256],
     [32, 0, 32, 0, -1], [0, 0, 32, 0, 1]],
)  # fmt: skip
def test_fields_that_are_not_those_of_a_tensors_blocks_are_refused(array):
    with pytest.raises(ValueError, match=rf"'g' has {len(array)} fields"):
        BlockExponents.restored({"g": np.array(array, np.int32)})


def test_a_saved_block_of_any_size_takes_no_more_memory_than_the_tensor():
    saved = np.concatenate([np.array([1000, 2**40], np.int64).view(np.int32), np.array([7], np.int32)])
    levels = BlockExponents.restored({"g": saved})
    assert levels.of((("g", 1000),), table(1000, 32)).tolist() == [7] * 32
