"""The sums of DDP's buckets, which replace gradients by their averages.

A bucket is an ordered list of parameters. DDP rebuilds its buckets after the first step; each new bucket gets
a `BucketSum` of its own, and so do several that are summed together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
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
from peelsum.torch.backends import connect
from peelsum.torch.buckets import Bucket, WaitingBuckets, summable
from peelsum.torch.errors import HookError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.settings import Settings, as_hooks
from peelsum.torch.sparse_sums import SparseSums, SparseTensor
from peelsum.torch.stats import SumCost
from peelsum.torch.sum_queue import QueuedSummation, SumQueue

_log = logging.getLogger("peelsum.torch")


@dataclass
class BucketSum:
    """The sum of one bucket, or of several together, over all workers, in every step."""

    names: Sequence[str]
    """The names of the buckets' parameters, in order."""
    turns: QueuedSummation
    total: reducer.BucketSum
    on_host: bool
    """Whether `total` takes host arrays, as when it compresses, not tensors on the bucket's device."""

    def run(self, buckets: Sequence[Bucket], step: int) -> Any:
        """Replace the buckets' gradients by their averages over workers. Raises the all-reduce's errors."""
        shapes = buckets[0].shapes if len(buckets) == 1 else list(chain(*[one.shapes for one in buckets]))
        if self.on_host and False not in [one.in_floats for one in buckets]:
            arrays = chain(*[one.arrays() for one in buckets])
            return self.total(dict(zip(self.names, arrays, strict=True)), shapes, step)
        with ExitStack() as opened:
            several = [opened.enter_context(one.gradients(on_host=self.on_host)) for one in buckets]
            gradients = list(chain(*several))
            tensors = map(summable, gradients) if self.on_host else gradients
            replaced = True
            try:
                result = self.total(dict(zip(self.names, tensors, strict=True)), shapes, step)
            except InvalidRequestError as error:
                if all(gradient.dtype != torch.float64 for gradient in gradients):
                    raise
                raise InvalidRequestError(
                    f"{error}, or leave the hook out: DDP itself sums float64"
                ) from error
            except DeviceMemoryError as error:
                if error.result is None:
                    raise
                result, replaced = error.result, False
            for gradient, name in zip(gradients, self.names, strict=True):
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
        self._sums: dict[tuple[str, ...], BucketSum] = {}
        self._queue: SumQueue | None = None
        self._waiting = WaitingBuckets(settings.model)
        self._sparse = SparseSums(count)
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
                self._prepare(summation, group, gradients)
            except BaseException:
                self.close()
                raise
        return self._queue

    def _prepare(
        self, summation: Summation, group: dist.ProcessGroup | None, gradients: torch.Tensor | None
    ) -> None:
        """Make what sums need besides the summation."""
        settings = self._settings

        def new_group() -> ProcessGroupSummation:
            self._groups.append(ProcessGroupSummation("gloo", group, timeout_s=settings.timeout_s))
            return self._groups[-1]

        with as_hooks():
            self._reducer.connect(summation, new_group)
        if settings.network == "measured":
            network = measured(summation, settings.beside(gradients).implementation or "cpu")
            self._settings = replace(settings, network=network)
            self._waiting = WaitingBuckets(self._settings.model)
            _log.info("network: %s, as measured", self._settings.network)

    def _warm_up(self, gradients: torch.Tensor | None) -> None:
        warm_up(self._settings.beside(gradients).implementation or "cpu")
        self._reducer.warm_up()

    def submit(
        self,
        bucket: Bucket | SparseTensor,
        names: tuple[str, ...],
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
        if isinstance(bucket, SparseTensor):
            queue = self.connect(group, bucket.tensor)
            done = self._sparse.add(queue, bucket, names[0], within)
            if last:
                self._flush_dense(step)
        else:
            if self._queue is None:
                self.connect(group, bucket.buffer)
            done = self._submit_dense(bucket, names, step, last, within)
        if last:
            self._sparse.flush()
        return done

    def flush(self, step: int) -> None:
        """Queue the sums of the buckets that wait for others."""
        self._flush_dense(step)
        self._sparse.flush()

    def _submit_dense(
        self, bucket: Bucket, names: tuple[str, ...], step: int, last: bool, within: int | None
    ) -> Future[None]:
        if not self._reducer.merges:
            return self._submit([bucket], names, step, Future())
        if self._waiting.ended(names, within):
            self._flush_dense(step)
        done = self._waiting.add(bucket, names)
        if last or not self._waiting.wait():
            self._flush_dense(step)
        return done

    def _flush_dense(self, step: int) -> None:
        waiting = self._waiting.taken()
        if waiting:
            waited = [one.names for one in waiting]
            names = waited[0] if len(waited) == 1 else tuple(chain(*waited))
            self._submit([one.bucket for one in waiting], names, step, waiting[0].done, waited)

    def _submit(
        self,
        buckets: Sequence[Bucket],
        names: tuple[str, ...],
        step: int,
        done: Future[None],
        waited: Sequence[tuple[str, ...]] = (),
    ) -> Future[None]:
        """Queue the sum of buckets whose parameters have these names, in order; return `done`.

        waited: the names of each bucket, if the words of their sums say whether they will wait again.
        """
        queue = self._queue
        assert queue is not None
        bucket_sum = self._sums.get(names)
        if bucket_sum is None:
            bucket_sum = self._sums[names] = self._new_sum(buckets[0].buffer, queue, names)
        count, learn = self._count, self._waiting.learn

        def work() -> None:
            result = bucket_sum.run(buckets, step)
            if waited:
                learn(waited, result.tally.words_sent())
            count(result, len(buckets))

        return queue.submit(bucket_sum.turns, self._reducer.before(work, bucket_sum.turns, step), done)

    def drain(self) -> None:
        """Wait until all submitted sums are done or have failed."""
        if self._queue is not None:
            self._queue.drain()

    def close(self) -> None:
        """Leave the job once all sums are done. Raises what closing the backend raises."""
        self._closed = True
        queue, self._queue = self._queue, None
        self._sums.clear()
        self._sparse = SparseSums(self._count)
        if queue is not None:
            try:
                queue.close()
            finally:
                for group in self._groups:
                    group.close()

    def _new_sum(self, buffer: torch.Tensor, queue: SumQueue, names: tuple[str, ...]) -> BucketSum:
        settings, turns = self._settings.beside(buffer), QueuedSummation(queue)
        with as_hooks():
            total = self._reducer.bucket(turns, partial(settings.allreduce, names, self._history))
        return BucketSum(names, turns, total, settings.implementation == "cpu")


def _closed_error() -> HookError:
    return HookError("state: was closed; make a new one")
