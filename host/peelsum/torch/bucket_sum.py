"""The sums of DDP's buckets, which replace gradients by their averages.

A bucket is an ordered list of parameters. DDP rebuilds its buckets after the first step; each new bucket gets
a sum of its own, and so do several that are summed together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
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
from peelsum.torch.buckets import Bucket, DenseBuckets, Names, SparseGradients, WaitingBuckets, summable
from peelsum.torch.errors import HookError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.settings import Settings, as_hooks
from peelsum.torch.sparse_sums import SparseTensor, average_rows
from peelsum.torch.stats import SumCost
from peelsum.torch.sum_queue import SumQueue

#: Replaces gradients by their averages in a step, as `average` does.
Average = Callable[[Mapping[Names, Bucket], int], Any]
_log = logging.getLogger("peelsum.torch")


def average(total: reducer.BucketSum, buckets: Mapping[Names, Bucket], step: int, *, on_host: bool) -> Any:
    """Replace gradients by their averages over workers, by `total`. Raises the all-reduce's errors.

    buckets: by the names of their parameters. on_host: whether `total` takes host arrays, as when it
    compresses, not tensors on the buckets' device.
    """
    names = list(chain(*buckets))
    shapes = [shape for bucket in buckets.values() for shape in bucket.shapes]
    if on_host and False not in [bucket.in_floats for bucket in buckets.values()]:
        arrays = chain(*[bucket.arrays() for bucket in buckets.values()])
        return total(dict(zip(names, arrays, strict=True)), shapes, step)
    with ExitStack() as opened:
        several = [opened.enter_context(one.gradients(on_host=on_host)) for one in buckets.values()]
        gradients = list(chain(*several))
        tensors = map(summable, gradients) if on_host else gradients
        replaced = True
        try:
            result = total(dict(zip(names, tensors, strict=True)), shapes, step)
        except InvalidRequestError as error:
            if all(gradient.dtype != torch.float64 for gradient in gradients):
                raise
            raise InvalidRequestError(f"{error}, or leave the hook out: DDP itself sums float64") from error
        except DeviceMemoryError as error:
            if error.result is None:
                raise
            result, replaced = error.result, False
        for gradient, name in zip(gradients, names, strict=True):
            if not replaced or gradient.dtype != torch.float32:
                gradient.copy_(torch.as_tensor(result[name].values).view(-1))
    return result


class BucketSums:
    """The sums of all buckets over one backend, to which `connect` or the first `submit` connects.

    history: from which forms are chosen. count: called with the result of every sum and the number of its
    buckets, on its thread.
    """

    def __init__(
        self, settings: Settings, reducer: Reducer, history: History, count: Callable[[SumCost, int], None]
    ) -> None:
        self._settings, self._reducer, self._history, self._count = settings, reducer, history, count
        self._groups: list[ProcessGroupSummation] = []
        #: The sum of each bucket, or of several, by the names of its parameters.
        self._sums: dict[Names, Average] = {}
        self._queue: SumQueue | None = None
        self._dense = DenseBuckets(settings.model if reducer.merges else None)
        self._sparse = SparseGradients()
        self._closed = False

    def connect(self, group: dist.ProcessGroup | None, gradients: torch.Tensor | None = None) -> SumQueue:
        """Connect the ranks of `group`, unless they are connected, and compile kernels.

        gradients: some of those that will be summed, by whose device the kernels are chosen.
        Raises HookError after `close`, and the errors of connecting.
        """
        if self._closed:
            raise _closed_error()
        if self._queue is None:
            settings = self._settings
            summation = connect(settings.over, group, settings.timeout_s, partial(self._warm_up, gradients))
            self._queue = SumQueue(summation, leave=settings.makes_backend)
            try:
                self._prepare(self._queue, group, gradients)
            except BaseException:
                self.close()
                raise
        return self._queue

    def _prepare(
        self, queue: SumQueue, group: dist.ProcessGroup | None, gradients: torch.Tensor | None
    ) -> None:
        """Make what sums need besides the queue."""
        settings = self._settings

        def new_group() -> ProcessGroupSummation:
            self._groups.append(ProcessGroupSummation("gloo", group, timeout_s=settings.timeout_s))
            return self._groups[-1]

        with as_hooks():
            self._reducer.connect(queue, new_group)
        if settings.network == "measured":
            network = measured(queue.backend, settings.beside(gradients).implementation or "cpu")
            self._settings = replace(settings, network=network)
            self._dense.network = network if self._reducer.merges else None
            _log.info("network: %s, as measured", self._settings.network)

    def _warm_up(self, gradients: torch.Tensor | None) -> None:
        warm_up(self._settings.beside(gradients).implementation or "cpu")
        self._reducer.warm_up()

    def submit(
        self,
        bucket: Bucket | SparseTensor,
        names: Names,
        step: int,
        group: dist.ProcessGroup | None,
        *,
        last: bool = True,
        within: int | None = None,
    ) -> Future[None]:
        """Queue the sum of a bucket, whose parameters have these names; return its future.

        last: False lets it wait for the next bucket, or for `flush`; sparse gradients wait for the last
        bucket. within: the backward pass, None outside.
        """
        if self._closed:
            refused: Future[None] = Future()
            refused.set_exception(_closed_error())
            return refused
        if self._queue is None:
            self.connect(group, bucket.tensor)
        waiting: WaitingBuckets[Any] = self._sparse if isinstance(bucket, SparseTensor) else self._dense
        if waiting.ended(names, within):
            self._flush(waiting, step)
        done = waiting.add(names, bucket)
        if last:
            self.flush(step)
        elif not waiting.wait():
            self._flush(waiting, step)
        return done

    def flush(self, step: int) -> None:
        """Queue the sums of the buckets that wait for others."""
        for waiting in (self._dense, self._sparse):
            if waiting.waiting:
                self._flush(waiting, step)

    def _flush(self, waiting: WaitingBuckets[Any], step: int) -> None:
        """Queue the sum of what waits there."""
        buckets, done = waiting.taken()
        queue, count = self._queue, self._count
        assert queue is not None
        if waiting is self._sparse:
            tensors, tables = list(buckets.values()), list(chain(*buckets))
            queue.submit(lambda: count(average_rows(queue, tensors, tables), len(tensors)), done, key="rows")
            return
        names = tuple(chain(*buckets))
        total = self._sums.get(names)
        if total is None:
            total = self._sums[names] = self._new_sum(next(iter(buckets.values())).tensor, names)
        learn = self._dense.learn if self._reducer.merges else None

        def work() -> None:
            result = total(buckets, step)
            if learn is not None:
                learn(buckets, result.tally.words_sent())
            count(result, len(buckets))

        queue.submit(self._reducer.before(work, step), done, key=names)

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
            buckets, done = waiting.taken()
            if buckets:
                done.set_exception(_closed_error())
        if queue is not None:
            try:
                queue.close()
            finally:
                for group in self._groups:
                    group.close()

    def _new_sum(self, gradients: torch.Tensor, names: Names) -> Average:
        """Return what averages the buckets of these parameters, whose gradients are on one device."""
        settings = self._settings.beside(gradients)
        with as_hooks():
            total = self._reducer.bucket(partial(settings.allreduce, names, self._history))
        return partial(average, total, on_host=settings.implementation == "cpu")


def _closed_error() -> HookError:
    return HookError("state: was closed; make a new one")
