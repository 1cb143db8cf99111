"""Sparsified training over real processes: nothing is lost, across rebuilt buckets and a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_training as training
from torch_ranks import run_ranks

from peelsum.torch import HookConfigError, RandomK, SwitchAllreduceState, TopK


@pytest.mark.parametrize("sparsifier", [TopK(0.05), TopK(0.05, per="bucket"), RandomK(0.1)], ids=str)
def test_nothing_is_lost(sparsifier):
    """DDP rebuilds its buckets after the first step; the account is exact but for floats' rounding."""
    outcomes = run_ranks(2, training.sparsified, sparsifier, 0.0, None)
    np.testing.assert_array_equal(outcomes[0]["parameters"], outcomes[1]["parameters"])
    for outcome in outcomes:
        np.testing.assert_allclose(outcome["balances"], 0, atol=1e-6)
        assert 0 < outcome["sent"] < 0.12


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_restored_checkpoint_goes_on_bit_for_bit(momentum):
    through = run_ranks(2, training.sparsified, TopK(0.05), momentum, None)
    restored = run_ranks(2, training.sparsified, TopK(0.05), momentum, 3)
    for one, other in zip(through, restored, strict=True):
        np.testing.assert_array_equal(one["parameters"], other["parameters"])
        if not momentum:
            np.testing.assert_allclose(other["balances"], 0, atol=1e-6)


def test_momentum_needs_a_sparsifier():
    with pytest.raises(HookConfigError, match=r"momentum: 0.9 is for what a sparsifier keeps"):
        SwitchAllreduceState(momentum=0.9)
    with pytest.raises(HookConfigError, match="momentum: 1 is out of range"):
        SwitchAllreduceState(momentum=1, sparsifier=TopK(0.1))
