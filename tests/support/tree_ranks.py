"""The ranks of the tests of `all_reduce_tree`."""

from __future__ import annotations

import torch
import torch.distributed as dist

from peelsum.torch.reductions import all_reduce_tree


def sums(rank: int, elements: int) -> tuple[list[int], list[int], list[int]]:
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


def _wrapped(last: int, elements: int) -> torch.Tensor:
    """Return the first element of the sum of the first and the last rank's tensors."""
    both = [
        torch.randint(-(2**31), 2**31, (elements,), generator=torch.Generator().manual_seed(rank))[0]
        for rank in (0, last)
    ]
    return (both[0] + both[1]).to(torch.int32)
