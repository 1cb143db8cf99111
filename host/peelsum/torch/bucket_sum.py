"""The sums of DDP's buckets, which replace gradients by their averages.

A bucket is an ordered list of parameters. DDP rebuilds its buckets after the first step; each new bucket gets
a sum of its own, and so do several buckets that are summed together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from peelsum.allreduce import (
    DeviceMemoryError,
    History,
    InvalidRequestError,
    Summation,
    measured,
    reducer,
)
from peelsum.allreduce.history_loops import warm_up
from peelsum.allreduce.reducer import Reducer
from peelsum.torch.backends import connect, connect_members
from peelsum.torch.buckets import Bucket, DenseBuckets, Names, SparseGradients, WaitingBuckets, as_array
from peelsum.torch.errors import HookError
from peelsum.torch.member_changes import MemberChanges, Ranks, StateBroadcast
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.settings import HookSettings, hook_errors
from peelsum.torch.sparse_sums import SparseTensor, average_rows
from peelsum.torch.stats import SumCost
from peelsum.torch.sum_queue import SumQueue
from peelsum.transport.lease import RankLostError

#: Replaces the gradients of buckets by their averages in a step, as `average` does.
Average = Callable[[Mapping[Names, Bucket], int], Any]
#: Called with the result of a sum, its number of buckets, the names of its parameters, and its members.
CountSum = Callable[[SumCost, int, Names, Ranks], None]
_log = logging.getLogger("peelsum.torch")


def average(
    bucket_sum: reducer.BucketSum, buckets: Mapping[Names, Bucket], step: int, *, on_host: bool
) -> Any:
    """Replace the gradients of buckets by their averages over workers; return the sum's result.

    bucket_sum: computes the averages. buckets: by the names of their parameters. on_host: whether
    `bucket_sum` takes arrays in host memory instead of tensors on the buckets' device.
    Raises the errors of the all-reduce.
    """
    names, shapes, shares_memory = list(chain(*buckets)), list[torch.Size](), on_host
    for bucket in buckets.values():
        shapes += bucket.shapes
        shares_memory &= bucket.is_host_float32
    if shares_memory:
        arrays = chain.from_iterable(map(Bucket.arrays, buckets.values()))
        return bucket_sum(dict(zip(names, arrays, strict=True)), shapes, step)
    with ExitStack() as stack:
        copies = [stack.enter_context(bucket.gradients(on_host=on_host)) for bucket in buckets.values()]
        gradients = list(chain(*copies))
        tensors = map(as_array, gradients) if on_host else gradients
        written_in_place = True
        try:
            result = bucket_sum(dict(zip(names, tensors, strict=True)), shapes, step)
        except InvalidRequestError as error:
            if all(gradient.dtype != torch.float64 for gradient in gradients):
                raise
            raise InvalidRequestError(f"{error}, or leave the hook out: DDP itself sums float64") from error
        except DeviceMemoryError as error:
            if error.result is None:
                raise
            result, written_in_place = error.result, False
        for gradient, name in zip(gradients, names, strict=True):
            if not written_in_place or gradient.dtype != torch.float32:
                gradient.copy_(torch.as_tensor(result[name].values).view(-1))
    return result


class BucketSums:
    """The sums of all buckets over one backend, to which `connect` or the first `submit` connects.

    history: from which forms are chosen. group: the ranks that sum; None for all. count_sum: called with the
    result of every sum and the number of its buckets, on the thread that summed.
    """

    def __init__(
        self,
        settings: HookSettings,
        reducer: Reducer,
        history: History,
        group: dist.ProcessGroup | None,
        count_sum: CountSum,
    ) -> None:
        self._settings, self._reducer = settings, reducer
        #: What forms are chosen by.
        self.history = history
        self._group, self._count_sum = group, count_sum
        #: Process groups that the reducer needs besides the backend.
        self._extra_groups: list[ProcessGroupSummation] = []
        #: The sum of each bucket, or of several together, by the names of the parameters.
        self._sums: dict[Names, Average] = {}
        self._queue: SumQueue | None = None
        #: The changes of the members; None if a loss is an error, and before a connection.
        self._changes: MemberChanges | None = None
        #: Whether buckets are merged. After a loss, ranks would merge them by different statistics.
        self._merges = reducer.can_merge_buckets and settings.on_lost == "error"
        self._dense = DenseBuckets(settings.model if self._merges else None)
        self._sparse = SparseGradients()
        self._closed = False

    def connect(self, gradients: torch.Tensor | None = None) -> SumQueue:
        """Connect the ranks of the group, unless they are connected, and compile kernels.

        gradients: a tensor on the device for which kernels are compiled.
        Raises HookError after `close`, and the errors of connecting.
        """
        if self._closed:
            raise _closed_error()
        if self._queue is None:
            settings = self._settings
            compile_kernels = partial(self._warm_up, gradients)
            arguments = settings.over, self._group, settings.timeout_s, compile_kernels
            backend: Summation
            if settings.on_lost == "error":
                backend = connect(*arguments)
            else:
                backend = self._changes = connect_members(*arguments, enters=settings.enters)
            self._queue = SumQueue(backend, owns_backend=settings.owns_backend, on_change=self._forget)
            try:
                self._connect_reducer(self._queue, gradients)
            except BaseException:
                self.close()
                raise
        return self._queue

    def _connect_reducer(self, queue: SumQueue, gradients: torch.Tensor | None) -> None:
        """Connect the reducer to the queue, and measure the network if the settings ask for it."""
        settings = self._settings

        def new_group() -> ProcessGroupSummation:
            self._extra_groups.append(
                ProcessGroupSummation("gloo", self._group, timeout_s=settings.timeout_s)
            )
            return self._extra_groups[-1]

        with hook_errors():
            self._reducer.connect(queue, new_group)
        if settings.network == "measured":
            network = measured(queue.backend, settings.for_device_of(gradients).implementation or "cpu")
            self._settings = replace(settings, network=network)
            self._dense.network = network if self._merges else None
            _log.info("network: %s, as measured", self._settings.network)

    def _warm_up(self, gradients: torch.Tensor | None) -> None:
        """Compile the kernels of sums of gradients on this device."""
        warm_up(self._settings.for_device_of(gradients).implementation or "cpu")
        self._reducer.warm_up()

    def submit(
        self,
        bucket: Bucket | SparseTensor,
        names: Names,
        step: int,
        *,
        last: bool = True,
        pass_id: int | None = None,
    ) -> Future[None]:
        """Queue the sum of a bucket, whose parameters have these names; return its future.

        last: False lets it wait for the next bucket, or for `flush`; sparse gradients wait for the last
        bucket. pass_id: the id of the backward pass; None outside of any.
        """
        if self._closed:
            refused: Future[None] = Future()
            refused.set_exception(_closed_error())
            return refused
        if self._queue is None:
            self.connect(bucket.tensor)
        group: WaitingBuckets[Any] = self._sparse if isinstance(bucket, SparseTensor) else self._dense
        if group.ends_before(names, pass_id):
            self._submit_waiting(group, step)
        group.buckets[names], future = bucket, group.future
        if last:
            self.flush(step)
        elif not group.should_wait():
            self._submit_waiting(group, step)
        return future

    def flush(self, step: int) -> None:
        """Queue the sums of the buckets that wait for others."""
        for group in (self._dense, self._sparse):
            if group.buckets:
                self._submit_waiting(group, step)

    def _submit_waiting(self, group: WaitingBuckets[Any], step: int) -> None:
        """Queue one sum of all buckets that wait in a group; it completes their common future.

        Work begins when earlier work of the same `key` is done. The reducer may decide before a dense sum.
        """
        buckets, future = group.take()
        queue, count_sum = self._queue, self._count_sum
        assert queue is not None
        names = tuple(chain(*buckets))
        work: _DenseWork | _SparseWork
        if group is self._sparse:
            work = _SparseWork(queue, count_sum, buckets, names, step)
            queue.submit(work, future, key="rows")
            return
        work = _DenseWork(self, queue, buckets, names, step)
        if self._settings.on_lost == "error":
            work.begin()  # here, so that the caller gets its errors; the queue calls it again after each loss
        queue.submit(self._reducer.before(work, step), future, key=names)

    def average_of(self, names: Names, gradients: torch.Tensor) -> Average:
        """Return the function that averages the buckets of these parameters, on the device of `gradients`."""
        average_buckets = self._sums.get(names)
        if average_buckets is None:
            average_buckets = self._sums[names] = self._new_sum(gradients, names)
        return average_buckets

    def count(self, result: SumCost, buckets: Mapping[Names, Bucket], names: Names, members: Ranks) -> None:
        """Count a sum of buckets over these members."""
        if self._merges:
            self._dense.note_words(buckets, result.tally.words_sent())
        self._count_sum(result, len(buckets), names, members)

    def _forget(self) -> None:
        """Make new sums, as the members have changed. What was learned from earlier ones remains."""
        self._sums = {}

    @property
    def members(self) -> Ranks:
        """The ranks that sum now; () before a connection."""
        return () if self._queue is None else self._queue.members

    @property
    def rank(self) -> int | None:
        """This rank's number among `members`; None before a connection."""
        if self._changes is not None:
            return self._changes.rank
        return None if self._queue is None else self._queue.worker_id

    def begin_step(self, step: int, save: Callable[[], Mapping[str, Any]]) -> None:
        """Let ranks enter before this step, and send them the state that `save` returns."""
        if self._queue is not None and self._queue.begin_step(step):
            self._broadcast_state(save)

    def receive_state(self) -> Mapping[str, Any]:
        """Connect as a rank that enters a run; return the state of the others."""
        self.connect()
        return self._broadcast_state(dict).state()

    def _broadcast_state(self, save: Callable[[], Mapping[str, Any]]) -> StateBroadcast:
        queue, changes = self._queue, self._changes
        assert queue is not None
        assert changes is not None
        broadcast = StateBroadcast(changes, queue.sum_words, save)
        queue.submit(broadcast, key="state").result()
        changes.lacking.clear()
        return broadcast

    def abort(self, reason: str) -> None:
        """Leave the job as a rank that is lost, without waiting for others; later sums fail with `reason`."""
        self._closed = True
        queue, self._queue = self._queue, None
        assert queue is not None
        queue.abort(reason)
        queue.close()

    def drain(self) -> None:
        """Wait until all submitted sums are done or have failed."""
        if self._queue is not None:
            self._queue.drain()

    def close(self) -> None:
        """Leave the job once all sums are done. Raises what closing the backend raises."""
        self._closed = True
        queue, self._queue = self._queue, None
        self._sums.clear()
        for waiting in (self._dense, self._sparse):
            buckets, future = waiting.take()
            if buckets:
                future.set_exception(_closed_error())
        if queue is not None:
            try:
                queue.close()
            finally:
                for group in self._extra_groups:
                    group.close()

    def _new_sum(self, gradients: torch.Tensor, names: Names) -> Average:
        """Return a function that averages the buckets of these parameters, on the device of `gradients`."""
        settings = self._settings.for_device_of(gradients)
        with hook_errors():
            bucket_sum = self._reducer.bucket(partial(settings.allreduce, names, self.history))
        return partial(average, bucket_sum, on_host=settings.implementation == "cpu")


