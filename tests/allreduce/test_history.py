"""Steps that go on from a saved history have the bits of steps that were not interrupted."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from patience import PATIENCE_S
from sums_of_floats import FAR, SLOW

from peelsum.allreduce import Allreduce, History, LocalSummation, allreduce, history
from peelsum.allreduce.history_loops import unions
from peelsum.codec import BLOCK_SIZES
from peelsum.compress import CompressedSum, TopK, compressed_sum

N = 1 << 16


def thin(share, seed, *, tiny=0.0, n=N):
    """Draw a sparse tensor; a share `tiny` of its non-zeros is so small that its integers are 0."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n) * 10.0 ** rng.uniform(-3, 3, n)
    values[rng.random(n) < tiny] = 1e-20
    return np.where(rng.random(n) < share, values, 0).astype(np.float32)


def again(history):
    """Return the history as another process restores it."""
    restored = History()
    restored.restore(history.saved())
    return restored


def check(echo, steps, begin, first=None, **how):
    """Compare steps with those that a new all-reduce does from `begin` on; `first` replaces its first."""
    history = History()
    reduce, restored = Allreduce(echo, history=history, **how), history
    for step, tensors in enumerate(steps):
        if step == begin:
            restored = again(history)
            other = Allreduce(echo, history=restored, **how)
        results = [reduce.sum(tensors)]
        if step >= begin:
            split = step == begin and first is not None
            parts = [{name: own} for name, own in tensors.items()] if split else [tensors]
            results.append({name: one for part in parts for name, one in other.sum(part).items()})
        for name in tensors:
            assert len({result[name].values.tobytes() for result in results}) == 1, (step, name)
            assert len({result[name].fixed.block for result in results}) == 1, (step, name)


def test_forms_of_several_sequences_of_tensors(echo):
    """A sequence's forms are chosen again if another's step has chosen for another union."""
    both = [{"a": thin(0.001, step), "b": thin(0.01, 50 + step)} for step in range(2)]
    one = [{"a": thin(0.05, step)} for step in range(2, 8)]
    check(echo, [*both, *one, {"a": thin(0.05, 8), "b": thin(0.01, 58)}], 8, network=SLOW)


def test_the_size_that_is_forgotten(echo):
    """It depends on nothing that is not saved, such as which sequences of tensors were used lately."""
    history = History()
    sizes = [1000 * number for number in range(40, 48)]
    for size in [*sizes, *sizes, sizes[0]]:
        Allreduce(echo, history=history).sum({"a": thin(0.02, size, n=size)})
    restored = again(history)
    for one in (history, restored):
        Allreduce(echo, history=one).sum({"a": thin(0.02, 1, n=sizes[0])})
        Allreduce(echo, history=one).sum({"a": thin(0.02, 2, n=60_000)})
    np.testing.assert_array_equal(history.saved()["unions"]["a"], restored.saved()["unions"]["a"])


def densities(tiny):
    rng = np.random.default_rng(5)
    shares = 0.003 * np.exp(rng.uniform(-0.5, 0.5, 60))
    return [{"a": thin(share, 300 + step, tiny=tiny)} for step, share in enumerate(shares.tolist())]


@pytest.mark.parametrize("tiny", [0.0, 0.4, 0.55, 0.9])
def test_what_is_learnt_does_not_depend_on_the_seeds_of_filters(echo, tiny):
    """The restored all-reduce counts its steps, and so seeds its filters, from 1 on."""
    check(echo, densities(tiny), 20, network=FAR, forms="sparse")


def test_what_is_learnt_does_not_depend_on_the_other_tensors(echo):
    """A tensor alone has another filter, or none, than with a neighbour: as in DDP's first step."""
    steps = [{**one, "b": thin(0.1, 900 + step, tiny=0.5)} for step, one in enumerate(densities(0.4))]
    check(echo, steps, 20, steps[20], network=FAR, forms="sparse")


def test_expected_unions_are_the_same_numbers_on_every_processor():
    """They take only operations that IEEE 754 rounds; NumPy's powers depend on the processor's vectors."""
    rng = np.random.default_rng(3)
    elements = rng.integers(10, 10**6, 1000)
    total, fields = (elements * rng.uniform(0.3, 1, 1000)).astype(np.int64), np.full(1000, 100, np.int32)
    found, nothing = np.empty((1000, BLOCK_SIZES)), np.zeros((1000, BLOCK_SIZES), np.int64)
    assert unions(elements, 1000, fields, np.ones(1000, np.int64), total, nothing, found) == 0
    for counts, size, share in zip(
        found.tolist(), elements.tolist(), (total / elements).tolist(), strict=True
    ):
        zeros = 1 - share
        for b, count in enumerate(counts):
            assert count == size / 2**b * (1 - zeros)
            zeros *= zeros


