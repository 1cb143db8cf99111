"""Reduce-scatter, all-gather and broadcast of the process group, and FSDP2 by them, over a switch."""

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


def over_a_switch(ranks: int, work, *arguments, loss: float = 0.0):
    """Return every rank's outcome, and the star's report."""
    with Star(ranks, loss=loss, seed=3) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        outcomes = run_ranks(ranks, work, *arguments, environments=seats, backend="peelsum")
    assert star.report is not None
    return outcomes, star.report


@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_every_form_comes_to_what_gloo_makes_of_it(loss: float):
    ours, report = over_a_switch(3, training.in_pieces, loss=loss)
    gloos = run_ranks(3, training.in_pieces)
    for mine, gloo in zip(ours, gloos, strict=True):
        for name, value in gloo.items():
            assert mine[name] == value, name
    assert report.server["replies"] > 20
    assert report.server["chunks_at_server"] > 20


def test_fsdp_trains_through_the_switch():
    """By the bits the same in two runs, with losses and without, and nearly as by gloo."""
    ours, report = over_a_switch(4, training.sharded_by_torch, 3, (4,))
    again, _ = over_a_switch(4, training.sharded_by_torch, 3, (4,), loss=0.02)
    theirs = run_ranks(4, training.sharded_by_torch, 3, (4,))
    for mine, repeated, other in zip(ours, again, theirs, strict=True):
        for left, same, right in zip(mine, repeated, other, strict=True):
            np.testing.assert_array_equal(left, same)
            np.testing.assert_allclose(left, right, rtol=0, atol=1e-6)
    assert report.server["chunks_at_server"] > 0
