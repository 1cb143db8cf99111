"""The `peelsum` backend of torch.distributed, over a switch, gives gloo's results for the same calls."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_training as training
from torch_ranks import run_ranks

from peelsum.topology import Star

pytestmark = pytest.mark.usefixtures("forked_children")


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


def test_a_monitored_barrier_names_who_is_late():
    with Star(3) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        first, *_, last = run_ranks(3, training.monitored, environments=seats, backend="cpu:peelsum")
    assert all("Rank 2 failed to pass monitoredBarrier in 1000 ms" in said for said in first[:2]), first
    assert (first[2], last) == ([3.0], ["", "", [3.0]])


def test_functional_collectives_also_in_compiled_code_and_dtensor():
    with Star(2) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        outcomes = run_ranks(2, training.functional, environments=seats, backend="cpu:peelsum,cuda:peelsum")
    for rank, told in enumerate(outcomes):
        assert told == {
            "sum": [1.0, 3.0, 5.0, 7.0],
            "average": [0.5, 1.5, 2.5, 3.5],
            "several": [[1.0, 3.0, 5.0, 7.0], [2.0, 6.0, 10.0, 14.0]],
            "broadcast": [1.0, 2.0, 3.0, 4.0],
            "scattered": [[0.5, 1.5], [2.5, 3.5]][rank],
            "exchanged": [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 3.0, 4.0]][rank],
            "compiled": [3.0, 7.0, 11.0, 15.0],
            "dtensor": 28.0,
            "coalesced": [[1.0, 3.0, 5.0, 7.0], [2.0, 2.0]],
        }


def test_groups_beside_the_one_at_the_switch():
    """A worker has one seat: the other groups' calls go over gloo, and its own still over the switch."""
    with Star(3) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        outcomes = run_ranks(3, training.in_groups, environments=seats, backend="cpu:peelsum")
    expected = [([0, 1], [1.0, 1.0], 0), ([1, 2], [3.0, 3.0], 1), ([0, 1, 2], [3.0, 3.0], 0)]
    for rank, outcome in enumerate(outcomes):
        assert outcome == [*(one for one in expected if rank in one[0]), [3.0, 3.0]]
    assert star.report is not None
    assert star.report.server["chunks_in_switch"] > 0
