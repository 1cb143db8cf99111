"""What ranks do in tests of the four models: train one of them, by one way to sum."""

from __future__ import annotations

from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from peelsum.torch import SwitchAllreduceState, hook
from peelsum.training import ModelName, make_task


def train(rank: int, steps: int, model: ModelName, over: str | None) -> tuple[np.ndarray, np.ndarray]:
    """All parameters, float32, before and after so many steps; `over` None is DDP's own sum."""
    task = make_task(model)
    before = _flat(task.model)
    torch.manual_seed(rank)
    network = DistributedDataParallel(task.model)
    state = None
    if over is not None:
        state = SwitchAllreduceState(over=over, names=task.model.named_parameters())
        network.register_comm_hook(state, hook)
    # Not the task's Adam: where a gradient should be zero, as of keys' biases, it makes a step of rounding.
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05)
    for batch in islice(task.batches(rank, dist.get_world_size(), 0), steps):
        optimizer.zero_grad()
        network(*batch).backward()
        optimizer.step()
    if state is not None:
        state.close()
    return before, _flat(task.model)


def _flat(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy().copy()
