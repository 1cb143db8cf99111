"""Small sparse tensors that are summed in a group keep their exponents, scales and exact sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sums_of_floats import check

from peelsum.allreduce import Allreduce, NetworkModel
from peelsum.allreduce.bundle import LARGEST
from peelsum.allreduce.group import Member, _fields_of, _largest_bits
from peelsum.codec import EXPONENT_WORDS, BFloat16, HostMemory, Selection

WORKERS, STEPS = 3, 4
LENGTHS = [1, 31, 32, 33, 64, 100, 1000, LARGEST - 1, LARGEST]
WORDS_ONLY = NetworkModel(gbps=1e-6, round_trip_s=0.0)


def drawn(worker: int, step: int, *, octaves: int = 2, density: float = 0.05) -> dict[str, Any]:
    """Return sparse tensors of many lengths; each is `octaves` octaves above the one before."""
    rng = np.random.default_rng((worker, step))
    tensors: dict[str, Any] = {}
    for number, length in enumerate(LENGTHS):
        values = np.ldexp(rng.normal(size=length), rng.integers(-6, 6, length) + octaves * number - 20)
        tensors[f"t{number}"] = np.where(rng.random(length) < density, values, -0.0).astype(np.float32)
    tensors["large"] = np.where(rng.random(LARGEST + 1) < density, np.float32(2.5), np.float32(0))
    return tensors


def odd(worker: int, step: int) -> dict[str, Any]:
    """Return tensors that are zero, not finite, narrow or subnormal, beside others."""
    tensors = drawn(worker, step)
    tensors["zeros"] = np.full(40, -0.0, np.float32)
    tensors["half"] = np.where(np.arange(90) % 30 == step, 1.5 + worker, 0).astype(np.float16)
    tensors["brain"] = BFloat16(np.where(np.arange(45) % 20 == 3, 0x3F81 + worker, 0).astype(np.uint16))
    tensors["subnormal"] = np.where(np.arange(100) == worker, 1e-45, 0).astype(np.float32)
    for name, number in (("infinite", np.inf), ("nan", np.nan)):
        tensors[name] = np.where(np.arange(99) == 7, number if (worker, step) == (1, 2) else 1.0, 0)
        tensors[name] = tensors[name].astype(np.float32)
    tensors["dense"] = np.random.default_rng(step).normal(size=100).astype(np.float32)
    return tensors


def names_of(tensors: dict[str, Any]) -> list[str]:
    return [name for name in tensors if name != "dense"]


def outcome(result: Any) -> dict[str, Any]:
    """Return all that a result says of a tensor, as values that can be compared."""
    octaves = None if result.fixed is None or result.fixed.octaves is None else result.fixed.octaves.tolist()
    return {
        "values": result.values.view(np.uint32).tolist(),
        "integers": (result.quantized_at.tolist(), result.total_at.tolist(), result.positions),
        "scales": (result.fixed, octaves),
        "rest": (result.form, result.finite, result.words_sent, result.shape, result.density),
    }


@pytest.mark.parametrize("network", [NetworkModel(), WORDS_ONLY], ids=["default", "words"])
@pytest.mark.parametrize("octaves", [2, 8, 14])
def test_sums_are_those_of_an_independent_computation(
    make_workers: Any, octaves: int, network: NetworkModel
) -> None:
    """Also where exponents are farther apart than the group's words can tell."""
    workers = make_workers(WORKERS, network=network, sparse=list(drawn(0, 0)))
    for step in range(STEPS):
        inputs = [drawn(worker, step, octaves=octaves) for worker in range(WORKERS)]
        results = workers.sum(inputs)
        grouped = [one.name for one in workers.reduces[0]._plans[0].tensors if one.choice.grouped]
        assert {"t6", "t7", "t8"} <= set(grouped)
        assert "large" not in grouped
        for name in inputs[0]:
            check([{"g": result[name]} for result in results], [tensors[name] for tensors in inputs])


@pytest.mark.parametrize("average", [False, True])
def test_all_implementations_sum_with_each_other(make_workers: Any, average: bool) -> None:
    settings = {"average": average, "sparse": names_of(odd(0, 0))}
    apart, mixed = (make_workers(WORKERS, implementation=one, **settings) for one in ("reference", "cpu"))
    mixed.reduces[1] = Allreduce(mixed.summations[1], implementation="reference", **settings)
    for step in range(STEPS):
        inputs = [odd(worker, step) for worker in range(WORKERS)]
        expected, results = apart.sum(inputs), mixed.sum(inputs)
        for result, want in zip(results, expected, strict=True):
            assert (result.wire_bytes, result.digest) == (want.wire_bytes, want.digest)
            for name in inputs[0]:
                np.testing.assert_equal(outcome(result[name]), outcome(want[name]), (step, name))
        for name in ("infinite", "nan"):
            assert results[0][name].finite == (step != 2)
            assert np.isnan(results[0][name].values).all() == (step == 2)
            assert all(bool(result[name].total_at.size) == (step != 2) for result in results)
        if not average:
            for name in ("t6", "t8", "subnormal", "zeros"):
                check([{"g": result[name]} for result in results], [tensors[name] for tensors in inputs])


