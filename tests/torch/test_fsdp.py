"""FSDP2 with replicas summed by the hook gives the results of torch's own hybrid sharding."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_training as training
from torch_ranks import run_ranks

from peelsum.torch import HookConfigError, SwitchAllreduceState, TopK, fsdp_hook


def test_replicas_train_as_by_torch():
    ours, theirs = (run_ranks(4, training.sharded, hooked) for hooked in (True, False))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ours[:2], ours[2:])


@pytest.mark.parametrize("factor", [None, 2.0])
def test_what_is_no_average_over_the_state_s_ranks_is_refused(factor):
    """Either FSDP divides by another factor, or it shards over two of the state's four ranks."""
    for said in run_ranks(2 if factor else 4, training.sharded_otherwise, factor):
        assert "give the state the mesh's group" in said


def test_sparsifiers_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(HookConfigError, match="compressor: is for DDP"):
        fsdp_hook(SwitchAllreduceState(compressor=TopK(0.1)))(torch.zeros(3))
