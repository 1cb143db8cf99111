"""Tensors that compiled loops sum together have the bits, words and scales of tensors summed alone."""

from __future__ import annotations

import gc
import weakref
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sums_of_floats import check

from peelsum.allreduce import Allreduce, NetworkModel, host_bundle
from peelsum.allreduce.exchange import Setting, TensorExchange
from peelsum.allreduce.host_bundle import HostBundle
from peelsum.allreduce.plan import Choice, Settings, TensorPlan
from peelsum.codec import cpu_bundle_loops as loops
from peelsum.codec import kernels, sample
from peelsum.codec.cpu_bundle_loops import Kind

STEPS = 3
#: Networks for which an index is refined as planned, and not.
NEAR, FAR = NetworkModel(gbps=1e-3, round_trip_s=0.0), NetworkModel(gbps=0.1, round_trip_s=1.0)


def sparse(rng: np.random.Generator, length: int, density: float) -> NDArray[np.float32]:
    """Return numbers of many magnitudes at random places, and zeros of either sign elsewhere."""
    zeros = np.where(rng.random(length) < 0.5, np.float32(-0.0), np.float32(0.0))
    numbers = np.ldexp(rng.normal(size=length), rng.integers(-9, 9, length))
    return np.where(rng.random(length) < density, numbers, zeros).astype(np.float32)


def drawn(worker: int, step: int) -> dict[str, Any]:
    """Return tensors of odd lengths: dense, sparse, turning from one to the other, empty, and not finite."""
    rng = np.random.default_rng((worker, step))
    tensors: dict[str, Any] = {
        "dense": rng.normal(size=9001).astype(np.float32),
        "small": rng.normal(size=33).astype(np.float32),
        "few": sparse(rng, 9003, 0.01),
        "rare": sparse(rng, 20_007, 0.0005),
        "some": sparse(rng, 8201, 0.1),
        "turned": sparse(rng, 33_000, 1.0 if step < 1 else 0.01),
        "grown": sparse(rng, 12_001, 0.003 if step < 2 else 0.1),
        "rows": sparse(rng, 96 * 100, 1.0),
        "none": np.zeros(0, np.float32),
        "zeros": np.full(9000, -0.0, np.float32),
        "half": sparse(rng, 9001, 0.02).astype(np.float16),
        "infinite": sparse(rng, 9100, 0.01),
        "nan": rng.normal(size=(7, 9)).astype(np.float32),
    }
    tensors["rows"].reshape(-1, 100)[rng.random(96) < 0.95] = 0
    if (worker, step) == (0, 1):
        tensors["infinite"][9099], tensors["nan"][6, 8] = -np.inf, np.nan
    return tensors


SPARSE = ("few", "rare", "some", "grown", "rows", "zeros", "half", "infinite", "none")


def outcome(result: Any) -> dict[str, Any]:
    """Return all that a result says of a tensor, as values that can be compared."""
    fixed, octaves = result.fixed, None
    if fixed is not None and fixed.octaves is not None:
        octaves = (fixed.octaves.tolist(), fixed.block)
    positions = None if result.positions is None else result.positions.tobytes()
    return {
        "values": result.values.tobytes(),
        "integers": (result.quantized_at.tobytes(), result.total_at.tobytes(), positions),
        "scales": (fixed, octaves),
        "how": (result.form, result.index, result.finite, result.words_sent, result.shape),
        "told": (result.density, result.density_worker, result.error_bound),
    }


@pytest.mark.parametrize(
    ("workers", "network", "in_place"),
    [(1, NEAR, True), (1, FAR, False), (2, FAR, True), (3, NEAR, False), (8, FAR, False)],
)
def test_workers_with_and_without_bundles_sum_with_each_other(
    make_workers: Any, workers: int, network: NetworkModel, in_place: bool
) -> None:
    settings: dict[str, Any] = {"network": network, "sparse": SPARSE, "average": workers == 3}
    apart = make_workers(workers, lanes=256, implementation="reference", **settings)
    mixed = make_workers(workers, lanes=256, **settings)
    if workers > 1:
        mixed.reduces[1] = Allreduce(mixed.summations[1], implementation="reference", **settings)
    for step in range(STEPS):
        inputs = [drawn(worker, step) for worker in range(workers)]
        copies = [{name: one.copy() for name, one in tensors.items()} for tensors in inputs]
        expected = apart.sum(inputs)
        results = mixed.each(lambda w, reduce, own=copies: reduce.sum(own[w], in_place=in_place))
        for result, want in zip(results, expected, strict=True):
            assert (result.wire_bytes, result.digest) == (want.wire_bytes, want.digest)
            assert result.tally.words_sent == {name: want[name].words_sent for name in want}
            for name in inputs[0]:
                np.testing.assert_equal(outcome(result[name]), outcome(want[name]), (step, name))
        assert results[0].tally.non_finite == (2 if step == 1 else 0)


@pytest.mark.parametrize("workers", [1, 5])
def test_sums_are_those_of_an_independent_computation(make_workers: Any, workers: int) -> None:
    group = make_workers(workers, lanes=256, network=FAR, sparse=SPARSE)
    for step in range(STEPS):
        inputs = [drawn(worker, step) for worker in range(workers)]
        results = group.sum(inputs)
        for name in ("dense", "few", "rare", "some", "turned", "grown", "rows"):
            check([{"g": result[name]} for result in results], [tensors[name] for tensors in inputs])


