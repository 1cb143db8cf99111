"""Calls of a process group by gloo, and reduce-scatter and all-gather over the switch.

Gloo gets what it does not take itself (tensors on a GPU, other number types, averages) as copies in host
memory, of a type that it has. Results are copied back when the call is waited for. Over the switch, words
travel only to the rank that owns them, or from it. Torch has three forms of each such call: of one tensor, of
several, and of lists with a tensor for each rank. Here each form becomes pairs of the tensors that are
written and those that are read. `Submitted` and `Finished` are what a caller waits for.
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

from peelsum.torch.backward_pass import pass_on
from peelsum.torch.errors import CallTimeoutError
from peelsum.torch.tensor_sums import Reduction, check_device

if TYPE_CHECKING:
    from peelsum.torch.process_group import SwitchProcessGroup

Call = Callable[..., Any]
_R: Any = dist.ReduceOp.RedOpType
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
#: How the names of calls begin whose works have no future with gloo.
_WITHOUT_FUTURE = ("send", "recv", "reduce_scatter", "_reduce_scatter")


def future_of(tensors: Sequence[torch.Tensor]) -> torch.futures.Future[list[torch.Tensor]]:
    """Return a future that tensors on these tensors' devices can complete."""
    return torch.futures.Future(devices=sorted({one.device for one in tensors if one.is_cuda}, key=str))


class Submitted(dist.Work):
    """A running call, for which Python or C++ can wait. Its time limit begins here."""

    def __init__(
        self, done: Future[None], tensors: Sequence[torch.Tensor], name: str, limit: timedelta
    ) -> None:
        super().__init__()
        self._done, self._tensors, self._name, self._limit = done, list(tensors), name, limit
        self._deadline = time.monotonic() + limit.total_seconds()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the call is done, at most up to its own limit, and for `timeout` if that is above zero.

        Raises what the call raised, or CallTimeoutError. After that, the call goes on: wait for it again.
        """
        left = self._deadline - time.monotonic()
        own = timedelta(0) < timeout and timeout.total_seconds() < left
        left = max(0.0, min(timeout.total_seconds() if own else left, threading.TIMEOUT_MAX))
        if not concurrent.futures.wait([self._done], left).done:
            limit = timeout if own else self._limit
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
        """Return what the call raised, or None."""
        return self._done.exception() if self._done.done() else None

    def result(self) -> list[torch.Tensor]:
        """Return the tensors, once the call is done."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future for the tensors."""
        future = future_of(self._tensors)
        pass_on(self._done, future, lambda: self._tensors)
        return future


class Finished(dist.Work):
    """A work of gloo, after which `finish` runs once, in the first thread that waits."""

    def __init__(
        self, work: Any, tensors: Sequence[torch.Tensor], finish: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self._work, self._tensors, self._finish = work, list(tensors), finish
        self._lock, self._is_finished = threading.Lock(), False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait as the work does, then finish it. Raises what the work raised."""
        done: bool = self._work.wait(timeout)
        with self._lock:
            if not self._is_finished:
                self._finish()
            self._is_finished = True
        return done

    def is_completed(self) -> bool:
        """Return whether the work is done, so that `wait` does not wait."""
        done: bool = self._work.is_completed()
        return done

    def is_success(self) -> bool:
        """Return whether the work has succeeded."""
        success: bool = self._work.is_success()
        return success

    def exception(self) -> Any:
        """Return what the work raised, or None."""
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        """Return the tensors, once the work is done."""
        self.wait()
        return self._tensors

    def _source_rank(self) -> int:
        rank: int = self._work._source_rank()
        return rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future for the tensors."""
        future = future_of(self._tensors)

        def complete() -> None:
            try:
                self.wait()
                future.set_result(self._tensors)
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]  # see `pass_on`

        # Not every work of gloo has a future of its own.
        threading.Thread(target=complete, name="peelsum waits", daemon=True).start()
        return future


