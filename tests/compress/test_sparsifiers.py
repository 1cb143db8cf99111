"""The number of elements that each sparsifier chooses, and which."""

from __future__ import annotations

import numpy as np
import pytest
from compressors import Workers

from peelsum.compress import CompressConfigError, RandomK, Threshold, TopK

MAGNITUDES = np.random.default_rng(0).exponential(size=10_000)


def test_exact_top_k_takes_the_largest():
    positions = TopK(0.01).choose(MAGNITUDES, 0, 0)
    assert sorted(positions) == sorted(np.argsort(MAGNITUDES)[-100:])


@pytest.mark.parametrize("seed", range(20))
def test_sampled_top_k_takes_about_as_many_and_only_the_largest(seed):
    positions = TopK(0.01, sample=0.1).choose(MAGNITUDES, 0, seed)
    assert 40 < positions.size <= 200
    assert sorted(positions) == sorted(np.argsort(MAGNITUDES)[-positions.size :])


def test_a_sample_that_misleads_is_corrected():
    """Where nearly all magnitudes are alike, a threshold lets all of them through."""
    alike = np.full(1000, 2.0)
    assert TopK(0.05, sample=0.1).choose(alike, 0, 0).size == 50


def test_random_k_is_the_same_by_seed_and_distinct():
    positions = RandomK(0.03).choose(MAGNITUDES, 0, 5)
    np.testing.assert_array_equal(positions, RandomK(0.03).choose(MAGNITUDES, 0, 5))
    assert len(set(positions)) == 300
    assert set(positions) != set(RandomK(0.03).choose(MAGNITUDES, 0, 6))


def test_threshold():
    positions = Threshold(2.5).choose(MAGNITUDES, 0, 0)
    np.testing.assert_array_equal(positions, np.flatnonzero(MAGNITUDES >= 2.5))


def test_warm_up_is_exponential():
    share = TopK(0.001, warm_up_steps=4, warm_up_from=0.25)
    assert share.ratio_at(0) == pytest.approx(0.25)
    ratios = [share.ratio_at(step) for step in range(5)]
    assert ratios[-1] == share.ratio_at(1000) == 0.001
    np.testing.assert_allclose(np.diff(np.log(ratios)), np.log(0.001 / 0.25) / 4)
    assert share.choose(MAGNITUDES, 0, 0).size == 2500
    assert share.choose(MAGNITUDES, 4, 0).size == 10


@pytest.mark.parametrize(
    "sparsifier", [TopK(0.5), TopK(0.5, sample=0.5), RandomK(0.5), Threshold(1)], ids=str
)
def test_tensors_without_elements_and_of_one(sparsifier):
    assert sparsifier.choose(np.zeros(0), 0, 0).size == 0
    np.testing.assert_array_equal(sparsifier.choose(np.full(1, 2.0), 0, 0), [0])


def test_elements_of_a_bucket_compete():
    tensors = {"small": [1, 2], "large": [3, 9, 8], "none": []}
    given = {name: np.array(one, np.float32) for name, one in tensors.items()}
    for per, small, large in (("bucket", [0, 0], [3, 9, 8]), ("tensor", [0, 2], [0, 9, 8])):
        (result,) = Workers(TopK(0.5, per=per), 1).step([given])
        assert [one.values.tolist() for one in result.tensors] == [small, large, []]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: TopK(0), "ratio: 0 is not a share"),
        (lambda: RandomK(1.5), "ratio: 1.5 is not a share"),
        (lambda: TopK(0.1, sample=-1), "sample: -1 is not a share"),
        (lambda: TopK(0.1, warm_up_steps=-1), "warm_up_steps: -1 is not a number of steps"),
        (lambda: Threshold(0), "value: 0 is not a threshold"),
    ],
)
def test_what_is_out_of_range_is_refused(made, message):
    with pytest.raises(CompressConfigError, match=message):
        made()
