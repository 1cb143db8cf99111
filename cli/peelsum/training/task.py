"""A training task, and the errors of data that it cannot use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn


class TrainingDataError(ValueError):
    """Data that are missing or in the wrong format. The message names path, fault and what to pass."""


#: The arguments of one call of the model.
Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Task:
    """A model and everything needed to train it, the same on every worker."""

    name: str
    """The model's name."""
    data: str
    """Description of the data, for humans."""
    model: nn.Module
    """Returns the mean loss of a batch; a wrapper such as DDP then covers the whole computation."""
    batches: Callable[[int, int, int], Iterator[Batch]]
    """batches(rank, workers, seed) yields batches of that worker's share of the data, endlessly.

    Equal arguments give equal batches.
    """
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    """Returns the optimizer of the model's parameters."""


def require(what: str, count: int, workers: int) -> None:
    """Raise TrainingDataError unless there is one for each worker."""
    if count < workers:
        raise TrainingDataError(f"{what}: {count} are too few for {workers} workers; pass {workers} or more")
