"""Sparsified training over real processes: sent and kept add up to all gradients, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_books as books
from torch_ranks import run_ranks

from peelsum.torch import RandomK, Threshold, TopK

WAYS = {
    "top-k": TopK(0.05),
    "per bucket": TopK(0.05, per="bucket"),
    "random": RandomK(0.1, seeds="own"),
    "threshold": Threshold(0.01),
    "momentum": TopK(0.05, momentum=0.5),
}


#: A parameter of the first bucket, and one of the last.
FIRST, LAST = "softmax.weight", "hidden.weight"


@pytest.mark.parametrize("overflows", [FIRST, LAST])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_nothing_is_lost(way, overflows):
    """DDP rebuilds its buckets after the first step; a GradScaler skips the fourth, which overflows."""
    ranks = run_ranks(2, books.audited, way, None, (3, overflows), "gloo")
    np.testing.assert_array_equal(ranks[0]["parameters"], ranks[1]["parameters"])
    for rank in ranks:
        assert rank["applied"] == [step != 3 for step in range(books.STEPS)]
        assert rank["stats"].non_finite == 1
        assert all(0 < sent < 0.4 for sent in rank["sent"])
        first, *others = rank["buckets"]
        assert all(first != one == others[0] for one in others)
        assert [overflows in names for names in others[0]] == [overflows == FIRST, overflows == LAST]


@pytest.mark.parametrize("way", [WAYS["top-k"], WAYS["momentum"]], ids=["", "momentum"])
def test_a_restored_checkpoint_goes_on_bit_for_bit(way):
    """Even one that was written after a step that was skipped."""
    through, restored = (run_ranks(2, books.audited, way, at, (2, LAST)) for at in (None, 3))
    for one, other in zip(through, restored, strict=True):
        np.testing.assert_array_equal(one["parameters"], other["parameters"])
        assert other["buckets"][3] == one["buckets"][0] != one["buckets"][3]
        assert one["applied"] == other["applied"] == [step != 2 for step in range(books.STEPS)]
