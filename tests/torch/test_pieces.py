"""Reduce-scatter, all-gather and broadcast of the process group, and FSDP2 by them, over a switch."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch_shards as shards
from patience import until
from served_job import served_to_four
from torch._C._distributed_c10d import AllgatherOptions
from torch_ranks import run_at_switch, run_ranks, several

pytestmark = pytest.mark.usefixtures("forked_children")

#: How long sums wait for a rank, in the tests in which one is killed.
LIMIT_S = 20.0


@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=pytest.mark.slow), 0.02])
def test_every_form_comes_to_what_gloo_makes_of_it(loss):
    ours, star = run_at_switch(3, shards.in_pieces, star={"loss": loss, "seed": 3}, backend="peelsum")
    gloos = run_ranks(3, shards.in_pieces)
    for mine, gloo in zip(ours, gloos, strict=True):
        for name, value in gloo.items():
            assert mine[name] == value, name
    assert star.report.server["replies"] > 20
    assert star.report.server["chunks_at_server"] > 20


def test_fsdp_and_zero_train_through_the_switch():
    """FSDP by the bits the same in two runs, with losses and without; both nearly as by gloo.

    ZeRO-1 sums by DDP and broadcasts what each rank has updated.
    """
    works = [(shards.sharded_by_torch, 3, (2,)), (shards.by_zero, 3)]
    ours, star = run_at_switch(2, several, works, backend="peelsum")
    again, _ = run_at_switch(2, several, works[:1], star={"loss": 0.02, "seed": 3}, backend="peelsum")
    theirs = run_ranks(2, several, works)
    for mine, repeated, others in zip(ours, again, theirs, strict=True):
        np.testing.assert_array_equal(mine[0], repeated[0])
        np.testing.assert_array_equal(mine[1], ours[0][1])
        for values, other, tolerance in zip(mine, others, (1e-6, 1e-4), strict=True):
            np.testing.assert_allclose(values, other, rtol=0, atol=tolerance)
    assert star.report.server["chunks_at_server"] > 0


@pytest.mark.system
@pytest.mark.parametrize("dims", [(4,), (2, 2)], ids=["FSDP2 on 4 ranks", "HSDP of 2 by 2"])
def test_every_sum_of_300_sharded_steps_is_exact(tmp_path, dims):
    """With 2 % of the packets lost, by an independent computation of every 10th sum."""
    with served_to_four(tmp_path, "--loss", "0.02", "--seed", "5") as (_, _, environment):
        options = {"environments": [environment] * 4, "backend": "peelsum"}
        told = run_ranks(4, shards.recorded_in_shards, 300, dims, **options)
    checked = shards.check_recorded(told)
    assert len(checked) == (1 if dims == (4,) else 4)
    assert min(checked.values()) >= 30


@pytest.mark.system
@pytest.mark.parametrize("dims", [(4,), (2, 2)], ids=["FSDP2 on 4 ranks", "HSDP of 2 by 2"])
def test_when_a_rank_is_killed_every_other_gets_one_error_in_time(tmp_path, dims):
    """It names the rank, or says that another has left for its error. No group's job or server is left."""
    with served_to_four(tmp_path, timeout_s=LIMIT_S) as (switch, controller, environment):
        options = {"environments": [environment] * 4, "backend": "peelsum", "timeout_s": LIMIT_S}
        *others, killed = run_ranks(4, shards.dies_in_shards, dims, **options)
        # The described job's server stays, and one that is loaded for a further group.
        until(lambda: {number for number, _ in switch.jobs} <= {255} and len(controller.started) == 2)
    assert killed is None
    lost = 3 if dims == (4,) else 1  # its number in the groups of the others
    for error, message, seconds in others:
        assert error == "WorkerLeftError" or message.partition(": ")[2].startswith(f"rank {lost} (process ")
        assert seconds < LIMIT_S
    assert sum(error == "RankLostError" for error, _, _ in others) >= 2


#: Of sizes that take as many packets, so that nothing else would notice.
UNEQUAL = {
    "reduce": lambda group, more: group.allreduce([torch.ones(5 + more)]),
    "of integers": lambda group, more: group.allreduce([torch.ones(5 + more, dtype=torch.int32)]),
    "of int64": lambda group, more: reduced(
        group, torch.ones(5 + more, dtype=torch.int64), dist.ReduceOp.AVG
    ),
    "of bits": lambda group, more: reduced(group, torch.ones(5 + more, dtype=torch.int8), dist.ReduceOp.BAND),
    "reduce_scatter": lambda group, more: group._reduce_scatter_base(
        torch.zeros(2000 + more), torch.ones(3 * (2000 + more)), dist.ReduceScatterOptions()
    ),
    "all_gather": lambda group, more: group._allgather_base(
        torch.zeros(3 * (2000 + more)), torch.ones(2000 + more), AllgatherOptions()
    ),
}


def reduced(group, tensor, op):
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return group.allreduce([tensor], options)


@pytest.mark.parametrize("call", UNEQUAL)
def test_ranks_with_tensors_of_other_sizes_get_an_error(ranks, call):
    with pytest.raises(Exception, match=r"one size|other lengths"):
        ranks(lambda group: UNEQUAL[call](group, 2 * group.rank()).wait())
