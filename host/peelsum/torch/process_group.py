"""Backend `peelsum`: a process group whose reductions, all-gathers, broadcasts and barriers use the switch.

It passes all other operations and types to a gloo group of its own. The choice depends on operation, type and
size only, so that all ranks choose alike.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    DebugLevel,
    HashStore,
    PrefixStore,
    _ProcessGroupWrapper,
    get_debug_level,
)
from torch.distributed.distributed_c10d import default_pg_timeout

from peelsum.allreduce.history_loops import warm_up
from peelsum.torch.buckets import Bucket
from peelsum.torch.calls import CALLS, Submitted, by_gloo
from peelsum.torch.errors import HookConfigError
from peelsum.torch.sparse_sums import SparseTensor
from peelsum.torch.starts import when_all_are_ready
from peelsum.torch.sum_queue import SumQueue
from peelsum.torch.switch_seat import connect_group, connect_rank
from peelsum.torch.tensor_sums import SUMS, Reduction, TensorSums, check_device

BACKEND = "peelsum"
_log = logging.getLogger("peelsum")
_DEVICES = ["cpu", "cuda"]
_GLOO = dist.ProcessGroup.BackendType.GLOO
#: Calls for gloo. Versions of torch before 2.12 have the names with `base` and `tensor`, later ones those
#: with `single`.
_BY_GLOO = (
    "allgather_coalesced",
    "all_to_all_single",
    "alltoall",
    "alltoall_base",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "scatter",
    "send",
)


@dataclass(frozen=True)
class SwitchOptions:
    """Options of the backend: `init_process_group("peelsum", pg_options=SwitchOptions(...))`.

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
    """The ranks of a job at a switch. `init_process_group("peelsum")` makes one."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        options: SwitchOptions | None = None,
        *,
        further: bool = False,
    ) -> None:
        """Connect to the switch that the environment names: see `switch_seat`.

        further: connect as a group beside the one of all ranks, in a job of its own. A group of one rank
        needs no job. Without a job, gloo takes all calls.
        timeout: how long a call may take. Unless it is torch's default, nine tenths of it replace the job's
        limit on how long a sum waits for other ranks: the sum's error, which names them, then comes first.
        Raises HookConfigError or TransportError.
        """
        super().__init__(rank, size)  # type: ignore[call-arg]  # with a store, the base class makes no Python object
        options = options or SwitchOptions()
        self._backend = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
        backend: Any = self._backend
        self._check: Any = None
        if get_debug_level() == DebugLevel.DETAIL:
            helper = dist.ProcessGroupGloo(PrefixStore("checks", store), rank, size, timeout)
            backend = _ProcessGroupWrapper(backend, helper)
            # The group that it wraps has one rank, so a call of it does nothing but compare with other ranks.
            self._check = _ProcessGroupWrapper(dist.ProcessGroupGloo(HashStore(), 0, 1, timeout), helper)
        # A group of torch's own class, whose calls release the GIL; a Python subclass's do not.
        self._gloo = dist.ProcessGroup(store, rank, size)
        for group in (self, self._gloo):
            group._set_default_backend(_GLOO)
            for device in _DEVICES:
                group._register_backend(torch.device(device), _GLOO, backend)
        when_all_are_ready(store, rank, size, warm_up)
        stall_s = None if timeout == default_pg_timeout else 0.9 * timeout.total_seconds()
        place = "", rank, size, store, stall_s
        seat: Any = None
        if not further:
            seat = when_all_are_ready(store, rank, size, lambda: connect_rank(*place))
        elif size > 1:
            seat = when_all_are_ready(store, rank, size, lambda: connect_group(*place))
        if isinstance(seat, str):
            _log.warning("group of %d ranks: uses gloo, as %s", size, seat)
            seat = None
        # One thread: calls share one all-reduce, which sums one thing at a time.
        self._queue = None if seat is None else SumQueue(seat, threads=1, leave=True)
        self._sums = None if self._queue is None else TensorSums(self._queue, options.precise_up_to)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return torch's name of this group's backend."""
        return BACKEND

    def get_group_store(self) -> Any:
        """Return the store that all ranks of this group share."""
        return self._gloo.get_group_store()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]  # as torch calls it
        """Reduce each tensor, by the switch if it can, else by gloo. Raises HookConfigError if none can."""
        tensors = tensors if isinstance(tensors, list) else [tensors]
        return self._reduce("allreduce", tensors, opts or dist.AllreduceOptions(), written=True)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce tensors of one type, as `allreduce` does."""
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._reduce("allreduce_coalesced", tensors, opts, written=True)

    def reduce(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]  # likewise
        """Reduce as `allreduce` does; the root alone gets the result."""
        return self._reduce("reduce", tensors, opts, written=opts.rootRank == self.rank())

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]  # likewise
        """Send the root's bits to all ranks, by the switch if the tensor is dense, else by gloo.

        Raises HookConfigError for a tensor that is neither on cpu nor on cuda.
        """
        check_device("broadcast", tensors)
        (tensor,) = tensors
        if self._sums is None or tensor.layout != torch.strided:
            return by_gloo(self._gloo, "broadcast", tensors, opts)
        sent = functools.partial(self._sums.sent, root=opts.rootRank)
        return self._submit("broadcast", opts, tensors, sent)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks, by a sum of one word."""
        opts = opts or dist.BarrierOptions()
        if self._sums is None:
            return self._gloo.barrier(opts)
        if self._check is not None:
            self._check.barrier(opts).wait()
        return self._work("barrier", opts, [], self._sums.barrier)

    def shutdown(self) -> None:
        """Leave the job; called by `destroy_process_group`."""
        if self._queue is not None:
            self._queue.close()

    def _reduce(self, name: str, tensors: list[torch.Tensor], opts: Any, *, written: bool) -> Any:
        if opts.reduceOp.op in SUMS:
            tensors = [_as_reals(one) for one in tensors]
        reduction = Reduction.of(name, tensors, opts)
        if self._sums is None or not all(reduction.by_switch(one) for one in tensors):
            return by_gloo(self._gloo, name, tensors, opts)
        if any(one.is_sparse for one in tensors):
            return self._submit_sparse(name, opts, tensors, reduction, written)
        reduced = functools.partial(self._sums.reduced, reduction=reduction)
        return self._submit(name, opts, tensors, reduced, written)

    def _submit(
        self,
        name: str,
        opts: Any,
        tensors: list[torch.Tensor],
        result: Callable[[torch.Tensor], torch.Tensor],
        written: bool = True,
    ) -> dist.Work:
        """Queue a call whose `result` replaces each tensor, if `written`."""
        if self._check is not None:
            self._compare(name, tensors, opts)
        buffers = [Bucket(one.detach(), [one.shape]) for one in tensors]

        def work() -> None:
            for buffer in buffers:
                with buffer.near(on_host=True) as near:
                    total = result(near)
                    if written:
                        near.copy_(total)

        return self._work(name, opts, tensors, work)

    def _submit_sparse(
        self, name: str, opts: Any, tensors: list[torch.Tensor], reduction: Reduction, written: bool
    ) -> dist.Work:
        """Queue a reduction of sparse tensors, which are replaced if `written`."""
        sums, sparse = self._sums, [SparseTensor(tensor) for tensor in tensors]
        assert sums is not None
        if self._check is not None:
            self._compare(name, tensors, opts)

        def work() -> None:
            for tensor in sparse:
                row_sum = sums.summed_rows(tensor, reduction)
                if written:
                    row_sum.replace()

        return self._work(name, opts, tensors, work)

    def _submit_pieces(
        self,
        name: str,
        opts: Any,
        pairs: list[tuple[list[torch.Tensor], list[torch.Tensor]]],
        result: Callable[[torch.Tensor], torch.Tensor],
    ) -> dist.Work:
        """Queue a call that computes `result` of what is read, end to end, and writes it in equal pieces."""
        written = [one for out, _ in pairs for one in out]
        flat = [torch.cat([one.detach().reshape(-1) for one in given]) for _, given in pairs]
        if self._check is not None:
            for one in flat:
                if "gather" in name:
                    by_gloo(self._check, "allgather", [[one.clone()]], [one], type(opts)()).wait()
                else:
                    by_gloo(self._check, "reduce_scatter", [one.clone()], [[one]], type(opts)()).wait()
        buffers = [Bucket(one, [one.shape]) for one in flat]

        def work() -> None:
            for buffer, (out, _) in zip(buffers, pairs, strict=True):
                with buffer.near(on_host=True) as near:
                    pieces = result(near).chunk(len(out)) if near.numel() else []
                for tensor, piece in zip(out, pieces, strict=False):
                    tensor.detach().copy_(piece.view(tensor.shape))

        return self._work(name, opts, written, work)

    def _compare(self, name: str, tensors: list[torch.Tensor], opts: Any) -> None:
        """Raise torch's error unless all ranks make the same call, with tensors alike."""
        # Gloo has no reduction of sparse booleans.
        tensors = [one.byte() if one.is_sparse and one.dtype == torch.bool else one for one in tensors]
        by_gloo(self._check, name, tensors, type(opts)()).wait()

    def _work(
        self, name: str, opts: Any, tensors: list[torch.Tensor], work: Callable[[], object]
    ) -> dist.Work:
        assert self._queue is not None
        # Torch stores `set_timeout`'s value there. A timeout of zero or below means that none was given.
        limit = opts.timeout if opts.timeout > timedelta(0) else self._backend.options._timeout
        return Submitted(self._queue.submit(work), tensors, name, limit)


