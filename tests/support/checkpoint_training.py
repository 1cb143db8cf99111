"""The ranks' part in tests of the examples' checkpoints: a small model with a sparsifier."""

import sys
from pathlib import Path

import torch
import torch_training as training

from peelsum.torch import HookConfigError, SwitchAllreduceState, TopK, hook

_EXAMPLES = Path(__file__).parents[2] / "examples"


def with_hook(rank, steps, folder, forget=False):
    """Steps that a checkpoint had done, and parameters, float32, after `steps` in all, over gloo.

    forget: go on with a new hook's state, not with the one that was kept.
    """
    sys.path.insert(0, str(_EXAMPLES))
    from checkpoints import Checkpoints

    ddp = training.model()
    names = ddp.module.named_parameters()
    state = SwitchAllreduceState(over="gloo", names=names, compressor=TopK(0.1, momentum=0.5))
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    checkpoints = Checkpoints(folder, rank, ddp.module, optimizer, state)
    if forget:
        state.load_state_dict = lambda values: None
    begin = checkpoints.restore()
    for step in range(begin, steps):
        optimizer.zero_grad()
        training.step_loss(ddp, rank, step).backward()
        optimizer.step()
        checkpoints.save(step + 1)
    state.close()
    return begin, training.parameters(ddp)


def refusal(rank, steps, folder):
    """The error that keeps the training from going on."""
    try:
        with_hook(rank, steps, folder)
    except HookConfigError as error:
        return str(error)
