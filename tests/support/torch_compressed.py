"""Ranks that train with compressors, their books closed after every step."""

import io
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
import torch_training as training
from compressors import Books, sent_in_units
from torch_training import parameters, step_loss

from peelsum.compress import CompressedSum
from peelsum.torch import SwitchAllreduceState
from peelsum.torch.backends import connect


class Watched(CompressedSum):
    """A compressed sum that keeps the last result of every parameter."""

    results: dict[str, Any] = {}  # noqa: RUF012  # one for all sums of the process

    def sum(self, tensors, step=None):
        result = super().sum(tensors, step)
        self.results |= result
        return result


def hooked(over, **settings):
    """A small model in several buckets, with the hook, and its optimizer."""
    ddp, state = training.hooked(over=over, **settings)
    return ddp, state, torch.optim.SGD(ddp.parameters(), lr=0.1)


def audited(rank, over, settings, steps, restart_at):
    """Train with error feedback; at `restart_at` another state and module go on from a checkpoint.

    After every step, averages are compared with those of what all ranks sent. The buckets are rebuilt after
    the first step. Returns parameters, statistics, and the plans of a strategy.
    """
    plans = []
    with (
        patch("peelsum.compress.reducers.Memory", Books),
        patch("peelsum.compress.reducers.CompressedSum", Watched),
    ):
        ddp, state, optimizer = hooked(over, **settings)
        for step in range(steps):
            if step == restart_at:
                ddp, state, optimizer = _restored(ddp, state, over, **settings)
            optimizer.zero_grad()
            step_loss(ddp, rank, step).backward()
            _check(ddp, state, balance=step < restart_at)  # after a restore, books begin with what was kept
            stats = state.stats()
            plans.append(stats.strategy and stats.strategy.plan)
            optimizer.step()
        state.close()
    return {"parameters": parameters(ddp), "stats": stats, "plans": plans}


def _check(ddp, state, *, balance):
    if balance:
        state._reducer.memory.balance()
    own = {name: sent_in_units(one.sent, one.elements) for name, one in Watched.results.items()}
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, own)
    for name, parameter in ddp.module.named_parameters():
        columns = zip(*(one[name] for one in everybody), strict=True)
        expected = [np.float32(sum(column) / 2**256 / len(everybody)) for column in columns]
        np.testing.assert_array_equal(parameter.grad.numpy().ravel(), np.array(expected), name)


def _restored(ddp, state, over, **settings):
    """Return another model, state and optimizer, from saved values."""
    file = io.BytesIO()
    torch.save({"weights": ddp.state_dict(), "state": state.state_dict()}, file)
    state.close()
    values = torch.load(io.BytesIO(file.getvalue()))
    ddp, state, optimizer = hooked(over, **settings)
    ddp.load_state_dict(values["weights"])
    state.load_state_dict(values["state"])
    return ddp, state, optimizer


def sums(rank, compressors, over):
    """The averages of four random tensors by each compressor, of two steps over one connection."""
    outcome, backend = [], connect(over, None, None)
    for number, compressor in enumerate(compressors):
        generator = torch.Generator().manual_seed(100 * number + rank)
        sizes = ((9, 8), (33,), (1,), (2, 3))
        module = torch.nn.ParameterList(map(torch.zeros, sizes))
        state = SwitchAllreduceState(over=backend, names=module.named_parameters(), compressor=compressor)
        for _ in range(2):
            flat = torch.randn(sum(one.numel() for one in module), generator=generator)
            result = state.submit(flat, list(module)).wait()
            state.end_step()
            outcome.append(result.numpy().copy())
        state.close()
    backend.close()
    return outcome
