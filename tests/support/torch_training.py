"""What ranks do in tests of the hook: small models trained on data that each rank makes for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from peelsum.torch import SwitchAllreduceState, hook

WORDS, WIDTH = 64, 8


class Text(nn.Module):
    """An embedding, whose gradient is sparse, then dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.softmax(torch.tanh(self.hidden(self.embedding(words).mean(1))))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and what follows, by rank and step."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    words = torch.randint(0, WORDS, (4, 5), generator=generator)
    return words[:, :4], words[:, 4]


def model(**options: Any) -> DistributedDataParallel:
    """The same at first on all ranks, in several buckets."""
    torch.manual_seed(7)
    return DistributedDataParallel(Text(), bucket_cap_mb=0.002, **options)


def step_loss(ddp: nn.Module, rank: int, step: int) -> torch.Tensor:
    words, following = batch(rank, step)
    return nn.functional.cross_entropy(ddp(words), following)


def parameters(module: nn.Module) -> np.ndarray:
    """All parameters, flat: float32[n]."""
    return np.concatenate([one.detach().numpy().ravel() for one in module.parameters()])


def train(
    rank: int,
    steps: int,
    state: SwitchAllreduceState | None,
    *,
    wrapped: Callable[..., Any] = hook,
    **options: Any,
) -> np.ndarray:
    """Parameters after `steps` of SGD, their gradients averaged by the hook, or by DDP without a state."""
    ddp = model(**options)
    if state is not None:
        ddp.register_comm_hook(state, wrapped)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        step_loss(ddp, rank, step).backward()
        optimizer.step()
    return parameters(ddp)


def by_hook(rank: int, steps: int, settings: dict[str, Any], options: dict[str, Any]) -> np.ndarray:
    """`train` with a state of these settings."""
    return train(rank, steps, SwitchAllreduceState(**settings), **options)


def by_ddp(rank: int, steps: int) -> np.ndarray:
    """`train` with DDP's own all_reduce of floats."""
    return train(rank, steps, None)