class _DenseWork:
    """The sum of dense buckets, as `RepeatableWork`."""

    def __init__(
        self, sums: BucketSums, queue: SumQueue, buckets: Mapping[Names, Bucket], names: Names, step: int
    ) -> None:
        """names: of the parameters of all buckets."""
        self._sums, self._queue, self._buckets = sums, queue, buckets
        self._names, self._step = names, step

    def begin(self) -> None:
        tensor = next(iter(self._buckets.values())).tensor
        self._average = self._sums.average_of(self._names, tensor)

    def __call__(self) -> None:
        with _naming_sums(self._names, self._step):
            result = self._average(self._buckets, self._step)
        self._sums.count(result, self._buckets, self._names, self._queue.members)


class _SparseWork:
    """The sum of sparse gradients, as `RepeatableWork`."""

    def __init__(
        self,
        queue: SumQueue,
        count_sum: CountSum,
        tensors: Mapping[Names, SparseTensor],
        names: Names,
        step: int,
    ) -> None:
        self._queue, self._count_sum, self._tensors = queue, count_sum, list(tensors.values())
        self._names, self._step = names, step

    def begin(self) -> None:
        """Do nothing: sums by rows learn nothing from earlier ones."""

    def __call__(self) -> None:
        with _naming_sums(self._names, self._step):
            result = average_rows(self._queue, self._tensors, self._names)
        self._count_sum(result, len(self._tensors), self._names, self._queue.members)


@contextmanager
def _naming_sums(names: Names, step: int) -> Iterator[None]:
    """Name step and parameters in the body's RankLostError."""
    try:
        yield
    except RankLostError as error:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise error.during(f"step {step}, average of {names[0]!r}{more}") from error


def _closed_error() -> HookError:
    return HookError("state: was closed; make a new one")
