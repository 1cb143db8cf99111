"""Collectives of a process group: calls of gloo, and reduce-scatter and all-gather over the switch.

Gloo gets copies of tensors that it does not take itself (those on a GPU, of other number types, or for an
average): copies in host memory, of a type that it supports. Results are copied back when the caller waits.
Over the switch, words are sent only to the rank that needs them, or by the rank that has them. Torch has
three forms of each such call: for one tensor, for several, and for lists with a tensor for each rank. Here
each form becomes pairs of output and input tensors. Callers wait for a `SwitchWork` or a `GlooWork`.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import copy
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions
from torch.utils._pytree import tree_leaves, tree_map_only

from peelsum.torch.errors import CallTimeoutError
from peelsum.torch.sum_queue import chain_future
from peelsum.torch.tensor_sums import Reduction, check_device

if TYPE_CHECKING:
    from peelsum.torch.process_group import SwitchProcessGroup

Call = Callable[..., Any]
_R: Any = dist.ReduceOp.RedOpType
_GLOO_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64),
)
#: Types that gloo does not take, and the type in which they are reduced instead, modulo the type's range.
_REDUCED_AS = {
    **dict.fromkeys((torch.int16, torch.uint16), torch.int32),
    **dict.fromkeys((torch.uint32, torch.uint64), torch.int64),
}
#: Reductions that are sums with a factor before or after.
_SCALED_SUMS = (_R.AVG, _R.PREMUL_SUM)
#: Prefixes of calls whose works have no future in gloo.
_WITHOUT_FUTURE = ("send", "recv", "reduce_scatter", "_reduce_scatter")


def new_future(tensors: Sequence[torch.Tensor]) -> torch.futures.Future[list[torch.Tensor]]:
    """Return a future whose value will be tensors on the devices of these tensors."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return torch.futures.Future(devices=sorted(devices, key=str))


class TensorWork(dist.Work):
    """A call whose results are these tensors. Subclasses implement `wait`."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def result(self) -> list[torch.Tensor]:
        """Return the tensors, once the call is done."""
        self.wait()
        return self._tensors


class SwitchWork(TensorWork):
    """A call over the switch, for which Python or C++ can wait. Its time limit begins now."""

    def __init__(
        self, done: Future[None], tensors: Sequence[torch.Tensor], name: str, limit: timedelta
    ) -> None:
        super().__init__(tensors)
        self._done, self._name, self._limit = done, name, limit
        self._deadline = time.monotonic() + limit.total_seconds()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the call is done: up to the call's limit, or up to `timeout` if that is shorter.

        A `timeout` of zero or below does not count. Raises the call's error, or CallTimeoutError; after a
        timeout the call continues, and can be waited for again.
        """
        limit, remaining_s = self._limit, self._deadline - time.monotonic()
        if 0 < timeout.total_seconds() < remaining_s:
            limit, remaining_s = timeout, timeout.total_seconds()
        remaining_s = max(0.0, min(remaining_s, threading.TIMEOUT_MAX))
        if not concurrent.futures.wait([self._done], remaining_s).done:
            raise CallTimeoutError(
                f"{self._name}: not done within its timeout of {limit.total_seconds():g} s; see that all "
                "ranks make the same calls, or give it a longer one"
            )
        self._done.result()
        return True

    def is_completed(self) -> bool:
        """Return whether `wait` would return, or raise, at once."""
        return self._done.done()

    def is_success(self) -> bool:
        """Return whether the call has succeeded."""
        return self._done.done() and self._done.exception() is None

    def exception(self) -> Any:
        """Return the call's error, or None."""
        return self._done.exception() if self._done.done() else None

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future for the tensors."""
        future = new_future(self._tensors)
        chain_future(self._done, future, lambda: self._tensors)
        return future


class GlooWork(TensorWork):
    """A work of gloo. After it, `finish` runs once, in the first thread that waits."""

    def __init__(
        self, work: dist.Work, tensors: Sequence[torch.Tensor], finish: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(tensors)
        self._work, self._finish = work, finish
        self._lock, self._is_finished = threading.Lock(), False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for gloo's work, then call `finish`. Raises the work's error."""
        if self._is_finished:  # gloo's sends and receives can be waited for only once
            return True
        done = self._work.wait(timeout)
        with self._lock:
            if not self._is_finished:
                self._finish()
            self._is_finished = True
        return done

    def is_completed(self) -> bool:
        """Return whether the work is done, so that `wait` does not wait."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Return whether the work has succeeded."""
        return self._work.is_success()

    def exception(self) -> Any:
        """Return the work's error, or None."""
        return self._work.exception()

    def _source_rank(self) -> int:
        return self._work._source_rank()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future for the tensors."""
        future = new_future(self._tensors)

        def complete() -> None:
            try:
                self.wait()
                future.set_result(self._tensors)
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]  # see `chain_future`

        # Not every work of gloo has a future of its own.
        threading.Thread(target=complete, name="peelsum waits", daemon=True).start()
        return future


def call_gloo(gloo: dist.ProcessGroup, name: str, *arguments: Any) -> Any:
    """Call gloo's method `name`, whose first argument is its output; return gloo's work, or a `GlooWork`.

    Raises HookConfigError, before anything is sent, if the tensors' type does not support the reduction, or
    if a tensor is neither on cpu nor on cuda.
    """
    opts: Any = next((argument for argument in arguments if hasattr(argument, "reduceOp")), None)
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    check_device(name, tensors)
    reduction = Reduction.of(name, tensors, opts) if opts is not None else None
    call = getattr(gloo, name)
    if all(tensor.dtype in _GLOO_DTYPES and tensor.device.type == "cpu" for tensor in tensors) and (
        reduction is None or (opts.reduceOp == reduction.op and reduction.op not in _SCALED_SUMS)
    ):
        work = call(*arguments)
        return GlooWork(work, _outputs_of(name, arguments)) if name.startswith(_WITHOUT_FUTURE) else work
    copies = tree_map_only(torch.Tensor, lambda tensor: _gloo_copy(tensor, reduction), arguments)
    if reduction is None:
        work = call(*copies)
    else:
        requested_op = copy(opts.reduceOp)
        opts.reduceOp = _R.SUM if reduction.op in _SCALED_SUMS else reduction.op
        try:
            work = call(*copies)
        finally:
            opts.reduceOp = requested_op
    outputs = _outputs_of(name, arguments)
    divisor = gloo.size() if reduction is not None and reduction.op == _R.AVG else 1

    def copy_back() -> None:
        for tensor, host_copy in zip(outputs, tree_leaves(copies[0]), strict=False):
            _copy_back(host_copy, tensor, divisor)

    return GlooWork(work, outputs, copy_back)


def _outputs_of(name: str, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the tensors to which a call writes."""
    return [] if name == "send" else tree_leaves(arguments[0])