def by_gloo(gloo: dist.ProcessGroup, name: str, *arguments: Any) -> Any:
    """Call gloo's method `name`, whose first argument is what it writes; return its work, or `Finished`.

    Raises HookConfigError, before anything is sent, if the tensors' type lacks the reduction, or for tensors
    that are neither on cpu nor on cuda.
    """
    opts: Any = next((one for one in arguments if hasattr(one, "reduceOp")), None)
    tensors = [one for one in tree_leaves(arguments) if isinstance(one, torch.Tensor)]
    check_device(name, tensors)
    reduction = Reduction.of(name, tensors, opts) if opts is not None else None
    call = getattr(gloo, name)
    if all(one.dtype in _OF_GLOO and one.device.type == "cpu" for one in tensors) and (
        reduction is None or (opts.reduceOp == reduction.op and reduction.op not in _SCALED)
    ):
        work = call(*arguments)
        return Finished(work, _written(name, arguments)) if name.startswith(_WITHOUT_FUTURE) else work
    copies = tree_map_only(torch.Tensor, lambda one: _copy(one, reduction), arguments)
    if reduction is None:
        work = call(*copies)
    else:
        asked, opts.reduceOp = copy(opts.reduceOp), _R.SUM if reduction.op in _SCALED else reduction.op
        try:
            work = call(*copies)
        finally:
            opts.reduceOp = asked
    written = _written(name, arguments)
    divisor = gloo.size() if reduction is not None and reduction.op == _R.AVG else 1

    def copy_back() -> None:
        for tensor, near in zip(written, tree_leaves(copies[0]), strict=False):
            _copy_back(near, tensor, divisor)

    return Finished(work, written, copy_back)


def _written(name: str, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the tensors that a call writes."""
    return [] if name == "send" else tree_leaves(arguments[0])


def _copy(tensor: torch.Tensor, reduction: Reduction | None) -> torch.Tensor:
    """Return what gloo gets instead of a tensor: numbers to reduce, or else perhaps bytes."""
    dtype = tensor.dtype
    if reduction is None and dtype not in _OF_GLOO:
        near = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # Bytes in a dimension of their own, because a call may split the first one.
        return near.unsqueeze(-1).view(torch.uint8).clone()
    if dtype not in _OF_GLOO:
        dtype = torch.float32 if dtype.is_floating_point else _WIDER[dtype]
    near = tensor.detach().to("cpu", dtype, copy=True)
    return near if reduction is None or reduction.factor is None else near.mul_(reduction.factor)


def _copy_back(near: torch.Tensor, tensor: torch.Tensor, divisor: int) -> None:
    if near.dim() > tensor.dim():
        near = near.view(tensor.dtype).squeeze(-1)
    if divisor > 1:
        near = torch.div(near, divisor, rounding_mode=None if near.is_floating_point() else "trunc")
    with torch.no_grad():
        tensor.copy_(near)  # `detach` would copy a sparse tensor's list of rows


def _tensors(given: Any) -> list[torch.Tensor]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _paired(first: Any, second: Any) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Return the tensors that each result is written to, and those it is read from."""
    pairs = zip(first, second, strict=False) if isinstance(first, (list, tuple)) else [(first, second)]
    return [(_tensors(out), _tensors(given)) for out, given in pairs]


def _numel(tensors: Sequence[torch.Tensor]) -> int:
    return sum(one.numel() for one in tensors)


def _even(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors lie on one device as plain memory, and are alike in type and size."""
    kinds = {(one.dtype, one.device, one.layout, one.numel()) for one in tensors}
    return len(kinds) == 1 and tensors[0].layout == torch.strided


def _reduce_scatter(name: str) -> Call:
    """Return torch's method `name`, which takes outputs and inputs."""

    def call(self: SwitchProcessGroup, outputs: Any, inputs: Any, opts: Any) -> Any:
        pairs = _paired(outputs, inputs)
        reduction = Reduction.of(name, [one for _, given in pairs for one in given], opts)
        if self._sums is None or not all(
            reduction.by_switch(one) and _even(given) and _numel(given) == self.size() * _numel(out)
            for out, given in pairs
            for one in given
        ):
            return by_gloo(self._gloo, name, outputs, inputs, opts)
        return self._submit_pieces(name, opts, pairs, partial(self._sums.scattered, reduction=reduction))

    return call


def _all_gather(name: str) -> Call:
    """Return torch's method `name`, which takes outputs and inputs."""

    def call(self: SwitchProcessGroup, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        pairs, opts = _paired(outputs, inputs), opts or AllgatherOptions()
        check_device(name, [one for pair in pairs for tensors in pair for one in tensors])
        if self._sums is None or not all(
            _even(out) and _even(given) and _numel(out) == self.size() * _numel(given) for out, given in pairs
        ):
            return by_gloo(self._gloo, name, outputs, inputs, opts)
        return self._submit_pieces(name, opts, pairs, self._sums.gathered)

    return call


#: Methods by name, as versions of torch have them.
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
