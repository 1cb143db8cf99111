"""Backend `peelsum`: a process group whose reductions, all-gathers, broadcasts and barriers use the switch.

Gloo executes all other operations, and those of other types. The choice depends on operation, type and size
only, so that all ranks choose alike.
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
from peelsum.torch.calls import CALLS, SwitchWork, call_gloo
from peelsum.torch.errors import HookConfigError
from peelsum.torch.sparse_sums import SparseTensor
from peelsum.torch.starts import run_on_all_ranks
from peelsum.torch.sum_queue import SumQueue
from peelsum.torch.switch_seat import connect_group, connect_rank
from peelsum.torch.tensor_sums import SUMS, Reduction, TensorSums, check_device

BACKEND = "peelsum"
_log = logging.getLogger("peelsum")
_DEVICES = ["cpu", "cuda"]
_GLOO = dist.ProcessGroup.BackendType.GLOO
#: Calls that gloo executes. Versions of torch before 2.12 have the names with `base` and `tensor`, later
#: versions those with `single`.
_GLOO_CALLS = (
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
        needs_job: bool = False,
    ) -> None:
        """Connect to the switch that the environment names: see `switch_seat`.

        further: whether a group of all ranks exists already, so that this group needs a job of its own. A
        group of one rank needs no job. Without a job, gloo executes all calls.
        needs_job: whether a further group of several ranks that gets no job is an error.
        timeout: how long a call may take. Unless it is torch's default, a sum waits for other ranks up to
        nine tenths of it, not up to the job's limit: the sum's error, which names those ranks, then comes
        first.
        Raises HookConfigError or TransportError.
        """
        super().__init__(rank, size)  # type: ignore[call-arg]  # with a store, the base class makes no Python object
        options = options or SwitchOptions()
        self._backend = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
        gloo_backend: Any = self._backend
        #: With TORCH_DISTRIBUTED_DEBUG=DETAIL, compares the arguments of calls between ranks.
        self._checker: Any = None
        if get_debug_level() == DebugLevel.DETAIL:
            helper = dist.ProcessGroupGloo(PrefixStore("checks", store), rank, size, timeout)
            gloo_backend = _ProcessGroupWrapper(gloo_backend, helper)
            # The wrapped group has one rank, so calls of the wrapper only compare arguments between ranks.
            self._checker = _ProcessGroupWrapper(dist.ProcessGroupGloo(HashStore(), 0, 1, timeout), helper)
        # A group of torch's own class, whose calls release the GIL; a Python subclass's do not.
        self._gloo = dist.ProcessGroup(store, rank, size)
        for group in (self, self._gloo):
            group._set_default_backend(_GLOO)
            for device in _DEVICES:
                group._register_backend(torch.device(device), _GLOO, gloo_backend)
        run_on_all_ranks(store, rank, size, warm_up)
        stall_s = None if timeout == default_pg_timeout else 0.9 * timeout.total_seconds()
        connect = connect_group if further else connect_rank
        backend: Any = None
        if size > 1 or not further:
            backend = run_on_all_ranks(store, rank, size, lambda: connect("", rank, size, store, stall_s))
        if isinstance(backend, str):
            if needs_job:
                raise HookConfigError(f"group of {size} ranks: has no job at the switch: {backend}")
            _log.warning("group of %d ranks: uses gloo, as %s", size, backend)
            backend = None
        # One thread: calls share one all-reduce, which cannot run two sums at once.
        self._queue = None if backend is None else SumQueue(backend, threads=1, owns_backend=True)
        self._sums = None if self._queue is None else TensorSums(self._queue, options.precise_up_to)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return torch's name of this group's backend."""
        return BACKEND

    def get_group_store(self) -> Any:
        """Return the store that all ranks of this group share."""
        return self._gloo.get_group_store()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]  # as torch calls it
        """Reduce each tensor, over the switch if it can, else by gloo.

        Raises HookConfigError if neither can.
        """
        tensors = tensors if isinstance(tensors, list) else [tensors]
        return self._reduce("allreduce", tensors, opts or dist.AllreduceOptions(), written=True)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce tensors of one type, as `allreduce` does."""
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._reduce("allreduce_coalesced", tensors, opts, written=True)

    def reduce(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]  # likewise
        """Reduce as `allreduce` does; only the root gets the result."""
        return self._reduce("reduce", tensors, opts, written=opts.rootRank == self.rank())

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]  # likewise
        """Send the root's tensor to all ranks, over the switch if it is dense, else by gloo.

        Raises HookConfigError for a tensor that is neither on cpu nor on cuda.
        """
        check_device("broadcast", tensors)
        (tensor,) = tensors
        if self._sums is None or tensor.layout != torch.strided:
            return call_gloo(self._gloo, "broadcast", tensors, opts)
        broadcast = functools.partial(self._sums.broadcast, root=opts.rootRank)
        return self._submit("broadcast", opts, tensors, broadcast)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks, by a sum of one word."""
        opts = opts or dist.BarrierOptions()
        if self._sums is None:
            return self._gloo.barrier(opts)
        if self._checker is not None:
            self._checker.barrier(opts).wait()
        return self._work("barrier", opts, [], self._sums.barrier)

    def shutdown(self) -> None:
        """Leave the job; called by `destroy_process_group`."""
        if self._queue is not None:
            self._queue.close()

    @property
    def failure(self) -> BaseException | None:
        """The error of the first call over the switch that failed, after which all fail; else None."""
        return None if self._queue is None else self._queue.failure

    def abort(self, reason: str = "the process group was aborted on this rank; make another") -> None:
        """Fail all calls over the switch, and leave the job, without waiting for other ranks."""
        if self._queue is not None:
            self._queue.abort(reason)

    def _reduce(self, name: str, tensors: list[torch.Tensor], opts: Any, *, written: bool) -> Any:
        """Reduce tensors, over the switch if it can, else by gloo; replace them if `written`."""
        if opts.reduceOp.op in SUMS:  # sparse complex tensors have no view as pairs of floats
            tensors = [torch.view_as_real(t) if t.is_complex() and not t.is_sparse else t for t in tensors]
        reduction = Reduction.of(name, tensors, opts)
        if self._sums is None or not all(map(reduction.by_switch, tensors)):
            return call_gloo(self._gloo, name, tensors, opts)
        sums = self._sums
        if not any(tensor.is_sparse for tensor in tensors):
            return self._submit(
                name, opts, tensors, functools.partial(sums.reduce, reduction=reduction), written
            )
        tables = [SparseTensor(tensor) for tensor in tensors]
        self._check_call(name, tensors, opts)

        def work() -> None:
            for table in tables:
                row_sum = sums.reduce_rows(table, reduction)
                if written:
                    row_sum.write()

        return self._work(name, opts, tensors, work)

    def _submit(
        self,
        name: str,
        opts: Any,
        tensors: list[torch.Tensor],
        result: Callable[[torch.Tensor], torch.Tensor],
        written: bool = True,
    ) -> dist.Work:
        """Queue a call that computes `result` of each tensor, and replaces the tensor by it if `written`."""
        self._check_call(name, tensors, opts)
        buckets = [Bucket(tensor.detach(), [tensor.shape]) for tensor in tensors]

        def work() -> None:
            for bucket in buckets:
                with bucket.buffer(on_host=True) as buffer:
                    total = result(buffer)
                    if written:
                        buffer.copy_(total)

        return self._work(name, opts, tensors, work)

    def _submit_pieces(
        self,
        name: str,
        opts: Any,
        pairs: list[tuple[list[torch.Tensor], list[torch.Tensor]]],
        result: Callable[[torch.Tensor], torch.Tensor],
    ) -> dist.Work:
        """Queue a call that computes `result` of the concatenated inputs, and writes it to the outputs.

        pairs: for each result, its output tensors, of equal size, and its input tensors.
        """
        all_outputs = [tensor for outputs, _ in pairs for tensor in outputs]
        flat = [torch.cat([tensor.detach().reshape(-1) for tensor in inputs]) for _, inputs in pairs]
        if self._checker is not None:
            for tensor in flat:
                if "gather" in name:
                    call_gloo(self._checker, "allgather", [[tensor.clone()]], [tensor], type(opts)()).wait()
                else:
                    output, inputs = [tensor.clone()], [[tensor]]
                    call_gloo(self._checker, "reduce_scatter", output, inputs, type(opts)()).wait()
        buckets = [Bucket(tensor, [tensor.shape]) for tensor in flat]

        def work() -> None:
            for bucket, (outputs, _) in zip(buckets, pairs, strict=True):
                with bucket.buffer(on_host=True) as buffer:
                    chunks = result(buffer).chunk(len(outputs)) if buffer.numel() else []
                for output, chunk in zip(outputs, chunks, strict=False):
                    output.detach().copy_(chunk.view(output.shape))

        return self._work(name, opts, all_outputs, work)

    def _check_call(self, name: str, tensors: list[torch.Tensor], opts: Any) -> None:
        """Raise torch's error unless all ranks make the same call, with tensors of equal type and shape."""
        if self._checker is not None:
            # Gloo has no reduction of sparse booleans.
            checked = [t.byte() if t.is_sparse and t.dtype == torch.bool else t for t in tensors]
            call_gloo(self._checker, name, checked, type(opts)()).wait()

    def _work(
        self, name: str, opts: Any, tensors: list[torch.Tensor], work: Callable[[], object]
    ) -> dist.Work:
        """Queue a call's work; return torch's handle, whose result are these tensors."""
        assert self._queue is not None
        # Torch stores `set_timeout`'s value there. A timeout of zero or below means that none was given.
        limit = opts.timeout if opts.timeout > timedelta(0) else self._backend.options._timeout
        return SwitchWork(self._queue.submit(work), tensors, name, limit)