def _gloo_copy(tensor: torch.Tensor, reduction: Reduction | None) -> torch.Tensor:
    """Return a copy of a tensor for gloo: in a type that it can reduce, or as bytes if nothing is reduced."""
    dtype = tensor.dtype
    if reduction is None and dtype not in _GLOO_DTYPES:
        host_copy = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # Bytes in a dimension of their own, because a call may split the first dimension.
        return host_copy.unsqueeze(-1).view(torch.uint8).clone()
    if dtype not in _GLOO_DTYPES:
        dtype = torch.float32 if dtype.is_floating_point else _REDUCED_AS[dtype]
    host_copy = tensor.detach().to("cpu", dtype, copy=True)
    return host_copy if reduction is None or reduction.factor is None else host_copy.mul_(reduction.factor)


def _copy_back(host_copy: torch.Tensor, tensor: torch.Tensor, divisor: int) -> None:
    """Write gloo's result, divided by `divisor`, to the tensor that `_gloo_copy` copied."""
    if host_copy.dim() > tensor.dim():
        host_copy = host_copy.view(tensor.dtype).squeeze(-1)
    if divisor > 1:
        rounding_mode = None if host_copy.is_floating_point() else "trunc"
        host_copy = torch.div(host_copy, divisor, rounding_mode=rounding_mode)
    with torch.no_grad():
        tensor.copy_(host_copy)  # `detach` would copy a sparse tensor's list of rows


def _as_list(tensors: Any) -> list[torch.Tensor]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def _pairs(outputs: Any, inputs: Any) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Return, for each result of a call, the list of its output tensors and the list of its inputs."""
    pairs = zip(outputs, inputs, strict=False) if isinstance(outputs, (list, tuple)) else [(outputs, inputs)]
    return [(_as_list(targets), _as_list(sources)) for targets, sources in pairs]


def _numel(tensors: Sequence[torch.Tensor]) -> int:
    """Return the number of elements of all tensors."""
    return sum(tensor.numel() for tensor in tensors)


def _are_uniform(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether all tensors are dense, on one device, and of one type and size."""
    kinds = {(tensor.dtype, tensor.device, tensor.layout, tensor.numel()) for tensor in tensors}
    return len(kinds) == 1 and tensors[0].layout == torch.strided


def _reduce_scatter(name: str) -> Call:
    """Return a method for torch's reduce-scatter `name`: over the switch if it can, else by gloo."""

    def call(self: SwitchProcessGroup, outputs: Any, inputs: Any, opts: Any) -> Any:
        pairs = _pairs(outputs, inputs)
        reduction = Reduction.of(name, [tensor for _, sources in pairs for tensor in sources], opts)
        if self._sums is None or not all(
            all(map(reduction.by_switch, sources))
            and _are_uniform(sources)
            and _numel(sources) == self.size() * _numel(targets)
            for targets, sources in pairs
        ):
            return call_gloo(self._gloo, name, outputs, inputs, opts)
        return self._submit_pieces(name, opts, pairs, partial(self._sums.reduce_scatter, reduction=reduction))

    return call


def _all_gather(name: str) -> Call:
    """Return a method for torch's all-gather `name`: over the switch if it can, else by gloo."""

    def call(self: SwitchProcessGroup, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        pairs, opts = _pairs(outputs, inputs), opts or AllgatherOptions()
        check_device(name, [tensor for pair in pairs for tensors in pair for tensor in tensors])
        if self._sums is None or not all(
            _are_uniform(targets)
            and _are_uniform(sources)
            and _numel(targets) == self.size() * _numel(sources)
            for targets, sources in pairs
        ):
            return call_gloo(self._gloo, name, outputs, inputs, opts)
        return self._submit_pieces(name, opts, pairs, self._sums.all_gather)

    return call


#: The methods' names in all supported versions of torch.
_SCATTERING = (
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
)
_GATHERING = (
    "allgather",
    "_allgather_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
)
CALLS: dict[str, Call] = {
    **{name: _reduce_scatter(name) for name in _SCATTERING},
    **{name: _all_gather(name) for name in _GATHERING},
}
