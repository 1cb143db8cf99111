"""Sums over a process group by messages between its ranks, instead of the backend's ring.

Theory of operation. For few words, each rank combines a share of them, which it gets from all others, and
sends them the result. That takes 2 (n - 1) messages from each rank; a ring sends several times as many, which
are smaller. Very few words go to all ranks in whole, in n - 1 messages, and each rank combines them all. Over
links whose latency counts more than their rate, ranks combine the whole words along binomial trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from peelsum.summation import Op, Part, Words

#: Above this number of words, gloo's ring takes less processor time.
MOST_WORDS = 2**18
#: Up to this number, all words go to all ranks.
FEW_WORDS = 2**12
#: all_to_all(received, sent): row r of `sent` goes to worker r, and row r of `received` comes from there.
AllToAll = Callable[[Words, Words], None]


class DirectSum:
    """Sums over `workers` workers, for one of them, by `all_to_all` of uint32[workers, k]."""

    def __init__(self, workers: int, worker_id: int, all_to_all: AllToAll) -> None:
        self._workers, self._worker_id, self._all_to_all = workers, worker_id, all_to_all
        self._memory = np.empty((2, 0), np.uint32)

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Return each part's result, as `Summation.sum_words` does without the checks."""
        ends = list(accumulate((part.words.size for part in parts), initial=0))
        total, everything = ends[-1], ends[-1] <= FEW_WORDS
        share = total if everything else -(-total // self._workers)
        sent, received = self._rows(share)
        if everything:
            sent[:] = np.concatenate([part.words for part in parts])
        else:
            flat = sent.reshape(-1)
            for part, (a, b) in zip(parts, pairwise(ends), strict=True):
                flat[a:b] = part.words
            flat[total:] = 0
        self._all_to_all(received, sent)
        spans = [(a, b, part.op) for part, (a, b) in zip(parts, pairwise(ends), strict=True)]
        result = combined(received, spans, 0 if everything else self._worker_id * share)
        if not everything:
            sent[:] = result
            result = np.empty((self._workers, share), np.uint32)
            self._all_to_all(result, sent)
        flat = result.reshape(-1)
        return [flat[a:b] for a, b in pairwise(ends)]

    def _rows(self, share: int) -> NDArray[np.uint32]:
        """Return memory for what is sent and received: uint32[2, workers, share], kept between calls."""
        size = self._workers * share
        if self._memory.shape[1] < size:
            self._memory = np.empty((2, size), np.uint32)
        return self._memory[:, :size].reshape(2, self._workers, share)


def combined(rows: Words, spans: Sequence[tuple[int, int, Op]], begin: int) -> Words:
    """Combine rows[n, k] of a share of words that begins at `begin`, by the op of the span (a, b, op)."""
    share = rows.shape[1]
    out = np.zeros(share, np.uint32)
    for a, b, op in spans:
        first, last = max(a - begin, 0), min(b - begin, share)
        if first < last:
            combine = np.bitwise_or if op == "or" else np.add
            combine.reduce(rows[:, first:last], axis=0, dtype=np.uint32, out=out[first:last])
    return out


def together(parts: Sequence[Part]) -> list[list[Part]]:
    """Divide parts into those that go together: few words in all, and none after one that has a check.

    After a failed check the workers may have parts of different lengths, and must not exchange them.
    """
    groups: list[list[Part]] = []
    words = 0
    for part in parts:
        words += part.words.size
        if not groups or groups[-1][-1].check is not None or words > MOST_WORDS:
            groups.append([])
            words = part.words.size
        groups[-1].append(part)
    return groups


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
