"""What is trained: a model, its data, its optimizer; and how workers share the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

#: What the model is called with, but for the model itself.
Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Task:
    """A model and all that training it takes, the same on every worker.

    data: what is trained on, in words. model: called with a batch, it returns the mean loss, so that a
    wrapper like DDP sees the whole of it. batches(rank, workers, seed): that worker's batches, without end,
    of its own share of the data, the same for the same numbers. optimizer: of the model's parameters.
    """

    name: str
    data: str
    model: nn.Module
    batches: Callable[[int, int, int], Iterator[Batch]]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
