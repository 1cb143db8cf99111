"""Reduce-scatter, all-gather and broadcast of the process group, and FSDP2 by them, over a switch."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import sums_of_floats
import torch_training as training
from served_job import Controlling, Switch
from test_further_groups import JOB
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


@pytest.mark.system
@pytest.mark.parametrize("dims", [(4,), (2, 2)], ids=["FSDP2 on 4 ranks", "HSDP of 2 by 2"])
def test_every_sum_of_300_sharded_steps_is_exact(tmp_path, dims: tuple[int, ...]):
    """With 2 % of the packets lost, by an independent computation of every 10th sum."""
    with closing(Switch("--loss", "0.02", "--seed", "5", ports=17)) as switch:
        described = JOB.format(p4runtime=switch.p4runtime, spare=list(range(6, 18)))
        with closing(Controlling(tmp_path, described, switch)) as controller:
            environment = {"PEELSUM_JOB": "//{}:{}".format(*controller.address)}
            told = run_ranks(
                4, training.recorded_in_shards, 300, dims, environments=[environment] * 4, backend="peelsum"
            )
    jobs: dict[int, dict[int, list]] = {}
    for kind, job, worker, *floats in (call for rank in told for call in rank):
        jobs.setdefault(job, {}).setdefault(worker, []).append((kind, *floats))
    assert len(jobs) == (1 if dims == (4,) else 4)
    checked = 0
    for workers in jobs.values():
        n = len(workers)
        for calls in zip(*(workers[worker] for worker in range(n)), strict=True):
            (kind,) = {call[0] for call in calls}
            divisor = n if kind.endswith("AVG") else 1
            for mine, (_, _, result) in enumerate(calls):
                pieces = n if kind.startswith("scattered") else 1
                given = [np.split(call[1], pieces)[mine % pieces] for call in calls]
                if any(one.any() for one in given):
                    expected = sums_of_floats.expected(given, 32, divisor).values
                    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))
                    checked += 1
    assert checked > 100
