"""all_reduce by trees: the bits of the backend's all_reduce and of an independent sum, for any world."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from torch_ranks import run_ranks
from tree_ranks import sums


@pytest.mark.parametrize("world", [2, 3, 5])
def test_a_tree_gives_the_bits_of_a_ring(world: int) -> None:
    found = run_ranks(world, sums, 1001)
    exact = np.sum([np.array(own, np.int64) for own, _, _ in found], axis=0).astype(np.int32)
    for _, tree, ring in found:
        assert tree == ring == exact.tolist()
