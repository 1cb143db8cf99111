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
    measured,
    reducer,
)
from peelsum.allreduce.history_loops import warm_up
from peelsum.allreduce.reducer import Reducer
from peelsum.torch.backends import connect
from peelsum.torch.buckets import Bucket, DenseBuckets, Names, SparseGradients, WaitingBuckets, as_array
from peelsum.torch.errors import HookError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.settings import HookSettings, hook_errors
from peelsum.torch.sparse_sums import SparseTensor, average_rows
from peelsum.torch.stats import SumCost
from peelsum.torch.sum_queue import SumQueue
from peelsum.transport.lease import RankLostError

#: Replaces the gradients of buckets by their averages in a step, as `average` does.
Average = Callable[[Mapping[Names, Bucket], int], Any]
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
        count_sum: Callable[[SumCost, int], None],
    ) -> None:
        self._settings, self._reducer, self._history = settings, reducer, history
        self._group, self._count_sum = group, count_sum
        #: Process groups that the reducer needs besides the backend.
        self._extra_groups: list[ProcessGroupSummation] = []
        #: The sum of each bucket, or of several together, by the names of the parameters.
        self._sums: dict[Names, Average] = {}
        self._queue: SumQueue | None = None
        self._dense = DenseBuckets(settings.model if reducer.can_merge_buckets else None)
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
            backend = connect(settings.over, self._group, settings.timeout_s, compile_kernels)
            self._queue = SumQueue(backend, owns_backend=settings.owns_backend)
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
            self._dense.network = network if self._reducer.can_merge_buckets else None
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
        """Queue one sum of all buckets that wait in a group."""
        buckets, future = group.take()
        queue, count_sum = self._queue, self._count_sum
        assert queue is not None
        names = tuple(chain(*buckets))
        if group is self._sparse:
            tensors = list(buckets.values())

            def work_on_rows() -> None:
                with _naming_sums(names, step):
                    count_sum(average_rows(queue, tensors, names), len(tensors))

            queue.submit(work_on_rows, future, key="rows")
            return
        bucket_sum = self._sums.get(names)
        if bucket_sum is None:
            bucket_sum = self._new_sum(next(iter(buckets.values())).tensor, names)
            self._sums[names] = bucket_sum
        note_words = self._dense.note_words if self._reducer.can_merge_buckets else None

        def work() -> None:
            with _naming_sums(names, step):
                result = bucket_sum(buckets, step)
            if note_words is not None:
                note_words(buckets, result.tally.words_sent())
            count_sum(result, len(buckets))

        queue.submit(self._reducer.before(work, step), future, key=names)

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
            bucket_sum = self._reducer.bucket(partial(settings.allreduce, names, self._history))
        return partial(average, bucket_sum, on_host=settings.implementation == "cpu")


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
