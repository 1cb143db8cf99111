"""The ranks of the tests of sums over a process group."""

import time

import numpy as np
import torch
import torch.distributed as dist
from patience import PATIENCE_S

from peelsum.allreduce import Part
from peelsum.torch.process_group_summation import ProcessGroupSummation, all_reduce_tree

#: How long the slow rank takes until it makes the group again.
LATE_S = 1.0


def sums_again(rank, members, slow):
    """Return the sums of two groups of `members`, one after the other; rank `slow` makes the second late."""
    group, sums = dist.new_group(list(members)), []
    if rank in members:
        for number in range(2):
            if number and rank == slow:
                time.sleep(LATE_S)
            summation = ProcessGroupSummation("gloo", group, timeout_s=PATIENCE_S)
            words = np.arange(4, dtype=np.uint32) + np.uint32(10**number * rank)
            sums.append(summation.sum_words([Part(words, "add")])[0].tolist())
            summation.close()
    dist.barrier()
    return sums


def sums_in_two_worlds(rank, folder):
    """Return the sums of ranks 0 and 1 in two worlds, in the second of which the processes' ranks differ."""
    sums = []
    for world in range(2):
        dist.destroy_process_group()
        turned = (rank + world) % 3
        dist.init_process_group("gloo", f"file://{folder}/{world}", rank=turned, world_size=3)
        group = dist.new_group([0, 1])
        if turned < 2:
            summation = ProcessGroupSummation("gloo", group, timeout_s=PATIENCE_S)
            sums.append(summation.sum_words([Part(np.full(2, turned + 1, np.uint32), "add")])[0].tolist())
            summation.close()
        dist.barrier()
    return sums


def sums_by_tree(rank, elements):
    """Return this rank's tensor, its sum by a tree, and its sum by the backend's all_reduce."""
    own = torch.randint(-(2**31), 2**31, (elements,), generator=torch.Generator().manual_seed(rank))
    own = own.to(torch.int32)
    tree, ring = own.clone(), own.clone()
    all_reduce_tree(tree)
    dist.all_reduce(ring)
    some, all_of_them = own.clone(), own.clone()
    all_reduce_tree(some, op="or")
    dist.all_reduce(all_of_them, dist.ReduceOp.BOR)
    assert torch.equal(some, all_of_them)
    pair = dist.new_group([0, dist.get_world_size() - 1])
    if rank in (0, dist.get_world_size() - 1):
        ends = own.clone()
        all_reduce_tree(ends, pair)
        assert ends[0] == _wrapped(dist.get_world_size() - 1, elements)
    return own.tolist(), tree.tolist(), ring.tolist()


def _wrapped(last, elements):
    """Return the first element of the sum of the first and the last rank's tensors."""
    draws = [torch.Generator().manual_seed(rank) for rank in (0, last)]
    both = [torch.randint(-(2**31), 2**31, (elements,), generator=draw)[0] for draw in draws]
    return (both[0] + both[1]).to(torch.int32)
