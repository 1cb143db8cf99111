"""A training task, and the error for data that it cannot use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn


class TrainingDataError(ValueError):
    """Data that are missing or in the wrong format. The message names the path, the reason and the remedy."""


#: The arguments of one call of the model.
Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Task:
    """A model and everything needed to train it, the same on every worker."""

    name: str
    """The model's name."""
    data: str
    """Description of the data."""
    model: nn.Module
    """Returns the mean loss of a batch, so that a wrapper such as DDP covers the whole computation."""
    batches: Callable[[int, int, int], Iterator[Batch]]
    """batches(rank, workers, seed) yields batches of that worker's share of the data, without end.

    Equal arguments give equal batches.
    """
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    """Returns the optimizer of the model's parameters."""


def require(items: str, count: int, workers: int) -> None:
    """Raise TrainingDataError, which names the `items`, unless there is one for each worker."""
    if count < workers:
        raise TrainingDataError(f"{items}: {count} are too few for {workers} workers; pass {workers} or more")
