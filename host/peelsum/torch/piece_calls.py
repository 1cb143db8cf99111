"""Reduce-scatter and all-gather over the switch: words travel only to the rank that owns them, or from it.

Torch has three forms of each: of one tensor, of several, and of lists with a tensor for each rank. Here each
form becomes pairs of the tensors that are written and those that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import AllgatherOptions

from peelsum.torch.gloo_calls import by_gloo
from peelsum.torch.tensor_sums import Reduction, check_device

if TYPE_CHECKING:
    from peelsum.torch.process_group import SwitchProcessGroup

Call = Callable[..., Any]


def _tensors(given: Any) -> list[torch.Tensor]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _paired(first: Any, second: Any, *, lists: bool) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Return the tensors that each result is written to, and those it is read from.

    lists: `first` or `second` is a list of lists.
    """
    several = lists or isinstance(first, (list, tuple))
    pairs = zip(first, second, strict=False) if several else [(first, second)]
    return [(_tensors(out), _tensors(given)) for out, given in pairs]


def _numel(tensors: Sequence[torch.Tensor]) -> int:
    return sum(one.numel() for one in tensors)


def _even(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors lie on one device as plain memory, and are alike in type and size."""
    kinds = {(one.dtype, one.device, one.layout, one.numel()) for one in tensors}
    return len(kinds) == 1 and tensors[0].layout == torch.strided


def reduce_scatter(name: str, *, lists: bool = False) -> Call:
    """Return torch's method `name`, which takes outputs and inputs; lists: inputs are lists of tensors."""

    def call(self: SwitchProcessGroup, outputs: Any, inputs: Any, opts: Any) -> Any:
        pairs = _paired(outputs, inputs, lists=lists)
        reduction = Reduction.of(name, [one for _, given in pairs for one in given], opts)
        if self._sums is None or not all(
            reduction.by_switch(one) and _even(given) and _numel(given) == self.size() * _numel(out)
            for out, given in pairs
            for one in given
        ):
            return by_gloo(self._gloo, name, outputs, inputs, opts)
        return self._submit_pieces(name, opts, pairs, partial(self._sums.scattered, reduction=reduction))

    return call


def all_gather(name: str, *, lists: bool = False) -> Call:
    """Return torch's method `name`, which takes outputs and inputs; lists: outputs are lists of tensors."""

    def call(self: SwitchProcessGroup, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        pairs, opts = _paired(outputs, inputs, lists=lists), opts or AllgatherOptions()
        check_device(name, [one for pair in pairs for tensors in pair for one in tensors])
        if self._sums is None or not all(
            _even(out) and _even(given) and _numel(out) == self.size() * _numel(given) for out, given in pairs
        ):
            return by_gloo(self._gloo, name, outputs, inputs, opts)
        return self._submit_pieces(name, opts, pairs, self._sums.gathered)

    return call


#: Methods by name, as versions of torch have them.
CALLS: dict[str, Call] = {
    **{
        name: reduce_scatter(name)
        for name in (
            "_reduce_scatter_base",
            "reduce_scatter_single",
            "reduce_scatter_single_coalesced",
            "reduce_scatter_tensor_coalesced",
        )
    },
    "reduce_scatter": reduce_scatter("reduce_scatter", lists=True),
    **{
        name: all_gather(name)
        for name in (
            "_allgather_base",
            "all_gather_single",
            "all_gather_single_coalesced",
            "allgather_into_tensor_coalesced",
        )
    },
    "allgather": all_gather("allgather", lists=True),
}
