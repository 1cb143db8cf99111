"""Backend `peelsum`: a process group whose sums, broadcasts and barriers go over the switch.

It passes all other operations and types to a gloo group of its own. The choice depends on operation, type and
size only, so that all ranks choose alike.
"""

from __future__ import annotations

import concurrent.futures
import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # not exported, but documented
from torch.distributed.distributed_c10d import default_pg_timeout

from peelsum.allreduce import Allreduce, Part
from peelsum.codec import warm_up
from peelsum.summation import Op, Words
from peelsum.torch.errors import CallTimeoutError, HookConfigError
from peelsum.torch.futures import pass_on
from peelsum.torch.host_memory import summable
from peelsum.torch.ready import when_all_are_ready
from peelsum.torch.sum_queue import QueuedSummation, SumQueue
from peelsum.torch.switch_seat import connect_rank

BACKEND = "peelsum"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int32, torch.int8, torch.uint8)
#: An int64 is summed in pieces of this many bits, which leaves room for the carries of 1,024 workers.
_PIECE_BITS = 22
#: Calls passed to gloo here, because torch's base class would hold the GIL while it waits for them. Versions
#: of torch before 2.12 have the names with `base` and `tensor`, later ones those with `single`.
_BY_GLOO = (
    "_allgather_base",
    "_reduce_scatter_base",
    "allgather",
    "allgather_into_tensor_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "allreduce_coalesced",
    "all_to_all_single",
    "alltoall_base",
    "monitored_barrier",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "send",
    "recv",
)


@dataclass(frozen=True)
class SwitchOptions:
    """Options of the backend: `init_process_group("cpu:peelsum", pg_options=SwitchOptions(...))`.

    Must be the same on every rank.
    """

    precise_up_to: float = 1024
    """Float tensors of up to this many elements are summed with float32's precision in each element.

    That takes one word per element and rank. 0 sums no tensor in this way, math.inf all. Larger tensors are
    summed in fixed point, one word per element, in a unit that follows from the tensor's largest value.
    """

    def __post_init__(self) -> None:
        """Raise HookConfigError unless the value is a number from 0 on."""
        if not (isinstance(self.precise_up_to, (int, float)) and self.precise_up_to >= 0):
            raise HookConfigError(
                f"precise_up_to: {self.precise_up_to!r} counts no elements; give a number from 0 to math.inf"
            )


