"""Sums of compressed tensors: what was sent, exactly, on every worker, and books that close at every step."""

import math
import tracemalloc

import numpy as np
import pytest
from compressors import COMPRESSORS, Workers, fractions
from compressors import kept as kept_by
from definitions import majority

from peelsum import compress
from peelsum.allreduce import LocalSummation, PlanMismatchError
from peelsum.compress.memory import ExactValues

SHAPES = {"matrix": (12, 7), "vector": (17,), "one": (1,), "none": (0,), "zeros": (5,)}


def gradients(rng, workers=3, factor=1.0):
    def drawn(worker, shape):
        return factor * 3.0**worker * rng.standard_normal(shape)

    return [
        {
            name: (drawn(worker, shape) * (name != "zeros")).astype(np.float32)
            for name, shape in SHAPES.items()
        }
        for worker in range(workers)
    ]


def expected(compressor, sent):
    """The float32 average of what the workers sent."""
    if isinstance(compressor, compress.SignSGD):
        return [one / len(sent) for one in majority(sent)]
    if compressor.kind == "gather":
        totals = [0.0] * len(sent[0])
        for one in sent:
            totals = [a + float(b) for a, b in zip(totals, one, strict=True)]
    else:
        totals = [float(sum(column)) for column in zip(*sent, strict=True)]
    return np.array([np.float32(one / len(sent)) for one in totals], np.float32)


@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
def test_sums_are_of_what_was_sent_and_books_close(compressor):
    rng, workers = np.random.default_rng(4), Workers(compressor)
    for step in range(4):
        results = workers.step(gradients(rng, factor=2.0**-step))
        for name, shape in SHAPES.items():
            sent = [fractions(one[name].sent, one[name].elements) for one in results]
            for one in results:
                assert one[name].finite
                assert one[name].values.shape == shape
                np.testing.assert_array_equal(one[name].values.ravel(), expected(compressor, sent))
            assert not results[0]["zeros"].values.any() or compressor.per == "bucket"
        for one in workers.sums:
            one.memory.balance()
    keeps = any(one.numbers.any() for one in workers.sums[0].memory.residuals.values())
    assert keeps != isinstance(compressor, compress.Single)


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_densities_of_a_sum(form):
    """By the sum's own non-zeros if no index tells the union."""
    workers = Workers(compress.TopK(0.3), allreduce={"forms": form})
    for one in workers.step(gradients(np.random.default_rng(6))):
        for each in one.tensors:
            assert each.form == {"sparse": "compact"}.get(form, form)
            assert each.density == np.count_nonzero(each.values) / max(each.elements, 1)
            assert each.density_worker == len(each.sent.positions) / max(each.elements, 1)


def test_the_energy_of_what_was_offered_and_sent():
    """A memory offers the gradient and what it kept; without feedback nothing is known."""
    rng, workers = np.random.default_rng(8), Workers(compress.TopK(0.2), 2)
    kept = [0.0, 0.0]
    for _ in range(3):
        given = gradients(rng, 2)
        for at, one in enumerate(workers.step(given)):
            offered = given[at]["matrix"].ravel() + kept[at]
            residual = workers.sums[at].memory.residuals["matrix"]
            kept[at] = kept_by(residual)
            others = [one[name] for name in SHAPES if name != "matrix"]
            rest = sum(float(sum(f * f for f in fractions(o.sent, o.elements))) for o in others)
            sent = [float(f) for f in fractions(one["matrix"].sent, offered.size)]
            assert one.sent_energy - rest == pytest.approx(np.dot(sent, sent), rel=1e-6)
            assert one.offered_energy > np.dot(offered, offered) * (1 - 1e-5)
    (one,) = Workers(compress.TopK(0.2), 1, error_feedback=False).step(gradients(rng, 1))
    assert one.offered_energy == one.sent_energy == 0.0


@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
def test_no_tensor_of_a_worker_is_finite(compressor):
    rng, workers = np.random.default_rng(6), Workers(compressor)
    names = [name for name in SHAPES if math.prod(SHAPES[name])]
    first, second = ([{name: one[name] for name in names} for one in gradients(rng)] for _ in range(2))
    for one in first[1].values():
        one[...] = np.nan
    for result in workers.step(first):
        assert not any(result[name].finite for name in names)
    for result in workers.step(second):
        assert all(result[name].finite for name in names)


@pytest.mark.covering(1)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
def test_a_tensor_that_is_not_finite_reaches_every_worker_and_leaves_no_trace(compressor, value):
    """The step counts as skipped: what its other tensors sent is kept, and the next step is a usual one."""
    rng, workers = np.random.default_rng(5), Workers(compressor)
    workers.step(gradients(rng))
    residuals = [sums.memory.residuals.items() for sums in workers.sums]
    before = [{name: one.numbers.copy() for name, one in items} for items in residuals]
    given = gradients(rng)
    given[1]["vector"][3] = value
    for result in workers.step(given):
        assert not result["vector"].finite
        assert np.isnan(result["vector"].values).all()
        if compressor.per == "tensor":
            assert result["matrix"].finite
            assert np.isfinite(result["matrix"].values).all()
    for sums, kept in zip(workers.sums, before, strict=True):
        np.testing.assert_array_equal(sums.memory.residuals["vector"].numbers, kept["vector"])
    results = workers.step(gradients(rng))
    for name in SHAPES:
        for one in results:
            np.testing.assert_array_equal(one[name].values, results[0][name].values)
            assert np.isfinite(one[name].values).all()


