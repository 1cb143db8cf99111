"""The `peelsum` backend of torch.distributed, over a switch: what gloo makes of the same calls."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_training as training
from torch_ranks import run_ranks

from peelsum.topology import Star


def test_calls_come_to_what_gloo_makes_of_them():
    with Star(2) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        ours = run_ranks(2, training.collectives, environments=seats, backend="cpu:peelsum")
    gloos = run_ranks(2, training.collectives)
    assert star.report is not None
    assert star.report.server["chunks_in_switch"] > 20
    for mine, gloo in zip(ours, gloos, strict=True):
        assert (mine.pop("backend"), gloo.pop("backend")) == ("cpu:peelsum", "gloo")
        np.testing.assert_allclose(mine.pop("trained"), gloo.pop("trained"), rtol=0, atol=1e-6)
        assert mine == gloo
