"""The ranks' part in tests of sparse gradients: tables of which a batch touches a few rows."""

import runpy
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import error_of

from peelsum.torch import SwitchAllreduceState, TopK, hook

ROWS, WIDTH = (10_000, 300, 40), 16


class Clicks(nn.Module):
    """Three sparse tables, summed per sample, and a dense layer."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        bags = [nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True, dtype=dtype) for rows in ROWS[:2]]
        self.bags = nn.ModuleList(bags)
        self.table = nn.Embedding(ROWS[2], WIDTH, sparse=True, dtype=dtype)
        self.top = nn.Linear(3 * WIDTH, 1, dtype=dtype)

    def forward(self, clicks):
        found = [bag(clicks[:, :2] % rows) for bag, rows in zip(self.bags, ROWS, strict=False)]
        joined = torch.cat([*found, self.table(clicks[:, 2] % ROWS[2])], 1)
        return self.top(joined).sigmoid().square().mean()


def clicks(rank, step):
    """A batch, in which some rows are popular."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return (ROWS[0] * torch.rand((24, 3), generator=generator) ** 4).long()


def trained(rank, settings, steps, **options):
    """Parameters after some steps of SparseAdam and SGD, gradients before and after the sum, and statistics.

    settings: None leaves the hook out. options: DDP's.
    """
    torch.manual_seed(7)
    module = Clicks()
    ddp = DistributedDataParallel(module, **options)
    state, seen = None, []
    if settings is not None:
        state = SwitchAllreduceState(names=module.named_parameters(), **settings)

        def watching(state, bucket):
            if bucket.buffer().is_sparse:
                seen.append([_in_rows(bucket.buffer().coalesce()), bucket.parameters()[0]])
            return hook(state, bucket)

        ddp.register_comm_hook(state, watching)
    tables = [one.weight for one in (*module.bags, module.table)]
    optimizers = [torch.optim.SparseAdam(tables, lr=0.01), torch.optim.SGD(module.top.parameters(), lr=0.5)]
    pairs = []
    for step in range(steps):
        seen.clear()
        ddp(clicks(rank, step)).backward()
        pairs += [(before, _in_rows(parameter.grad)) for before, parameter in seen]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    stats = None if state is None else state.stats()
    return [one.detach().numpy() for one in module.parameters()], pairs, stats


def by_options(rank):
    """Parameters after some steps, with options of DDP and of the state that concern dense gradients only."""
    made = []
    for options, settings in [
        ({}, {}),
        ({"static_graph": True}, {}),
        ({"gradient_as_bucket_view": True, "find_unused_parameters": True}, {}),
        ({}, {"compressor": TopK(1.0)}),
    ]:
        made.append(trained(rank, {"over": "gloo", **settings}, 3, **options)[0])
    return made


def _in_rows(gradient):
    assert gradient.is_coalesced()
    return gradient.indices()[0].numpy().copy(), gradient.values().numpy().copy()


def averaged(rank):
    """Averages without DDP."""
    torch.manual_seed(7)
    module, state = Clicks(), SwitchAllreduceState(over="gloo")
    module(clicks(rank, 0)).backward()
    state.average_gradients(module.parameters())
    gradients = [one.grad for one in module.parameters()]
    return [_in_rows(one) if one.is_sparse else (np.zeros(0), one.numpy()) for one in gradients]


def in_float64(rank):
    """The error of a table of a type that hooks do not take."""
    ddp = DistributedDataParallel(Clicks(torch.float64))
    ddp.register_comm_hook(SwitchAllreduceState(over="gloo"), hook)
    return error_of(ddp(clicks(rank, 0)).backward)


def example(rank):
    """Losses and parameters of the example, and how many bytes its sums saved."""
    path = Path(__file__).parents[2] / "examples" / "train_dlrm.py"
    losses, model, stats = runpy.run_path(str(path))["train"]([100_000, 50], 20, 64)
    return losses, [one.detach().numpy() for one in model.parameters()], stats.saving
