"""A rank ends in the middle of a step: every other rank raises an error that names it, in time."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_training as training
from torch_ranks import run_ranks

from peelsum.topology import Star

pytestmark = pytest.mark.usefixtures("forked_children")

#: A timeout that gloo must not reach. Any machine notices a broken connection in half of it.
NEVER_S = 300.0
BY_GLOO = {"over": "gloo", "timeout_s": NEVER_S}
JOB_TIMEOUT_S = 6.0


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_over_gloo(ranks):
    """Of five ranks, some wait for live ranks only; they, too, name the one that ended."""
    *others, last = run_ranks(ranks, training.dies, ranks - 1, BY_GLOO, patience_s=NEVER_S)
    assert last is None
    for error, message, seconds in others:
        assert error == "SummationStalledError"
        assert f"worker {ranks - 1} did not answer; see whether it is running" in message
        assert seconds < NEVER_S / 2


def test_over_gloo_with_the_store_that_rank_0_keeps():
    first, *others = run_ranks(3, training.dies_with_the_store, 3, BY_GLOO, patience_s=NEVER_S)
    assert first is None
    for error, message, seconds in others:
        assert error == "SummationStalledError"
        assert "the store is gone, and with it rank 0, which keeps it; see why rank 0 ended" in message
        assert "did not answer" not in message
        assert seconds < NEVER_S / 2


def test_over_a_switch():
    """A switch does not report the end of a rank, so the others wait for the job's timeout."""
    with Star(3, timeout_s=JOB_TIMEOUT_S) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        *others, last = run_ranks(3, training.dies, 2, {"over": "switch"}, environments=seats)
    assert last is None
    for error, message, seconds in others:
        assert error == "StalledError"
        assert f"for {JOB_TIMEOUT_S:.1f} s: still waiting for worker 2;" in message
        assert seconds < NEVER_S
