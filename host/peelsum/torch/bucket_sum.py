"""The sums of DDP's buckets, which replace gradients by their averages.

A bucket is an ordered list of parameters. DDP rebuilds its buckets after the first step; each new bucket gets
a sum of its own, and so do several buckets that are summed together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from peelsum.allreduce import DeviceMemoryError, History, InvalidRequestError, measured
from peelsum.allreduce.history_loops import warm_up
from peelsum.allreduce.reducer import BucketSum, Reducer
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
Average = Callable[[Mapping[Names, Any], int], Any]
#: See `RunningStats.add`.
CountSum = Callable[[SumCost, int, Names, Ranks], None]
_log = logging.getLogger("peelsum.torch")


def average(bucket_sum: BucketSum, buckets: Mapping[Names, Bucket], step: int, *, on_host: bool) -> Any:
    """Replace the gradients of buckets by their averages over workers; return the result of `bucket_sum`.

    on_host: whether `bucket_sum` takes arrays in host memory instead of tensors on the buckets' device.
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

    group: the ranks that sum; None for all. count_sum: called after every sum, on the thread that summed.
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
        #: From which forms are chosen.
        self.history = history
        self._group, self._count_sum = group, count_sum
        #: Process groups that the reducer needs besides the backend.
        self._extra_groups: list[ProcessGroupSummation] = []
        #: The sum of each bucket, or of several together, by the names of the parameters.
        self._sums: dict[Names, Average] = {}
        #: None before a connection, and after `close`.
        self.queue: SumQueue | None = None
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
        if self.queue is None:
            settings = self._settings
            arguments = settings.over, self._group, settings.timeout_s, partial(self._warm_up, gradients)
            if settings.on_lost == "error":
                # The queue does not refer to this object, so that a state that is dropped leaves its job.
                self.queue = SumQueue(connect(*arguments), owns_backend=settings.owns_backend)
            else:
                self._changes = connect_members(*arguments, enters=settings.enters)
                self.queue = SumQueue(self._changes, owns_backend=True, on_change=self._forget)
            try:
                with hook_errors():
                    self._reducer.connect(self.queue, self._new_group)
                if settings.network == "measured":
                    self._measure(self.queue, gradients)
            except BaseException:
                self.close()
                raise
        return self.queue

    def _new_group(self) -> ProcessGroupSummation:
        """Return a process group for the reducer, which `close` closes."""
        group = ProcessGroupSummation("gloo", self._group, timeout_s=self._settings.timeout_s)
        self._extra_groups.append(group)
        return group

    def _measure(self, queue: SumQueue, gradients: torch.Tensor | None) -> None:
        """Measure the network by exchanges over the backend."""
        network = measured(queue.backend, self._settings.for_device_of(gradients).implementation or "cpu")
        self._settings = replace(self._settings, network=network)
        self._dense.network = network if self._merges else None
        _log.info("network: %s, as measured", network)

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
        if self.queue is None:
            self.connect(bucket.tensor)
        group: WaitingBuckets = self._sparse if isinstance(bucket, SparseTensor) else self._dense
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

    def _submit_waiting(self, group: WaitingBuckets, step: int) -> None:
        """Queue one sum of all buckets that wait in a group; it completes their common future.

        Work begins when earlier work of the same `key` is done. The reducer may decide before a dense sum.
        """
        buckets, future = group.take()
        queue = self.queue
        assert queue is not None
        find_average = partial(self._average_of, queue, buckets)
        work = _BucketWork(queue, buckets, step, find_average, self._count)
        if self._settings.on_lost == "error":
            work.begin()  # here, so that the caller gets its errors; the queue calls it again after each loss
        if group is self._sparse:
            queue.submit(work, future, key="rows")
        else:
            queue.submit(self._reducer.before(work, step), future, key=tuple(chain(*buckets)))

    def _average_of(self, queue: SumQueue, buckets: Mapping[Names, Any]) -> Average:
        """Return the function that averages these buckets, on the device of their gradients."""
        first, names = next(iter(buckets.values())), tuple(chain(*buckets))
        if isinstance(first, SparseTensor):
            return partial(average_rows, queue)
        average_buckets = self._sums.get(names)
        if average_buckets is None:
            settings = self._settings.for_device_of(first.tensor)
            with hook_errors():
                bucket_sum = self._reducer.bucket(partial(settings.allreduce, names, self.history))
            average_buckets = partial(average, bucket_sum, on_host=settings.implementation == "cpu")
            self._sums[names] = average_buckets
        return average_buckets

    def _count(self, result: SumCost, buckets: Mapping[Names, Any], members: Ranks) -> None:
        """Count a sum of buckets over these members."""
        if self._merges and (words := result.tally.words_sent()):
            self._dense.note_words(buckets, words)
        self._count_sum(result, len(buckets), tuple(chain(*buckets)), members)

    def _forget(self) -> None:
        """Make new sums, as the members have changed. What was learned from earlier ones remains."""
        self._sums = {}

    def begin_step(self, step: int, save: Callable[[], Mapping[str, Any]]) -> None:
        """Let ranks enter before this step, and send them the state that `save` returns."""
        if self.queue is not None and self.queue.begin_step(step):
            self._broadcast_state(save)

    def receive_state(self) -> Mapping[str, Any]:
        """Connect as a rank that enters a run; return the state of the others."""
        self.connect()
        return self._broadcast_state(dict).state()

    def _broadcast_state(self, save: Callable[[], Mapping[str, Any]]) -> StateBroadcast:
        queue, changes = self.queue, self._changes
        assert queue is not None
        assert changes is not None
        broadcast = StateBroadcast(changes, queue.sum_words, save)
        queue.submit(broadcast, key="state").result()
        changes.lacking.clear()
        return broadcast

    def abort(self, reason: str) -> None:
        """Leave the job as a rank that is lost, without waiting for others; later sums fail with `reason`."""
        self._closed = True
        queue, self.queue = self.queue, None
        assert queue is not None
        queue.abort(reason)
        queue.close()

    def drain(self) -> None:
        """Wait until all submitted sums are done or have failed."""
        if self.queue is not None:
            self.queue.drain()

    def close(self) -> None:
        """Leave the job once all sums are done. Raises what closing the backend raises."""
        self._closed = True
        queue, self.queue = self.queue, None
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


class _BucketWork:
    """The sum of buckets, as `RepeatableWork`. find_average: returns the function that averages them."""

    def __init__(
        self,
        queue: SumQueue,
        buckets: Mapping[Names, Any],
        step: int,
        find_average: Callable[[], Average],
        count: Callable[[SumCost, Mapping[Names, Any], Ranks], None],
    ) -> None:
        self._queue, self._buckets, self._step = queue, buckets, step
        self._find_average, self._count = find_average, count

    def begin(self) -> None:
        self._average = self._find_average()

    def __call__(self) -> None:
        with _naming_sums(self._buckets, self._step):
            result = self._average(self._buckets, self._step)
        self._count(result, self._buckets, self._queue.members)


@contextmanager
def _naming_sums(buckets: Iterable[Names], step: int) -> Iterator[None]:
    """Name step and parameters in the body's RankLostError."""
    try:
        yield
    except RankLostError as error:
        names = list(chain(*buckets))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise error.during(f"step {step}, average of {names[0]!r}{more}") from error


def _closed_error() -> HookError:
    return HookError("state: was closed; make a new one")
