"""Sums over a process group by messages between its ranks, instead of the backend's ring.

Theory of operation. Few words are divided into a share for each rank. A rank gets its share from all others,
combines it, and sends the result to them. That takes 2 (n - 1) messages from each rank, where a ring sends
several times as many, which are smaller. Very few words are sent to all ranks, in n - 1 messages, and each
rank combines them all. Where latency counts more than bandwidth, ranks combine all words along a binomial
tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.distributed as dist

from peelsum.summation import Op, Part, Words

#: Above this number of words, gloo's ring takes less processor time.
MOST_WORDS = 2**18
#: Up to this number, all words are sent to all ranks.
FEW_WORDS = 2**12
#: all_to_all(received, sent): row r of `sent` goes to worker r, and row r of `received` comes from there.
AllToAll = Callable[[Words, Words], None]


class DirectSum:
    """Sums over `workers` workers, for one of them, by `all_to_all` of uint32[workers, k]."""

    def __init__(self, workers: int, worker_id: int, all_to_all: AllToAll) -> None:
        self._workers, self._worker_id, self._all_to_all = workers, worker_id, all_to_all
        self._memory = np.empty((2, 0), np.uint32)

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Return each part's result, as `Summation.sum_words` does, but without the checks."""
        bounds = list(accumulate((part.words.size for part in parts), initial=0))
        total, whole = bounds[-1], bounds[-1] <= FEW_WORDS
        share = total if whole else -(-total // self._workers)
        size = self._workers * share
        if self._memory.shape[1] < size:
            self._memory = np.empty((2, size), np.uint32)  # which later calls use again
        sent, received = self._memory[:, :size].reshape(2, self._workers, share)
        if whole:
            sent[:] = np.concatenate([part.words for part in parts])
        else:
            flat = sent.reshape(-1)
            for part, (begin, end) in zip(parts, pairwise(bounds), strict=True):
                flat[begin:end] = part.words
            flat[total:] = 0
        self._all_to_all(received, sent)
        spans = [(begin, end, part.op) for part, (begin, end) in zip(parts, pairwise(bounds), strict=True)]
        result = combine_share(received, spans, 0 if whole else self._worker_id * share)
        if not whole:
            sent[:] = result
            result = np.empty((self._workers, share), np.uint32)
            self._all_to_all(result, sent)
        flat = result.reshape(-1)
        return [flat[begin:end] for begin, end in pairwise(bounds)]


def combine_share(rows: Words, spans: Sequence[tuple[int, int, Op]], offset: int) -> Words:
    """Return uint32[k], the workers' rows[n, k] of a share combined: each span by its op.

    The share begins at word `offset`; a span (begin, end, op) counts from the first word of all.
    """
    share = rows.shape[1]
    out = np.zeros(share, np.uint32)
    for begin, end, op in spans:
        first, stop = max(begin - offset, 0), min(end - offset, share)
        if first < stop:
            combine = np.bitwise_or if op == "or" else np.add
            combine.reduce(rows[:, first:stop], axis=0, dtype=np.uint32, out=out[first:stop])
    return out


def batches(parts: Sequence[Part]) -> list[list[Part]]:
    """Divide parts into batches of up to `MOST_WORDS` words, each for one exchange.

    A part with a check ends its batch: if the check fails, the following parts may have different lengths on
    different workers, and must not be exchanged.
    """
    divided: list[list[Part]] = []
    words = 0
    for part in parts:
        words += part.words.size
        if not divided or divided[-1][-1].check is not None or words > MOST_WORDS:
            divided.append([])
            words = part.words.size
        divided[-1].append(part)
    return divided


def all_reduce_tree(tensor: torch.Tensor, group: dist.ProcessGroup | None = None, op: Op = "add") -> None:
    """Add or OR a contiguous tensor over the ranks of `group` (None: all), in place.

    Pairs of ranks combine their tensors, then pairs of pairs, and so on up to the first rank, which
    broadcasts the result. That takes 2 log2(n) messages of the whole tensor in a row, where a ring takes
    2 (n - 1) messages of an n-th. Integers are summed exactly, so the bits are those of any other all_reduce.
    """
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    rank, received, distance = ranks.index(dist.get_rank()), torch.empty_like(tensor), 1
    while distance < len(ranks):
        if rank % (2 * distance):
            dist.send(tensor, ranks[rank - distance], group)
            break
        if rank + distance < len(ranks):
            dist.recv(received, ranks[rank + distance], group)
            if op == "add":
                tensor += received
            else:
                tensor |= received
        distance *= 2
    dist.broadcast(tensor, ranks[0], group)