class SwitchProcessGroup(dist.ProcessGroup):
    """The ranks of a job at a switch. `init_process_group("cpu:peelsum")` makes one."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, options: SwitchOptions | None = None
    ) -> None:
        """Connect to the switch that the environment names: see `switch_seat`.

        timeout: how long a call may take. Unless it is torch's default, it also replaces the job's limit on
        how long a sum waits for other ranks. Raises HookConfigError or TransportError.
        """
        super().__init__(rank, size)  # type: ignore[call-arg]  # with a store, the base class makes no Python object
        self._options = options or SwitchOptions()
        self._backend = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
        # A group of torch's own class, whose calls release the GIL; a Python subclass's do not.
        self._gloo = dist.ProcessGroup(store, rank, size)
        for group in (self, self._gloo):
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._backend)
        when_all_are_ready(store, rank, size, warm_up)
        stall_s = None if timeout == default_pg_timeout else timeout.total_seconds()
        seat = when_all_are_ready(store, rank, size, lambda: connect_rank("", rank, size, store, stall_s))
        # One thread: calls share one all-reduce, which sums one thing at a time.
        self._queue = SumQueue(seat, threads=1, leave=True)
        self._summation = QueuedSummation(self._queue)
        self._allreduce = Allreduce(self._summation)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return torch's name of this group's backend."""
        return BACKEND

    def get_group_store(self) -> Any:
        """Return the store that all ranks of this group share."""
        return self._gloo.get_group_store()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]  # as torch calls it
        """Sum floats and integers over the switch; pass other operations, types and layouts to gloo."""
        (tensor,) = tensors = tensors if isinstance(tensors, list) else [tensors]
        opts = opts or dist.AllreduceOptions()
        summed = _SUMS.get(tensor.dtype) if tensor.layout == torch.strided else None
        if summed is None or opts.reduceOp != dist.ReduceOp.SUM:
            return self._gloo.allreduce(tensors, opts)
        return self._submit("allreduce", opts, tensors, lambda: summed(self, tensor))

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]  # likewise
        """Send the root's bits to all ranks, by an OR to which the other ranks contribute zeros."""
        (tensor,) = tensors
        root = opts.rootRank == self.rank()
        return self._submit("broadcast", opts, tensors, lambda: self._broadcast(tensor, root))

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks, by a sum of one word."""
        opts = opts or dist.BarrierOptions()
        return self._submit("barrier", opts, [], lambda: self._combined(np.zeros(1, np.uint32), "add"))

    def shutdown(self) -> None:
        """Leave the job; called by `destroy_process_group`."""
        self._queue.close()

    def _submit(
        self, name: str, opts: Any, tensors: list[torch.Tensor], work: Callable[[], object]
    ) -> dist.Work:
        # Torch stores `set_timeout`'s value there. A timeout of zero or below means that none was given.
        limit = opts.timeout if opts.timeout > timedelta(0) else self._backend.options._timeout
        return _Submitted(self._queue.submit(self._summation, work), tensors, name, limit)

    def _sum_floats(self, tensor: torch.Tensor) -> None:
        flat = tensor.detach().contiguous().view(-1).cpu()
        if flat.numel() <= self._options.precise_up_to:
            values = self._summed_precisely(flat)
        else:
            values = torch.from_numpy(self._allreduce.sum({"": summable(flat)})[""].values)
        tensor.detach().copy_(values.view(tensor.shape))

    def _summed_precisely(self, flat: torch.Tensor) -> torch.Tensor:
        """Return float64[n]: all ranks' floats, gathered by OR and added locally, in the order of ranks."""
        words = np.zeros((self.size(), flat.numel()), np.uint32)
        words[self.rank()] = flat.float().numpy().view(np.uint32)
        everybody = self._combined(words.reshape(-1), "or").view(np.float32).reshape(words.shape)
        with np.errstate(invalid="ignore"):
            total = functools.reduce(np.add, everybody.astype(np.float64))
        total[np.isnan(total)] = np.nan
        return torch.from_numpy(total)

    def _sum_integers(self, tensor: torch.Tensor) -> None:
        words = tensor.detach().cpu().to(torch.int32).numpy().reshape(-1).view(np.uint32)
        total = self._combined(words, "add").view(np.int32)
        tensor.copy_(torch.from_numpy(total).view(tensor.shape))

    def _sum_int64(self, tensor: torch.Tensor) -> None:
        """Sum three pieces, none of which overflows 32 bits. The result is modulo 2**64, as gloo's."""
        numbers = tensor.detach().cpu().numpy().reshape(-1).view(np.uint64)
        shifts = np.arange(0, 64, _PIECE_BITS, dtype=np.uint64)[:, None]
        pieces = (numbers >> shifts & np.uint64((1 << _PIECE_BITS) - 1)).astype(np.uint32)
        sums = self._combined(pieces.reshape(-1), "add").reshape(pieces.shape).astype(np.uint64)
        total: NDArray[np.uint64] = (sums << shifts).sum(axis=0, dtype=np.uint64)
        tensor.copy_(torch.from_numpy(total.view(np.int64)).view(tensor.shape))

    def _broadcast(self, tensor: torch.Tensor, root: bool) -> None:
        bits = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        words = np.zeros(-(-bits.size // 4), np.uint32)
        if root:
            words.view(np.uint8)[: bits.size] = bits
        ored = torch.from_numpy(self._combined(words, "or").view(np.uint8)[: bits.size])
        tensor.detach().copy_(ored.view(tensor.dtype).view(tensor.shape))

    def _combined(self, words: Words, op: Op) -> Words:
        (result,) = self._summation.sum_words([Part(words, op)])
        return result


_SUMS: dict[torch.dtype, Callable[[SwitchProcessGroup, torch.Tensor], None]] = {
    **dict.fromkeys(_FLOATS, SwitchProcessGroup._sum_floats),
    **dict.fromkeys(_INTEGERS, SwitchProcessGroup._sum_integers),
    torch.int64: SwitchProcessGroup._sum_int64,
}


def _handed_over(name: str) -> Callable[..., Any]:
    def call(self: SwitchProcessGroup, *arguments: Any, **options: Any) -> Any:
        return getattr(self._gloo, name)(*arguments, **options)

    return call


for _name in filter(functools.partial(hasattr, dist.ProcessGroup), _BY_GLOO):
    setattr(SwitchProcessGroup, _name, _handed_over(_name))


class _Submitted(dist.Work):
    """A running call, for which Python or C++ can wait. Its time limit begins here."""

    def __init__(
        self, done: Future[None], tensors: Sequence[torch.Tensor], name: str, limit: timedelta
    ) -> None:
        super().__init__()
        self._done, self._tensors, self._name, self._limit = done, list(tensors), name, limit
        self._deadline = time.monotonic() + limit.total_seconds()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the call is done, but no longer than its own limit and `timeout`, if above zero.

        Raises what the call raised, or CallTimeoutError, after which the call goes on: wait for it again.
        """
        left = self._deadline - time.monotonic()
        own = timedelta(0) < timeout and timeout.total_seconds() < left
        left = max(0.0, min(timeout.total_seconds() if own else left, threading.TIMEOUT_MAX))
        if not concurrent.futures.wait([self._done], left).done:
            limit = timeout if own else self._limit
            raise CallTimeoutError(
                f"{self._name}: not done after {limit.total_seconds():g} s; see that all ranks make the "
                "same calls, or give it a longer timeout"
            )
        self._done.result()
        return True

    def is_completed(self) -> bool:
        """Return whether `wait` would return, or raise, at once."""
        return self._done.done()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future for the tensors."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        pass_on(self._done, future, lambda: self._tensors)
        return future


def _group_of(made: Any, options: Any) -> Any:
    """Make a new group: gloo if the default group already holds this process's seat, else a switch group.

    All ranks choose alike, as the choice depends on the default group only.
    """
    place = made.group_rank, made.group_size, made.timeout
    if isinstance(dist.group.WORLD, SwitchProcessGroup):
        return dist.ProcessGroupGloo(PrefixStore("gloo", made.store), *place)
    if not isinstance(options, SwitchOptions | None):
        raise HookConfigError(f"pg_options: {options!r} is not for this backend; give SwitchOptions")
    return SwitchProcessGroup(made.store, *place, options)


def register_backend() -> None:
    """Register `peelsum` with torch.distributed. Importing peelsum.torch calls this."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _group_of, extended_api=True, devices=["cpu"])
