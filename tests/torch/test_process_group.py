"""The `peelsum` backend of torch.distributed: gloo's results for the same calls, over a switch; timeouts."""

import math
from datetime import timedelta
from inspect import signature

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.distributed as dist
import torch_training as training
from torch.distributed import HashStore
from torch_ranks import run_at_switch, run_ranks

from peelsum.torch import CallTimeoutError, HookConfigError, SwitchOptions, SwitchProcessGroup, process_group

pytestmark = pytest.mark.usefixtures("forked_children")

BACKEND = "cpu:peelsum"
MINUTES_S = 300.0


def at_a_switch(ranks, work, *arguments, **options):
    """What `work` returns on each rank, over a switch of their own."""
    return run_at_switch(ranks, work, *arguments, backend=BACKEND, **options)[0]


def test_calls_come_to_what_gloo_makes_of_them():
    ours, star = run_at_switch(2, training.collectives, backend=BACKEND)
    gloos = run_ranks(2, training.collectives)
    assert star.report.server["chunks_in_switch"] > 20
    for mine, gloo in zip(ours, gloos, strict=True):
        assert (mine.pop("backend"), gloo.pop("backend")) == ("cpu:peelsum", "gloo")
        np.testing.assert_allclose(mine.pop("trained"), gloo.pop("trained"), rtol=0, atol=1e-6)
        assert mine == gloo


def test_a_monitored_barrier_names_who_is_late():
    first, *_, last = at_a_switch(3, training.monitored)
    assert all("Rank 2 failed to pass monitoredBarrier in 1000 ms" in said for said in first[:2]), first
    assert (first[2], last) == ([3.0], ["", "", [3.0]])


def test_functional_collectives_also_in_compiled_code_and_dtensor():
    outcomes, _ = run_at_switch(2, training.functional, backend="cpu:peelsum,cuda:peelsum")
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
    outcomes, star = run_at_switch(3, training.in_groups, backend=BACKEND)
    expected = [([0, 1], [1.0, 1.0], 0), ([1, 2], [3.0, 3.0], 1), ([0, 1, 2], [3.0, 3.0], 0)]
    for rank, outcome in enumerate(outcomes):
        assert outcome == [*(one for one in expected if rank in one[0]), [3.0, 3.0]]
    assert star.report.server["chunks_in_switch"] > 0


@pytest.mark.parametrize("most", [100, pytest.param(10**9, marks=pytest.mark.slow)])
def test_call_after_call_for_gloo_and_for_the_switch(most):
    """Of which there are many in five minutes."""
    rounds = at_a_switch(4, training.stressed, most, MINUTES_S, patience_s=2 * MINUTES_S)
    assert len(set(rounds)) == 1
    assert rounds[0] >= min(most, 400)


# timeouts


@pytest.mark.skipif(
    "timeout" not in signature(dist.barrier).parameters,
    reason="barriers of torch before 2.12 take no timeout",
)
def test_a_call_that_is_late_can_be_waited_for_again():
    said = (
        "{}: not done within its timeout of {} s; see that all ranks make the same calls, or give it a "
        "longer one"
    )
    errors = [["CallTimeoutError", said.format(*one)] for one in (("barrier", 0.2), ("allreduce", 0.1))]
    assert at_a_switch(2, training.in_their_time) == [[*errors, [2.0]]] * 2


@pytest.mark.parametrize(("given", "stall_s"), [(timedelta(seconds=8), 7.2), (timedelta(minutes=30), None)])
def test_nine_tenths_of_the_groups_timeout_are_the_switchs_unless_torchs(monkeypatch, seat, given, stall_s):
    seen = []
    monkeypatch.setattr(process_group, "connect_rank", lambda *arguments: seen.append(arguments[-1]) or seat)
    group = SwitchProcessGroup(HashStore(), 0, 1, given)
    assert seen == [stall_s]
    group.shutdown()
    assert seat.closed.is_set()


def test_calls_end_by_the_groups_timeout_as_it_is_now(seat):
    seat.go.clear()
    group = SwitchProcessGroup(HashStore(), 0, 1, timedelta(seconds=MINUTES_S))
    patient = group.barrier()
    group.set_timeout(timedelta(seconds=0.05))
    for work in (group.barrier(), group.allreduce(torch.ones(2)), group.broadcast([torch.ones(2)], root(0))):
        with pytest.raises(CallTimeoutError, match=r"not done within its timeout of 0.05 s"):
            work.wait()
        with pytest.raises(CallTimeoutError, match=r"not done within its timeout of 0.05 s"):
            work.wait(timedelta(seconds=MINUTES_S))
        assert not work.is_completed()
    with pytest.raises(CallTimeoutError, match=r"barrier: not done within its timeout of 0.01 s"):
        patient.wait(timedelta(seconds=0.01))
    seat.go.set()
    assert patient.wait()
    group.shutdown()
    assert work.wait()


def root(rank):
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return options


# options


@pytest.mark.usefixtures("seat")
def test_options_reach_the_group_through_torch():
    for options, expected in [(None, [3.2e6, np.float32(0.731)]), (SwitchOptions(0), [3.2e6, 187 / 256])]:
        dist.init_process_group(BACKEND, store=HashStore(), rank=0, world_size=1, pg_options=options)
        total = torch.tensor([3.2e6, 0.731])
        dist.all_reduce(total)
        dist.destroy_process_group()
        assert total.tolist() == expected
    with pytest.raises(HookConfigError, match="pg_options: 5 is not for this backend; give SwitchOptions"):
        dist.init_process_group(BACKEND, store=HashStore(), rank=0, world_size=1, pg_options=5)


@pytest.mark.parametrize("number", [-1, math.nan, "x"])
def test_options_that_cannot_be_meant(number):
    with pytest.raises(HookConfigError, match=r"precise_up_to: .* counts no elements; give a number from 0"):
        SwitchOptions(precise_up_to=number)
