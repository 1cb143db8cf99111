"""How dense gradients are by nature: on a worker, and together on two, four, eight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from peelsum.training.task import Task


@dataclass(frozen=True)
class Density:
    """A parameter's gradient: shares of its elements that are not zero.

    worker: on one worker, the mean over all. union: on any of the first so many workers, by their number.
    """

    tensor: str
    elements: int
    worker: float
    union: dict[int, float]


def densities(task: Task, workers: Sequence[int], *, steps: int = 5, seed: int = 0) -> list[Density]:
    """By parameter, all workers' shares of the data being that of the largest of `workers`.

    Trains `task`'s model first, for so many `steps` on one worker's batches. No sum is needed: every worker
    has the same parameters.
    """
    most = max(workers)
    optimizer = task.optimizer(task.model.parameters())
    for batch in islice(task.batches(0, most, seed), steps):
        optimizer.zero_grad()
        task.model(*batch).backward()
        optimizer.step()
    named = dict(task.model.named_parameters())
    together = {name: torch.zeros_like(parameter, dtype=torch.bool) for name, parameter in named.items()}
    alone = dict.fromkeys(named, 0.0)
    union: dict[str, dict[int, float]] = {name: {} for name in named}
    for worker in range(most):
        optimizer.zero_grad()
        task.model(*next(task.batches(worker, most, seed))).backward()
        for name, parameter in named.items():
            if parameter.grad is None:
                continue
            here = parameter.grad != 0
            together[name] |= here
            alone[name] += float(here.float().mean()) / most
            if worker + 1 in workers:
                union[name][worker + 1] = float(together[name].float().mean())
    return [Density(name, named[name].numel(), alone[name], union[name]) for name in named]


def overall(found: Sequence[Density], name: str = "all") -> Density:
    """Of all parameters together."""
    elements = sum(one.elements for one in found)

    def mean(shares: Sequence[float]) -> float:
        return sum(share * one.elements for share, one in zip(shares, found, strict=True)) / elements

    counts = found[0].union
    union = {count: mean([one.union[count] for one in found]) for count in counts}
    return Density(name, elements, mean([one.worker for one in found]), union)