def test_results_are_written_over_tensors_and_into_arrays(make_workers: Any) -> None:
    names = list(drawn(0, 0))
    fresh, over, into = (make_workers(WORKERS, sparse=names) for _ in range(3))
    for step in range(2):
        inputs = [drawn(worker, step) for worker in range(WORKERS)]
        expected = fresh.sum(inputs)
        out = [{name: np.full_like(inputs[0][name], 7) for name in names} for _ in range(WORKERS)]
        placed = into.each(lambda w, reduce: reduce.sum(inputs[w], out=out[w]))  # noqa: B023
        covered = over.each(lambda w, reduce: reduce.sum(inputs[w], in_place=True))  # noqa: B023
        for worker in range(WORKERS):
            for name in names:
                wanted = expected[worker][name].values.tobytes()
                assert placed[worker][name].values is not None
                assert (out[worker][name].tobytes(), inputs[worker][name].tobytes()) == (wanted, wanted)
                assert np.shares_memory(covered[worker][name].values, inputs[worker][name])


def test_steps_do_not_share_results(make_workers: Any) -> None:
    workers = make_workers(1, sparse=list(drawn(0, 0)))
    first = workers.sum([drawn(0, 0)])[0]
    kept = {name: first[name].values.tobytes() for name in first}
    workers.sum([drawn(0, 1)])
    assert {name: first[name].values.tobytes() for name in first} == kept


def test_a_group_costs_little_more_than_one_tensor(echo: Any) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(64, 3073, 100)
    for density, most in ((0.01, 1.1), (0.1, 1.1)):
        whole = np.where(rng.random(lengths.sum()) < density, np.float32(1.5), np.float32(0))
        words = []
        for cuts in (np.cumsum(lengths)[:-1], []):
            reduce = Allreduce(echo, network=WORDS_ONLY)
            for _ in range(3):
                result = reduce.sum(np.split(whole, cuts))
            np.testing.assert_array_equal(np.concatenate([one.values for one in result.tensors]), whole)
            words.append(sum(tensor.words_sent for tensor in result.tensors))
        assert words[0] <= most * words[1]


def test_words_of_members_are_those_of_the_group(echo: Any) -> None:
    sent: list[int] = []
    original = echo.sum_words
    echo.sum_words = lambda parts: (sent.extend(one.words.size for one in parts), original(parts))[1]
    reduce = Allreduce(echo, sparse=list(drawn(0, 0)))
    for step in range(2):
        sent.clear()
        result = reduce.sum(drawn(0, step))
        assert sum(tensor.words_sent for tensor in result.tensors) == sum(sent) - 4  # the agreement's


def test_tensors_of_one_block_send_a_word_for_the_exponent_and_none_for_scales(echo: Any) -> None:
    reduce = Allreduce(echo, forms="compact", index="bitmap")
    result = reduce.sum({str(n): np.eye(1, 40, n, dtype=np.float32) for n in range(3)})
    assert sum(one.words_sent for one in result.tensors) == EXPONENT_WORDS + 3 * (1 + 2 + 1)


def test_false_positives_between_tensors_are_not_elements(make_workers: Any) -> None:
    """A tensor of 33 elements has room for 64 in the group, and a filter lets some of the rest through."""
    workers = make_workers(2, forms="compact", index="bloom")
    for step in range(20):
        shape = 33 + step
        inputs = [
            {str(n): np.where(np.arange(shape) == n + w, np.float32(1.5), np.float32(0)) for n in range(20)}
            for w in range(2)
        ]
        results = workers.sum(inputs)
        for name in inputs[0]:
            check([{"g": result[name]} for result in results], [tensors[name] for tensors in inputs])
            assert results[0][name].positions.max() < shape


@pytest.mark.parametrize(
    ("totals", "elements"),
    [([3, 0, -7], 2), ([3, 0, 0], 3)],
    ids=["false positives are left out", "most were rounded to 0"],
)
def test_occupied_elements_are_those_of_the_sum(totals: list[int], elements: int) -> None:
    nobody: Any = None
    total = np.array(totals, np.int32)
    chosen = Selection(3, lambda: np.array([1, 5, 9]))
    member = Member(100, None, chosen, total, total, 0, None, nobody, slice(0, 32), None, HostMemory())
    assert member.occupied()[0] == elements


def test_fields_that_are_equal_modulo_32_are_told_apart_by_all_their_bits() -> None:
    present = np.zeros(EXPONENT_WORDS, np.uint32)
    for field in (100, 127, 0):
        present[field // 32] |= np.uint32(1 << field % 32)
    words = np.array([1 << 4, 1 << 31, 1 << 4 | 1 << 31, 0, 1], np.uint32)
    assert _fields_of(present, words).tolist() == [100, 127, 127, -1, 0]
    present[95 // 32] |= np.uint32(1 << 31)
    assert _fields_of(present, words) is None
    assert _largest_bits(np.array([[0, 8, 2**31], [0, 0, 0], [1, 0, 0]], np.uint32)).tolist() == [95, -1, 0]
