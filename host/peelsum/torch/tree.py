"""An all_reduce by binomial trees, for links whose latency counts more than their rate."""

from __future__ import annotations

import torch
import torch.distributed as dist

from peelsum.summation import Op


def all_reduce_tree(tensor: torch.Tensor, group: dist.ProcessGroup | None = None, op: Op = "add") -> None:
    """Add or OR a contiguous tensor over the ranks of `group` (None: all), in place.

    Ranks combine theirs in pairs, pairs of pairs and so on up to the first rank, which broadcasts the result.
    That takes twice log2(n) messages of the whole tensor, where a ring takes 2 (n - 1) of an n-th. Integers
    are summed exactly, so that the bits are those of any other all_reduce.
    """
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    own, other, distance = ranks.index(dist.get_rank()), torch.empty_like(tensor), 1
    while distance < len(ranks):
        if own % (2 * distance):
            dist.send(tensor, ranks[own - distance], group)
            break
        if own + distance < len(ranks):
            dist.recv(other, ranks[own + distance], group)
            if op == "add":
                tensor += other
            else:
                tensor |= other
        distance *= 2
    dist.broadcast(tensor, ranks[0], group)