def test_the_loops_know_most_tensors_and_leave_the_others(
    make_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the tests above have gone through every way of a bundle."""
    kinds: set[Kind] = set()
    left: dict[int, set[str]] = {}
    decode = HostBundle.decode

    def watched(bundle: HostBundle, divisor: int) -> None:
        kinds.update(map(host_bundle.kind_of, bundle._layout.tensors))
        left.setdefault(len(left), set()).update(bundle.others)
        decode(bundle, divisor)

    monkeypatch.setattr(HostBundle, "decode", watched)
    for network in (NEAR, FAR):
        group = make_workers(1, lanes=256, network=network, sparse=SPARSE)
        for step in range(STEPS):
            group.sum([drawn(0, step)])
    assert kinds == set(Kind)
    assert "turned" in left[2]
    assert "grown" in left[STEPS + 2]


@pytest.mark.parametrize("limit", [16, 33, 9002])
def test_large_tensors_are_left_to_several_cores(
    make_workers: Any, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(host_bundle, "_LARGE", limit)
    apart, bundled = (
        make_workers(2, lanes=256, sparse=SPARSE, implementation=one) for one in ("reference", "cpu")
    )
    for step in range(2):
        inputs = [drawn(worker, step) for worker in range(2)]
        for result, want in zip(bundled.sum(inputs), apart.sum(inputs), strict=True):
            for name in want:
                np.testing.assert_equal(outcome(result[name]), outcome(want[name]), (step, name))


def test_what_is_told_is_what_results_say(make_workers: Any) -> None:
    group = make_workers(2, lanes=256, network=FAR, sparse=SPARSE)
    for step in range(STEPS):
        result = group.sum([drawn(worker, step) for worker in range(2)])[0]
        told = result.tally.kept()()
        assert result.tally.elements == sum(one.elements for one in result.tensors)
        for name in result:
            one, fixed = result[name], result[name].fixed
            assert (told[name].elements, told[name].form, told[name].index) == (
                one.elements,
                one.form,
                one.index,
            )
            said = one.density, one.density_worker, one.error_bound
            np.testing.assert_equal(
                (told[name].density, told[name].density_worker, told[name].error_bound), said
            )
            assert told[name].scale_block == (
                fixed.block if fixed is not None and fixed.octaves is not None else None
            )


def test_what_is_told_keeps_no_arrays(make_workers: Any) -> None:
    group = make_workers(1, lanes=256, network=FAR)
    for step in range(2):
        result = group.sum([{"a": drawn(0, step)["dense"], "b": drawn(0, step)["few"]}])[0]
    array = weakref.ref(result["a"].total_at.base)
    told = result.tally.kept()
    del result
    gc.collect()
    assert array() is None
    assert told()["a"].density == 1.0


@pytest.mark.parametrize("elements", [1, 31, 8191, 2**31 + 5])
def test_the_loops_draw_the_elements_that_the_sample_does(elements: int) -> None:
    """The place of an element is drawn without the element, so a tensor of any size can be imitated."""
    seed = 2**63 + 12345
    want = sample(elements, seed)
    got = [loops.drawn_place(k, np.uint64(seed), elements) for k in range(len(want))]
    assert got == want.tolist()


def test_results_do_not_keep_the_tensors(make_workers: Any) -> None:
    given = {name: np.copy(one) for name, one in drawn(0, 0).items() if one.dtype == np.float32}
    references = [weakref.ref(one) for one in given.values()]
    result = make_workers(1, lanes=256, sparse=[name for name in SPARSE if name in given]).sum([given])[0]
    given.clear()
    gc.collect()
    assert [one() for one in references] == [None] * len(references)
    assert result["dense"].total_at.any()


def test_results_are_made_when_they_are_read(make_workers: Any) -> None:
    result = make_workers(1).sum([{"a": np.ones(3, np.float32), "b": np.zeros(2, np.float32)}])[0]
    assert [one.name for one in result.tensors[::-1]] == ["b", "a"]
    assert result.tensors[-1] is result["b"]
    with pytest.raises(IndexError):
        result.tensors[2]


@pytest.mark.parametrize("form", ["dense", "compact"])
def test_integers_of_a_result_belong_to_the_caller(make_workers: Any, form: str) -> None:
    values = np.arange(70, dtype=np.float32)
    result = make_workers(1, forms=form).sum([{"a": values}])[0]["a"]
    for integers in (result.total_at, result.quantized_at):
        integers *= 2
    np.testing.assert_array_equal(result.total, result.quantized)


def test_a_form_without_a_case_is_an_error_and_no_other_forms_words() -> None:
    choice = Choice(cast(Any, "packed"))
    with pytest.raises(AssertionError, match="packed"):
        host_bundle.kind_of(TensorPlan("g", (9,), "float32", choice))
    exchange = TensorExchange(choice, np.ones(9, np.float32), Setting(kernels(), 1, 8, Settings(), 0))
    with pytest.raises(AssertionError, match="packed"):
        next(exchange.rounds())
