"""A rank that ends in the middle of a step: every other one raises one error that names it, in time."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_training as training
from torch_ranks import run_ranks

from peelsum.topology import Star


def test_over_gloo():
    *others, last = run_ranks(3, training.dies, 2, {"over": "gloo", "timeout_s": 10.0})
    assert last is None
    for error, message, seconds in others:
        assert error == "SummationStalledError"
        assert "worker 2 did not answer" in message
        assert seconds < 10


def test_over_a_switch():
    with Star(3, timeout_s=2.0) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        *others, last = run_ranks(3, training.dies, 2, {"over": "switch"}, environments=seats)
    assert last is None
    for error, message, seconds in others:
        assert error == "StalledError"
        assert "still waiting for worker 2" in message
        assert seconds < 10
