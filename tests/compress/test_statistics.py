"""Unbiasedness and contraction, by many draws with fixed seeds.

A mean is tested by z = (mean - expected) / standard error, |z| < 5. By chance one such z in 1.7 million is
larger, so of the up to 97 elements of a test one fails with probability below 6e-5, if seeds were new.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from compressors import COMPRESSORS, alone

from peelsum.compress import (
    QSGD,
    Brain,
    EFSignSGD,
    Half,
    Int8Blocks,
    NaturalCompression,
    PackedIntegers,
    PowerSGD,
    RandomK,
    TernGrad,
    TopK,
)

DRAWS, Z = 1000, 5.0
X = (np.random.default_rng(11).standard_normal(97) * np.linspace(0.1, 3, 97)).astype(np.float32)
X = np.copysign(np.maximum(np.abs(X), np.float32(0.25)), X)  # so that no element is sent too rarely to count
SQUARE = float((X.astype(float) ** 2).sum())


def draws(compressor, count=DRAWS):
    return np.array([alone(compressor, X, seed=seed, workers=3)[0] for seed in range(count)])


def largest_z(sent):
    """The largest |z| of an element; the largest elements may never leave a level that is 2**-11 above."""
    spread = sent.std(0, ddof=1) / math.sqrt(len(sent))
    moved = np.abs(sent.mean(0) - X)
    constant = np.where(moved > 2.0**-11 * np.abs(X), np.inf, 0.0)
    return float(np.max(np.divide(moved, spread, out=constant, where=spread > 0)))


UNBIASED = {name: one for name, one in COMPRESSORS.items() if one.unbiased}


@pytest.mark.parametrize("compressor", UNBIASED.values(), ids=UNBIASED)
def test_the_mean_of_what_is_sent_is_the_tensor(compressor):
    assert largest_z(draws(compressor)) < Z


@pytest.mark.parametrize("compressor", [EFSignSGD(), Int8Blocks(), TopK(0.5), RandomK(0.5)], ids=str)
def test_the_test_tells_biased_ones(compressor):
    assert not compressor.unbiased
    assert largest_z(draws(compressor)) > Z


def unit_of(compressor):
    return compressor.unit(alone(compressor, X, seed=0, workers=3)[1])


#: By compressor: the bound on E |x - C(x)|^2 / |x|^2, and whether it is met with equality.
CONTRACTION = {
    TopK(0.25): (1 - 25 / 97, False),
    RandomK(0.25): (1 - 25 / 97, True),
    QSGD(4): (min(97 / 49, math.sqrt(97) / 7) * (1 + 2.0**-13), False),
    TernGrad(): (float(np.abs(X).max()) * float(np.abs(X).sum(dtype=float)) / SQUARE - 1, True),
    NaturalCompression(): (1 / 8, False),
    PackedIntegers(8): (97 * unit_of(PackedIntegers(8)) ** 2 / 4 / SQUARE, False),
    EFSignSGD(): (1 - float(np.abs(X).sum(dtype=float)) ** 2 / (97 * SQUARE), True),
    Half(): (2.0**-22, False),
    Brain(): (2.0**-16, False),
    Int8Blocks(64): (64 / 2**14, False),
    PowerSGD(2, per="bucket"): (1.0, False),
}


@pytest.mark.parametrize(("compressor", "bound"), CONTRACTION.items(), ids=str)
def test_the_error_is_within_its_bound(compressor, bound):
    most, equal = bound
    errors = ((draws(compressor) - X) ** 2).sum(1) / SQUARE
    allowed = Z * errors.std(ddof=1) / math.sqrt(DRAWS) + 2.0**-12 * most
    assert errors.mean() <= most + allowed
    assert not equal or errors.mean() >= most - allowed


def test_a_rotation_makes_the_unit_finer_where_few_elements_are_large():
    spiky = np.zeros(4096, np.float32)
    spiky[:3] = 100.0
    spiky[3:] = np.random.default_rng(0).standard_normal(4093)
    errors = {}
    for rotate in (False, True):
        sent, _ = alone(PackedIntegers(4, rotate=rotate), spiky, workers=3)
        errors[rotate] = float(((sent - spiky) ** 2).sum())
    assert errors[True] < errors[False] / 4
