"""Training with the hook, as real processes over gloo: against DDP's own sums, and bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_ranks import run_ranks  # noqa: E402
from torch_training import by_ddp, by_hook  # noqa: E402

OPTIONS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_trains_as_ddp_does(options):
    trained = run_ranks(2, by_hook, 6, {"over": "gloo"}, options)
    np.testing.assert_array_equal(trained[0], trained[1])
    np.testing.assert_allclose(trained[0], run_ranks(2, by_ddp, 6)[0], rtol=0, atol=1e-6)
