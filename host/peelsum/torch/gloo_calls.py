"""Calls of gloo with what it does not take itself: tensors on a GPU, other number types, averages.

Gloo gets copies in host memory, of a type that it has. Results are copied back when the call is waited for.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map_only

from peelsum.torch.tensor_sums import Reduction
from peelsum.torch.works import Finished

_R = dist.ReduceOp.RedOpType
_OF_GLOO = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64),
)
#: Types whose reductions are those of another type, modulo the type's size.
_WIDER = {
    **dict.fromkeys((torch.int16, torch.uint16), torch.int32),
    **dict.fromkeys((torch.uint32, torch.uint64), torch.int64),
}
#: Reductions that are sums with a factor before or after.
_SCALED = (_R.AVG, _R.PREMUL_SUM)


def by_gloo(gloo: dist.ProcessGroup, name: str, *arguments: Any) -> Any:
    """Call gloo's `name`, whose first argument is what it writes, and return its work or our own.

    Raises HookConfigError, before anything is sent, if there is no such reduction of the tensors' type.
    """
    opts = next((one for one in arguments if hasattr(one, "reduceOp")), None)
    tensors = [one for one in tree_leaves(arguments) if isinstance(one, torch.Tensor)]
    reduction = Reduction.of(name, tensors, opts) if opts is not None else None
    call = getattr(gloo, name)
    if all(one.dtype in _OF_GLOO and one.device.type == "cpu" for one in tensors) and (
        opts is None or opts.reduceOp == reduction.op != _R.AVG
    ):
        return call(*arguments)
    copies = tree_map_only(torch.Tensor, lambda one: _copy(one, reduction), arguments)
    if reduction is None:
        work = call(*copies)
    else:
        asked, opts.reduceOp = opts.reduceOp, _R.SUM if reduction.op in _SCALED else reduction.op
        try:
            work = call(*copies)
        finally:
            opts.reduceOp = asked
    written = [] if name == "send" else tree_leaves(arguments[0])
    divisor = gloo.size() if reduction is not None and reduction.op == _R.AVG else 1

    def copy_back() -> None:
        for tensor, copy in zip(written, tree_leaves(copies[0]), strict=False):
            _copy_back(copy, tensor, divisor)

    return Finished(work, written, copy_back)


def _copy(tensor: torch.Tensor, reduction: Reduction | None) -> torch.Tensor:
    """Return what gloo gets instead of a tensor: numbers to reduce, or else perhaps bytes."""
    dtype = tensor.dtype
    if reduction is None and dtype not in _OF_GLOO:
        near = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # Bytes in a dimension of their own, because a call may split the first one.
        return near.unsqueeze(-1).view(torch.uint8).clone()
    if dtype not in _OF_GLOO:
        dtype = torch.float32 if dtype.is_floating_point else _WIDER[dtype]
    copy = tensor.detach().to("cpu", dtype, copy=True)
    return copy if reduction is None or reduction.factor is None else copy.mul_(reduction.factor)


def _copy_back(copy: torch.Tensor, tensor: torch.Tensor, divisor: int) -> None:
    if copy.dim() > tensor.dim():
        copy = copy.view(tensor.dtype).squeeze(-1)
    if divisor > 1:
        copy = torch.div(copy, divisor, rounding_mode=None if copy.is_floating_point() else "trunc")
    tensor.detach().copy_(copy)