WITHOUT = {name: one for name, one in COMPRESSORS.items() if not one.momentum}


@pytest.mark.parametrize("compressor", WITHOUT.values(), ids=WITHOUT)
def test_without_error_feedback_and_in_a_job_of_one(compressor):
    rng, workers = np.random.default_rng(6), Workers(compressor, 1, error_feedback=False)
    for _ in range(2):
        (result,) = workers.step(gradients(rng, 1))
        assert all(np.isfinite(one.values).all() and one.sent is None for one in result.tensors)
    assert not workers.sums[0].memory.residuals
    assert workers.step([{}])[0].tensors == ()


@pytest.mark.parametrize(
    "other", [compress.TopK(0.2), compress.TopK(0.1, momentum=0.5), compress.TopK(0.1, seed=1), None], ids=str
)
def test_workers_that_differ_learn_of_it_at_once(other):
    workers = Workers(compress.TopK(0.1), 2, kind=compress.Memory)
    (summation, _), rng = workers.summations, np.random.default_rng(0)
    workers.sums[0] = compress.CompressedSum(
        summation, other or compress.TopK(0.1), error_feedback=other is not None
    )
    with pytest.raises(PlanMismatchError, match=r"plan: not the same on every worker; worker \d has TopK"):
        workers.step(gradients(rng, 2))
    with pytest.raises(compress.CompressError, match=r"sum: an earlier call failed \(plan: not the same"):
        workers.sums[0].sum({})


@pytest.mark.parametrize("compressor", [compress.QSGD(4), compress.PowerSGD(2)], ids=str)
def test_a_worker_in_another_step_is_noticed(compressor):
    workers = Workers(compressor, 2)
    given = gradients(np.random.default_rng(0), 2)
    workers.step(given)
    workers.sums[1]._steps = 7
    with pytest.raises((compress.CompressError, PlanMismatchError), match="step"):
        workers.step(given)


def test_a_power_sgd_starts_from_the_last_steps_factor():
    """So that repeated steps on one matrix converge to its best approximation."""
    rng = np.random.default_rng(3)
    matrix = (rng.standard_normal((30, 4)) * [8, 4, 1, 0.1] @ rng.standard_normal((4, 20))).astype(np.float32)
    best = np.linalg.svd(matrix.astype(float))[1]
    floor = np.sqrt((best[2:] ** 2).sum())
    workers, errors = Workers(compress.PowerSGD(2), 2, error_feedback=False), []
    for _ in range(12):
        result = workers.step([{"m": matrix}] * 2)[0]
        errors.append(np.linalg.norm(result["m"].values - matrix))
    assert errors[-1] < 1.0001 * floor < errors[0]
    assert errors[-1] >= 0.9999 * floor


def test_numbers_have_the_coarsest_units_that_hold_them():
    far = compress.Residual(np.array([2**30, 2**30], np.int64), np.full(2, 100, np.int16))
    far.subtract_sent(ExactValues.of(np.array([2.0**10, 0.0])))
    assert far.scales[0] < 52
    assert kept_by(far).tolist() == [pytest.approx(-(2.0**10), rel=1e-12), 2.0**-70]
    wide = np.array([2.0**-140, 2.0**120])
    sent = ExactValues.of(wide)
    assert sent.numbers.tolist() == [1, 1]
    assert np.ldexp(sent.numbers.astype(float), -sent.scales.astype(int)).tolist() == wide.tolist()


@pytest.mark.parametrize("compressor", [compress.TopK(0.01), compress.TopK(0.01, sample=0.01)], ids=str)
def test_a_top_k_step_takes_no_new_memory_for_all_elements(compressor):
    """It uses the pages again that earlier steps left, because the kernel clears new ones."""
    gradient = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    summed = compress.CompressedSum(LocalSummation.group(1)[0], compressor)
    for _ in range(3):
        summed.sum({"a": gradient})
    tracemalloc.start()
    try:
        summed.sum({"a": gradient})
        assert tracemalloc.get_traced_memory()[1] < gradient.nbytes
    finally:
        tracemalloc.stop()


def test_clipping_limits_each_gradients_norm():
    workers = Workers(compress.TopK(1.0, clip=2.0), 4)
    given = [{"x": np.array([3.0, 4.0], np.float32)}] * 4
    (result, *_) = workers.step(given)
    np.testing.assert_allclose(result["x"].values, [0.6, 0.8], rtol=1e-6)
