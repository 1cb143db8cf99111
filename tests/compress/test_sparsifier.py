"""AR-Topk: one worker's positions, exactly k of them, and how many exchanges it takes."""

import numpy as np
import pytest
from compressors import Workers
from definitions import top_k, variance

from peelsum.compress import PackedIntegers, StarTopK, VarTopK


def tensors(seed, count=4, elements=200):
    rng = np.random.default_rng(seed)
    factor = 2.0 ** (seed % 3)
    return [{"x": (rng.standard_normal(elements) * factor).astype(np.float32)} for _ in range(count)]


def own_top(values, count):
    return set(top_k(values.tolist(), count))


@pytest.mark.parametrize("ratio", [0.01, 0.3])
@pytest.mark.parametrize("kind", [StarTopK, VarTopK])
def test_one_worker_s_largest_elements_are_sent(kind, ratio):
    """STAR takes turns, VAR takes the worker of the largest variance; a list or a bitmap tells positions."""
    workers, seen = Workers(kind(ratio), 4, error_feedback=False), set()
    count = kind(ratio).count(200, 0)
    for step in range(12):
        given = tensors(step)
        tops = [own_top(one["x"], count) for one in given]
        variances = [variance(one["x"][sorted(top)].tolist()) for one, top in zip(given, tops, strict=True)]
        elected = step % 4 if kind is StarTopK else int(np.argmax(variances))
        seen.add(elected)
        result = workers.step(given)[0]
        assert set(np.flatnonzero(result["x"].values)) == tops[elected]
        assert len(tops[elected]) == count
    assert len(seen) > 1


def test_of_equal_variances_the_first_worker_is_elected():
    same = {"x": np.arange(-8, 8, dtype=np.float32)}
    mirrored = {"x": same["x"][::-1].copy()}
    result = Workers(VarTopK(1 / 16), 3, error_feedback=False).step([mirrored, same, same])[0]
    assert np.flatnonzero(result["x"].values).tolist() == [15]


@pytest.mark.parametrize(
    ("compressor", "expected"),
    [
        (StarTopK(0.01), [[("or", 4), ("or", 4), ("or", 2)], [("add", 2)]]),
        (StarTopK(0.5), [[("or", 4), ("or", 4), ("or", 7)], [("add", 100)]]),
        (VarTopK(0.01), [[("or", 4), ("or", 8)], [("or", 2)], [("add", 2)]]),
        (StarTopK(0.5, quantizer=PackedIntegers(8)), [[("or", 4), ("or", 4), ("or", 7)], [("add", 25)]]),
    ],
    ids=str,
)
def test_exchanges_after_the_first_step(compressor, expected):
    """STAR: index with the header, then k values. VAR: one exchange more, for the election."""
    workers = Workers(compressor, 4)
    workers.step(tensors(0))
    assert workers.recorded(tensors(1)) == [expected] * 4


def test_tensors_may_elect_different_workers():
    rng = np.random.default_rng(1)
    large, small = rng.standard_normal((2, 50)).astype(np.float32) * np.array([[9], [1]], np.float32)
    given = [{"a": large, "b": small}, {"a": small, "b": large}]
    result = Workers(VarTopK(0.1), 2, error_feedback=False).step(given)[1]
    for name in ("a", "b"):
        assert set(np.flatnonzero(result[name].values)) == own_top(large, 5)