def _as_reals(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a complex tensor as pairs of floats. Sparse ones have none, and are left to gloo."""
    return torch.view_as_real(tensor) if tensor.is_complex() and not tensor.is_sparse else tensor


def _handed_over(name: str) -> Callable[..., Any]:
    def call(self: SwitchProcessGroup, *arguments: Any, **options: Any) -> Any:
        if options:
            return getattr(self._gloo, name)(*arguments, **options)
        return by_gloo(self._gloo, name, *arguments)

    return call


for _name in filter(functools.partial(hasattr, dist.ProcessGroup), (*_BY_GLOO, *CALLS)):
    setattr(SwitchProcessGroup, _name, CALLS.get(_name) or _handed_over(_name))


def _group_of(made: Any, options: Any) -> Any:
    """Make a group: a further one if the default group already holds this process's seat."""
    if not isinstance(options, SwitchOptions | None):
        raise HookConfigError(f"pg_options: {options!r} is not for this backend; give SwitchOptions")
    further = isinstance(dist.group.WORLD, SwitchProcessGroup)
    place = made.group_rank, made.group_size, made.timeout
    return SwitchProcessGroup(made.store, *place, options, further=further)


def register_backend() -> None:
    """Register `peelsum` with torch.distributed. Importing peelsum.torch calls this."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _group_of, extended_api=True, devices=_DEVICES)
