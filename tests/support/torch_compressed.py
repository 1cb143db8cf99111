"""Ranks that train with compressors, their books closed after every step."""

from __future__ import annotations

import io
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from compressors import Books, fractions
from torch_training import model, parameters, step_loss

from peelsum.compress import CompressedSum, Compressor
from peelsum.torch import SwitchAllreduceState, hook
from peelsum.torch.backends import connect


class Watched(CompressedSum):
    """A compressed sum that keeps the last result of every parameter."""

    results: dict[str, Any] = {}  # noqa: RUF012  # one for all sums of the process

    def sum(self, tensors: Any, step: int | None = None) -> Any:
        result = super().sum(tensors, step)
        self.results |= result
        return result


def audited(rank: int, compressor: Compressor, over: str, steps: int, restart_at: int) -> dict[str, Any]:
    """Train with error feedback; at `restart_at` another state and module go on from a checkpoint.

    After every step, averages are compared with those of what all ranks sent.
    """
    with (
        patch("peelsum.torch.settings.Memory", Books),
        patch("peelsum.torch.settings.CompressedSum", Watched),
    ):
        ddp, state = _hooked(compressor, over)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(steps):
            if step == restart_at:
                ddp, state = _restored(ddp, state, compressor, over)
                optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            optimizer.zero_grad()
            step_loss(ddp, rank, step).backward()
            if step != restart_at - 1:  # after a restore, books begin with what was kept
                _check(ddp, state, balance=step < restart_at)
            optimizer.step()
        outcome = {"parameters": parameters(ddp), "stats": state.stats()}
        state.close()
    return outcome


def _check(ddp: torch.nn.Module, state: SwitchAllreduceState, *, balance: bool) -> None:
    if balance:
        state._memory.balance()
    own = {name: fractions(one.sent, one.elements) for name, one in Watched.results.items()}
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, own)
    for name, parameter in ddp.module.named_parameters():
        columns = zip(*(one[name] for one in everybody), strict=True)
        expected = [np.float32(float(sum(column)) / len(everybody)) for column in columns]
        np.testing.assert_array_equal(parameter.grad.numpy().ravel(), np.array(expected), name)


def _hooked(compressor: Compressor, over: str) -> tuple[Any, SwitchAllreduceState]:
    ddp = model()
    names = ddp.module.named_parameters()
    state = SwitchAllreduceState(over=over, names=names, compressor=compressor, error_feedback=True)
    ddp.register_comm_hook(state, hook)
    return ddp, state


def _restored(ddp: Any, state: SwitchAllreduceState, *settings: Any) -> tuple[Any, SwitchAllreduceState]:
    file = io.BytesIO()
    torch.save({"weights": ddp.state_dict(), "state": state.state_dict()}, file)
    state.close()
    values = torch.load(io.BytesIO(file.getvalue()))
    ddp, state = _hooked(*settings)
    ddp.load_state_dict(values["weights"])
    state.load_state_dict(values["state"])
    return ddp, state


def not_finite(rank: int, compressor: Compressor, over: str) -> list[list[bool]]:
    """Train three steps, the second with an infinite gradient on rank 1; return which averages are finite."""
    ddp = model()
    state = SwitchAllreduceState(over=over, compressor=compressor)
    ddp.register_comm_hook(state, hook)
    outcome = []
    for step in range(3):
        ddp.zero_grad()
        loss = step_loss(ddp, rank, step)
        (loss * float("inf") if (rank, step) == (1, 1) else loss).backward()
        outcome.append([bool(one.grad.isfinite().all()) for one in ddp.parameters()])
    state.close()
    return outcome


def sums(rank: int, compressors: list[Compressor], over: str) -> list[list[np.ndarray]]:
    """The averages of four random tensors by each compressor, of two steps over one connection."""
    outcome, backend = [], connect(over, None, None)
    for number, compressor in enumerate(compressors):
        generator = torch.Generator().manual_seed(100 * number + rank)
        module = torch.nn.ParameterList(
            [torch.zeros(9, 8), torch.zeros(33), torch.zeros(1), torch.zeros(2, 3)]
        )
        state = SwitchAllreduceState(over=backend, names=module.named_parameters(), compressor=compressor)
        for _ in range(2):
            flat = torch.randn(sum(one.numel() for one in module), generator=generator)
            result = state.submit(flat, list(module)).wait()
            state.end_step()
            outcome.append(result.numpy().copy())
        state.close()
    backend.close()
    return outcome
