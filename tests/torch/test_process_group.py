"""The `peelsum` backend of torch.distributed: gloo's results for the same calls, over a switch; timeouts."""

import math
from datetime import timedelta
from inspect import signature

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch_training as training
from torch.distributed import HashStore
from torch_ranks import run_at_switch, several

from peelsum.torch import CallTimeoutError, HookConfigError, SwitchOptions, SwitchProcessGroup, process_group

pytestmark = pytest.mark.usefixtures("forked_children")

BACKEND = "cpu:peelsum"
MINUTES_S = 300.0


@pytest.fixture(scope="module")
def of_two():
    """Return what each rank's calls came to, over a switch of their own."""
    works = [(training.functional,), (training.in_their_time,)]
    return run_at_switch(2, several, works, backend="cpu:peelsum,cuda:peelsum")[0]


@pytest.fixture(scope="module")
def of_three():
    """Return what each rank's calls came to, over a switch of their own, and the star."""
    return run_at_switch(3, several, [(training.monitored,), (training.in_groups,)], backend=BACKEND)


def test_a_monitored_barrier_names_who_is_late(of_three):
    (first, _), *_, (last, _) = of_three[0]
    assert all("Rank 2 failed to pass monitoredBarrier in 1000 ms" in said for said in first[:2]), first
    assert (first[2], last) == ([3.0], ["", "", [3.0]])


def test_functional_collectives_also_in_compiled_code_and_dtensor(of_two):
    for rank, (told, _) in enumerate(of_two):
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


def test_groups_beside_the_one_at_the_switch(of_three):
    """A worker has one seat: the other groups' calls go over gloo, and its own still over the switch."""
    outcomes, star = of_three
    expected = [([0, 1], [1.0, 1.0], 0), ([1, 2], [3.0, 3.0], 1), ([0, 1, 2], [3.0, 3.0], 0)]
    for rank, (_, outcome) in enumerate(outcomes):
        assert outcome == [*(one for one in expected if rank in one[0]), [3.0, 3.0]]
    assert star.report.server["chunks_in_switch"] > 0


def test_call_after_call_for_gloo_and_for_the_switch():
    assert run_at_switch(4, training.stressed, 100, backend=BACKEND)[0] == [100] * 4


# timeouts


@pytest.mark.skipif(
    "timeout" not in signature(dist.barrier).parameters,
    reason="barriers of torch before 2.12 take no timeout",
)
def test_a_call_that_is_late_can_be_waited_for_again(of_two):
    said = (
        "{}: not done within its timeout of {} s; see that all ranks make the same calls, or give it a "
        "longer one"
    )
    errors = [["CallTimeoutError", said.format(*one)] for one in (("barrier", 0.2), ("allreduce", 0.1))]
    assert [late for _, late in of_two] == [[*errors, [2.0]]] * 2


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
