"""What cannot be used is refused in one line that names field, value and remedy."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from peelsum.allreduce import LocalSummation
from peelsum.compress import (
    DGC,
    QSGD,
    Combined,
    CompressConfigError,
    CompressedSum,
    Half,
    Int8Blocks,
    Memory,
    PackedIntegers,
    PowerSGD,
    RandomK,
    StarTopK,
    TernGrad,
    Threshold,
    TopK,
    VarTopK,
)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: TopK(0), "ratio: 0 is not a share; give a number above 0, up to 1"),
        (lambda: TopK(True), "ratio: True is not a share; give"),
        (lambda: TopK(0.1, per="layer"), "per: 'layer' is unknown; use 'tensor' or 'bucket'"),
        (lambda: DGC(0.5), "warm_up_from: 0.25 is below the ratio, 0.5; give at least the ratio"),
        (lambda: RandomK(0.1, seeds="mine"), "seeds: 'mine' is unknown; use 'shared', 'own'"),
        (lambda: StarTopK(0.1, sample=0.1), "sample: 0.1 makes k vary; use None with a shared index"),
        (lambda: VarTopK(float("nan")), "ratio: nan is not a share; give"),
        (lambda: Threshold(float("inf")), "value: inf is not a threshold; give a number above 0"),
        (lambda: QSGD(3), "bits: 3 is unknown; use 2, 4, 8, 16"),
        (lambda: QSGD(4.0), "bits: 4.0 is unknown; use 2, 4, 8, 16"),
        (lambda: QSGD(4, "one"), "norm: 'one' is unknown; use 'two', 'largest'"),
        (lambda: QSGD(4, block=0), "block: 0 is not a number of elements; give an integer from 1 on"),
        (lambda: Int8Blocks(1.5), "block: 1.5 is not a number of elements; give an integer from 1 on"),
        (lambda: Half(per=None), "per: None is unknown; use 'tensor' or 'bucket'"),
        (lambda: PackedIntegers(6), "bits: 6 is unknown; use 4, 8, 16"),
        (lambda: PackedIntegers(8, 1), "rotate: 1 is unknown; use True, False"),
        (lambda: PowerSGD(0), "rank: 0 is not a rank; give an integer from 1 on"),
        (lambda: Memory(momentum=1), "momentum: 1 is out of range; give a number from 0 to below 1"),
        (lambda: Memory(clip=0), "clip: 0 is not a norm; give a number above 0, or None"),
        (
            lambda: Memory(feedback=False, momentum=0.5),
            "momentum: 0.5 needs error feedback; give feedback=True",
        ),
        (lambda: Combined(QSGD(4), QSGD(4)), "sparsifier: QSGD("),
        (lambda: Combined(TopK(0.1), TopK(0.1)), "is not a quantizer; give e.g. QSGD(4)"),
        (lambda: Combined(TopK(0.1), PackedIntegers(8)), "which are not shared; use e.g. QSGD(4)"),
        (lambda: Combined(StarTopK(0.1), QSGD(4)), "which are shared; use e.g. PackedIntegers(8)"),
        (
            lambda: Combined(StarTopK(0.1), PackedIntegers(8, rotate=True)),
            "quantizer: rotate=True needs the positions first; use rotate=False",
        ),
    ],
)
def test_what_cannot_be_used(make, complaint):
    with pytest.raises(CompressConfigError, match=re.escape(complaint)) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("compressor", "workers", "complaint"),
    [
        (PackedIntegers(4), 8, "bits: 4 holds the sum of 7 workers, not of 8; use more bits"),
        (Combined(RandomK(0.1), PackedIntegers(8)), 128, "bits: 8 holds the sum of 127 workers, not of 128"),
        (TernGrad(), 2**16 + 1, "workers: 65537 are too many for packed integers; use up to 65536"),
    ],
)
def test_more_workers_than_fields_hold(compressor, workers, complaint):
    compressor.check(workers - 1)
    with pytest.raises(CompressConfigError, match=complaint):
        compressor.check(workers)


def test_fields_hold_the_largest_and_the_smallest_sum():
    """All workers at once at either end of the range: nothing is carried into the next field."""
    values = np.array([1.0, -1.0] * 9, np.float32)
    for compressor, count in ((PackedIntegers(4), 7), (PackedIntegers(8), 12), (TernGrad(), 4)):
        sums = [CompressedSum(one, compressor) for one in LocalSummation.group(count, 4)]
        with ThreadPoolExecutor(count) as pool:
            for result in pool.map(lambda one: one.sum({"x": values}), sums):
                np.testing.assert_allclose(result["x"].values, values, rtol=0.05)
