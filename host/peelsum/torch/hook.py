"""The functions that PyTorch calls: the communication hooks of DDP and FSDP2."""

# No `from __future__ import annotations`: DDP inspects the annotations as objects.
import gc
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not exported, but documented
from torch.nn.parallel import DistributedDataParallel

from peelsum.torch.errors import HookConfigError
from peelsum.torch.state import SwitchAllreduceState


def hook(state: SwitchAllreduceState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients over ranks, exactly; for `ddp.register_comm_hook(state, hook)`.

    Return at once, with a future of the bucket's buffer. Gradients are float32, float16 or bfloat16, dense or
    sparse. A gradient that is not finite on some rank becomes NaN on all ranks, so a GradScaler skips the
    step everywhere.
    If the allreduce fails, e.g. because a rank died, `backward` raises the error.
    Raises HookConfigError if `state` is not a SwitchAllreduceState, or has another group than DDP.
    """
    _check_state(state)
    if state.unused:
        _check_groups(state)
    last = bucket.is_last()
    future = state.submit(bucket.buffer(), bucket.parameters(), last=last)
    if last:
        state.end_step()
    return future


def fsdp_hook(state: SwitchAllreduceState) -> Callable[[torch.Tensor], None]:
    """Return a hook for `set_all_reduce_hook` of modules that `fully_shard` shards in one dimension.

    It averages each shard's gradients over its replicas (the ranks of `state.process_group`), after FSDP has
    reduced and scattered them among the shards. FSDP waits for it layer by layer.
    Raises HookConfigError if `state` is not a SwitchAllreduceState.
    """
    _check_state(state)
    return state.average


def fsdp_reduce_scatter(state: SwitchAllreduceState) -> "FsdpReduceScatter":
    """Return a reduce-scatter for `set_custom_reduce_scatter` of modules that `fully_shard` shards.

    They must be sharded in one dimension, over the ranks of `state.process_group`. The state averages the
    whole gradient over these ranks, and each rank takes its shard of the average. FSDP waits for it layer by
    layer.
    Raises HookConfigError if `state` is not a SwitchAllreduceState.
    """
    _check_state(state)
    return FsdpReduceScatter(state)


class FsdpReduceScatter:
    """An implementation of FSDP2's interface `ReduceScatter`, by an exact average."""

    def __init__(self, state: SwitchAllreduceState) -> None:
        self._state = state

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return an uninitialized tensor for a gradient, or a shard of it."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Replace input_tensor[ranks * n] by its average, and output_tensor[n] by this rank's shard of it.

        Waits for the result also if `async_op`. Raises HookConfigError if FSDP asks for another operation, or
        has other ranks than the state.
        """
        ranks, fsdp_ranks = map(dist.get_process_group_ranks, (self._state.process_group, group))
        if op != dist.ReduceOp.AVG or fsdp_ranks != ranks:
            raise HookConfigError(
                f"fully_shard: asks for {op} over ranks {fsdp_ranks}, but the state averages over {ranks}; "
                "reduce float32 or bfloat16, set no divide factor, and give the state the mesh's group"
            )
        self._state.average(input_tensor)
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])


def _check_state(state: object) -> None:
    """Raise HookConfigError if `state` is not a SwitchAllreduceState, e.g. the class itself."""
    if not isinstance(state, SwitchAllreduceState):
        raise HookConfigError(
            f"state: {state!r} is not a SwitchAllreduceState; "
            "register SwitchAllreduceState(), with parentheses, beside the hook"
        )


def _check_groups(state: SwitchAllreduceState) -> None:
    """Raise HookConfigError if a DDP module whose hook has this state is in another group than the state.

    Otherwise gradients of several groups would be added up. A hook is not told its module, so all modules
    of the process are examined.
    """
    ranks = dist.get_process_group_ranks(state.process_group)
    for module in [item for item in gc.get_objects() if DistributedDataParallel in type(item).__mro__]:
        has_state = any(hook_state is state for _, hook_state in getattr(module, "_comm_hooks", ()))
        if has_state and dist.get_process_group_ranks(module.process_group) != ranks:
            raise HookConfigError(
                "process_group: DDP has another group than the state; give both the same, as in "
                "SwitchAllreduceState(group, ...) and DistributedDataParallel(..., process_group=group)"
            )
