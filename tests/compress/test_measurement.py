"""Measurements that workers agree on: the OR of codes is the least or the most, whatever was measured."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from peelsum.compress import Measurement
from peelsum.compress.costs import CompressConfigError

LEAST = ("group_small_s", "switch_small_s", "group_probe_s", "switch_probe_s", "exchange_s", "gain")


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("seed", range(5))
def test_all_agree_on_the_least_of_the_network_and_the_most_of_the_work(workers: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    measured = [
        Measurement(*10 ** random.uniform(-6, 3, 7), gain=10 ** random.uniform(-4, 0)) for _ in range(workers)
    ]
    agreed = Measurement.agreed(np.bitwise_or.reduce([one.words() for one in measured]))
    for item in fields(Measurement):
        values = [getattr(one, item.name) for one in measured]
        wanted = min(values) if item.name in LEAST else max(values)
        assert getattr(agreed, item.name) == pytest.approx(wanted, rel=0.03 if item.name == "gain" else 0.05)


def test_zero_and_values_beyond_the_scale_are_kept_in_order() -> None:
    zero = Measurement()
    assert Measurement.agreed(zero.words()) == zero
    tiny = Measurement.agreed(Measurement(group_small_s=1e-9, compute_s=1e-9, gain=1e-9).words())
    assert tiny == zero
    huge = Measurement.agreed(Measurement(group_small_s=1e9, compute_s=1e9).words())
    assert huge.group_small_s == huge.compute_s > 3600
    both = Measurement.agreed(zero.words() | Measurement(group_small_s=1.0, compute_s=1.0).words())
    assert both.group_small_s == 0
    assert both.compute_s == pytest.approx(1.0, rel=0.05)


def test_what_all_agreed_on_is_agreed_on_again() -> None:
    once = Measurement.agreed(Measurement(1e-3, 2e-3, 0.1, 0.3, 0.2, 3e-3, 0.5, 0.3).words())
    assert Measurement.agreed(once.words()) == once


def test_other_words_are_refused() -> None:
    with pytest.raises(CompressConfigError, match="words: "):
        Measurement.agreed(np.zeros(7, np.uint32))