@pytest.mark.parametrize("column", [0, 3, 6, -1])
@pytest.mark.parametrize("value", [-1.0, 1e10, 1e300, math.nan, math.inf])
def test_counts_that_no_tensor_has_are_refused(echo, column, value):
    """From a union of 1e10 would follow a sketch of 50 GB; a history keeps what it had."""
    history = History()
    Allreduce(echo, history=history).sum({"a": thin(0.01, 1)})
    before = history.saved()
    rows = before["unions"]["a"].copy()
    rows[0, column] = value if column or value != 1e10 else N + 0.5
    with pytest.raises(ValueError, match="'a' has counts that no tensor of its sizes can have"):
        history.restore({**before, "unions": {"a": rows}})
    np.testing.assert_array_equal(history.saved()["unions"]["a"], before["unions"]["a"])


WORKERS = 2


def tensors(worker, step):
    """Two tensors of sparse integers, of which few are alike in size from step to step."""
    drawn = np.random.default_rng(step)
    sizes = drawn.choice([33, 100, 5000, 9000, 12000], 2, replace=False)
    rows = np.random.default_rng((worker, step))
    return {
        name: (rows.integers(-9, 9, n) * (rows.random(n) < 0.05)).astype(np.float32)
        for name, n in zip(("a", "b"), sizes, strict=True)
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_workers_that_forget_still_agree(monkeypatch, compressed):
    monkeypatch.setattr(history, "_SIZES", 2)
    monkeypatch.setattr(allreduce, "_PLANS", 2)
    monkeypatch.setattr(allreduce, "_AGREED_PLANS", 2)
    monkeypatch.setattr(compressed_sum, "_AGREED", 2)

    def work(seat):
        summed = Allreduce(seat)
        if compressed:
            summed = CompressedSum(seat, TopK(1.0), error_feedback=False, average=False)
        results = [summed.sum(tensors(seat.worker_id, step)) for step in range(60)]
        return [{one.name: one.values for one in result.tensors} for result in results]

    with ThreadPoolExecutor(WORKERS) as pool:
        outcomes = [pool.submit(work, seat) for seat in LocalSummation.group(WORKERS)]
        for results in (one.result(PATIENCE_S) for one in outcomes):
            for step, result in enumerate(results):
                given = [tensors(worker, step) for worker in range(WORKERS)]
                for name, values in result.items():
                    np.testing.assert_array_equal(values, given[0][name] + given[1][name])


def test_names_that_come_and_go_do_not_add_up(echo):
    """The oldest names beyond the limit are forgotten, those of the step never, and all sums stay exact."""
    history = History(most_names=16)
    reduce = Allreduce(echo, history=history)
    kept = {f"kept {number}": np.full(100, number, np.float32) for number in range(20)}
    for step in range(100):
        new = {f"new {step}": np.full(64 + step, step, np.float32)}
        for tensors in (new, kept) if step % 10 == 0 else (new,):
            result = reduce.sum(tensors)
            assert all(
                (result[name].values == echo.workers * tensor).all() for name, tensor in tensors.items()
            )
            assert set(tensors) <= history.saved()["unions"].keys()
        assert len(history.saved()["unions"]) <= 20 + 1
        assert history.saved()["unions"].keys() == history.saved()["levels"].keys()
    # Rows are used again, and nothing else is kept of a tensor that was forgotten.
    levels = history._levels
    assert len(history._state) <= 64
    assert max(map(len, (history._rows, history._rows_of_keys, levels._steps, levels._step_of))) <= 21
    restored = again(history)
    assert restored.saved()["unions"].keys() == history.saved()["unions"].keys()


def test_a_tensor_that_was_forgotten_is_new(echo):
    tensors, keys = {"a": thin(0.01, 1), "b": thin(0.01, 2)}, (("a", N), ("b", N))
    history = History()
    before = history.basis(keys)
    Allreduce(echo, history=history).sum(tensors)
    known = history.basis(keys)
    history.keep_only({"b", "never summed"})
    assert (history.basis(keys)[0] == before[0]).all()
    assert (history.basis(keys)[1] == known[1]).all()
    assert list(history.saved()["levels"]) == ["b"]