def _forward_to_gloo(name: str) -> Callable[..., Any]:
    """Return a method that calls gloo's method of this name."""

    def call(self: SwitchProcessGroup, *arguments: Any, **options: Any) -> Any:
        if options:
            return getattr(self._gloo, name)(*arguments, **options)
        return call_gloo(self._gloo, name, *arguments)

    return call


for _name in filter(functools.partial(hasattr, dist.ProcessGroup), (*_GLOO_CALLS, *CALLS)):
    setattr(SwitchProcessGroup, _name, CALLS.get(_name) or _forward_to_gloo(_name))


def _new_group(distributed: Any, options: Any) -> Any:
    """Make a group for torch, from its `_DistributedBackendOptions` and the caller's `pg_options`.

    It is a further group if the default group already holds this process's seat.
    """
    if not isinstance(options, SwitchOptions | None):
        raise HookConfigError(f"pg_options: {options!r} is not for this backend; give SwitchOptions")
    return SwitchProcessGroup(
        distributed.store,
        distributed.group_rank,
        distributed.group_size,
        distributed.timeout,
        options,
        further=isinstance(dist.group.WORLD, SwitchProcessGroup),
    )


def register_backend() -> None:
    """Register `peelsum` with torch.distributed. Importing peelsum.torch calls this."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _new_group, extended_api=True, devices=_DEVICES)
