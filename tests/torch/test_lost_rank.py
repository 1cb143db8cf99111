"""A rank that ends in the middle of a step: every other one raises one error that names it, in time."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_training as training
from torch_ranks import run_ranks

from peelsum.topology import Star


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_over_gloo(ranks):
    """Of five, some wait for ranks that live: they, too, name the one that does not."""
    *others, last = run_ranks(ranks, training.dies, ranks - 1, {"over": "gloo", "timeout_s": 20.0})
    assert last is None
    for error, message, seconds in others:
        assert error == "SummationStalledError"
        assert f"worker {ranks - 1} did not answer; see whether it is running" in message
        assert seconds < 15


def test_over_a_switch():
    with Star(3, timeout_s=2.0) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        *others, last = run_ranks(3, training.dies, 2, {"over": "switch"}, environments=seats)
    assert last is None
    for error, message, seconds in others:
        assert error == "StalledError"
        assert "still waiting for worker 2" in message
        assert seconds < 10
