"""Medians with intervals from order statistics, which assume nothing about a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

#: The confidence that an interval should have.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """The median of some values, and an interval for the distribution's median."""

    median: float
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    confidence: float
    """The interval's confidence: under CONFIDENCE if there are fewer than six values."""
    count: int
    """Number of values."""


def summary(values: Sequence[float]) -> Summary:
    """Return median and interval of one value or more.

    The interval reaches from the k-th smallest to the k-th largest value, for the largest k with which it has
    CONFIDENCE. Without such a k it reaches from the smallest to the largest. Both ends are off with the
    binomial probability of fewer than k heads among n coins (David and Nagaraja, Order Statistics, 7.1).
    """
    ordered, count = sorted(values), len(values)
    k = 1
    while 2 * (k + 1) <= count and _confidence(count, k + 1) >= CONFIDENCE:
        k += 1
    return Summary(median(ordered), ordered[k - 1], ordered[-k], _confidence(count, k), count)


def _confidence(count: int, k: int) -> float:
    return 1 - math.ldexp(sum(math.comb(count, heads) for heads in range(k)), 1 - count)
