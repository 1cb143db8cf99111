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

import torch
import torch.distributed as dist

from peelsum.allreduce import (
    Allreduce,
    DeviceMemoryError,
    History,
    InvalidRequestError,
    StepResult,
    Summation,
    measured,
)
from peelsum.allreduce.history_loops import warm_up
from peelsum.allreduce.plan import SUPPORTED_DTYPES, unsupported_dtype
from peelsum.compress import CompressedResult, CompressedSum, Memory
from peelsum.compress.loops import warm_up as warm_up_compressing
from peelsum.flexible import Method, SwitchPath
from peelsum.torch.backends import connect
from peelsum.torch.buckets import Bucket, Waiting, WaitingBuckets, summable
from peelsum.torch.decisions import Decisions, FlexibleSum, compressor_of
from peelsum.torch.errors import HookError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.routes import Routes, collectives_of, path_of
from peelsum.torch.settings import Settings
from peelsum.torch.sparse_sums import SparseSums, SparseTensor
from peelsum.torch.stats import SparseResult
from peelsum.torch.sum_queue import QueuedSummation, SumQueue

_log = logging.getLogger("peelsum.torch")


@dataclass
class BucketSum:
    """The sum of one bucket, or of several together, over all workers, in every step."""

    names: Sequence[str]
    """The names of the buckets' parameters, in order."""
    summation: QueuedSummation
    allreduce: Allreduce | CompressedSum | FlexibleSum
    on_host: bool
    """Whether `allreduce` takes host arrays, as when it compresses, not tensors on the bucket's device."""

    def run(self, buckets: Sequence[Bucket], step: int) -> StepResult | CompressedResult:
        """Replace the buckets' gradients by their averages over workers. Raises the all-reduce's errors."""
        if isinstance(self.allreduce, Allreduce) and self.on_host and all(one.in_floats for one in buckets):
            arrays = chain.from_iterable(one.arrays() for one in buckets)
            return self.allreduce.sum(dict(zip(self.names, arrays, strict=True)), in_place=True)
        with ExitStack() as opened:
            several = [opened.enter_context(one.gradients(on_host=self.on_host)) for one in buckets]
            gradients = list(chain.from_iterable(several))
            shapes = [shape for one in buckets for shape in one.shapes]
            try:
                result, replaced = self._summed(gradients, shapes, step)
            except InvalidRequestError as error:
                if all(gradient.dtype != torch.float64 for gradient in gradients):
                    raise
                raise InvalidRequestError(
                    f"{error}, or leave the hook out: DDP itself sums float64"
                ) from error
            for gradient, name in zip(gradients, self.names, strict=True):
                if replaced and gradient.dtype == torch.float32:
                    continue
                average = torch.as_tensor(result[name].values).view(-1)
                if average.data_ptr() != gradient.data_ptr():
                    gradient.copy_(average)
        return result

    def _summed(
        self, gradients: Sequence[torch.Tensor], shapes: Sequence[torch.Size], step: int
    ) -> tuple[StepResult | CompressedResult, bool]:
        """Return the result, and whether it has replaced gradients that are float32."""
        if isinstance(self.allreduce, Allreduce):
            tensors = map(summable, gradients) if self.on_host else gradients
            try:
                return self.allreduce.sum(dict(zip(self.names, tensors, strict=True)), in_place=True), True
            except DeviceMemoryError as error:
                if error.result is None:
                    raise
                return error.result, False
        for one, name in zip(gradients, self.names, strict=True):
            dtype = str(one.dtype).removeprefix("torch.")
            if dtype not in SUPPORTED_DTYPES:
                raise unsupported_dtype(name, dtype)
        shaped = (one.float().view(shape) for one, shape in zip(gradients, shapes, strict=True))
        named = {name: one.numpy() for name, one in zip(self.names, shaped, strict=True)}
        result = self.allreduce.sum(named, step)
        size, in_floats = sum(one.nbytes for one in gradients), sum(one.nbytes for one in named.values())
        return replace(result, dense_bytes=result.dense_bytes * size // max(in_floats, 1)), False


class BucketSums:
    """The sums of all buckets over one backend, to which `connect` or the first `submit` connects.

    memory, decisions: those of `settings`, or None. history: from which forms are chosen.
    count: called with the result of every sum and the number of its buckets, on its thread.
    """

    def __init__(
        self,
        settings: Settings,
        memory: Memory | None,
        history: History,
        decisions: Decisions | None,
        count: Callable[[StepResult | CompressedResult | SparseResult, int], None],
    ) -> None:
        self._settings, self._memory, self._history, self._count = settings, memory, history, count
        self._decisions, self._path = decisions, SwitchPath()
        self._group: ProcessGroupSummation | None = None
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
        if isinstance(summation, ProcessGroupSummation):
            self._group = summation
        elif settings.needs_group:
            # For what a switch cannot add up.
            self._group = ProcessGroupSummation("gloo", group, timeout_s=settings.timeout_s)
        if settings.network == "measured":
            network = measured(summation, settings.beside(gradients).implementation or "cpu")
            self._settings = replace(settings, network=network)
            self._waiting = WaitingBuckets(self._settings.model)
            _log.info("network: %s, as measured", self._settings.network)
        if self._decisions is not None:
            self._path = path_of(summation)
            self._decisions.connect(summation, self._group, self._path)

    def _warm_up(self, gradients: torch.Tensor | None) -> None:
        warm_up(self._settings.beside(gradients).implementation or "cpu")
        if self._memory is not None:
            warm_up_compressing()

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
        else:
            self.connect(group, bucket.buffer)
            done = self._submit_dense(bucket, names, step, last, within)
        if last:
            self.flush(step)
        return done

    def flush(self, step: int) -> None:
        """Queue the sums of the buckets that wait for others."""
        self._flush_dense(step)
        self._sparse.flush()

    def _submit_dense(
        self, bucket: Bucket, names: tuple[str, ...], step: int, last: bool, within: int | None
    ) -> Future[None]:
        if not self._settings.buckets_wait:
            return self._submit([bucket], names, step)
        if self._waiting.ended(names, within):
            self._flush_dense(step)
        done = self._waiting.add(bucket, names)
        if last or not self._waiting.wait():
            self._flush_dense(step)
        return done

    def _flush_dense(self, step: int) -> None:
        waiting = self._waiting.taken()
        if waiting:
            names = tuple(chain.from_iterable(one.names for one in waiting))
            self._submit([one.bucket for one in waiting], names, step, waiting)

    def _submit(
        self,
        buckets: Sequence[Bucket],
        names: tuple[str, ...],
        step: int,
        waiting: Sequence[Waiting] = (),
    ) -> Future[None]:
        """Queue the sum of buckets whose parameters have these names, in order."""
        queue = self._queue
        assert queue is not None
        if names not in self._sums:
            settings = self._settings.beside(buckets[0].buffer)
            self._sums[names] = self._new_sum(settings, queue, names)
        one, count, learn = self._sums[names], self._count, self._waiting.learn

        def work() -> None:
            result = one.run(buckets, step)
            if waiting and isinstance(result, StepResult):
                learn(waiting, result.tally.words_sent())
            elif waiting:
                learn(waiting, {one.name: one.words_sent for one in result.tensors})
            count(result, len(buckets))

        decisions = self._decisions
        decided = work if decisions is None else decisions.before(work, one.summation, step)
        return queue.submit(one.summation, decided, waiting[0].done if waiting else None)

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
                if self._group is not None and self._group is not queue.summation:
                    self._group.close()

    def _new_sum(self, settings: Settings, queue: SumQueue, names: tuple[str, ...]) -> BucketSum:
        summation, on_host = QueuedSummation(queue), settings.implementation == "cpu"
        if self._memory is None:
            return BucketSum(names, summation, settings.allreduce(summation, names, self._history), on_host)
        if self._decisions is not None:
            return BucketSum(names, summation, self._flexible(summation, names, self._decisions), on_host)
        assert settings.method is not None
        collectives = collectives_of(summation, self._group)
        compressed = settings.compressed(
            collectives, settings.method, names, self._memory, self._history, summation
        )
        return BucketSum(names, summation, compressed, on_host)

    def _flexible(self, queued: QueuedSummation, names: Sequence[str], decisions: Decisions) -> FlexibleSum:
        memory, history, settings = self._memory, self._history, self._settings
        routes = Routes(queued, self._group, self._path, decisions.meter, decisions.rider)
        assert memory is not None

        def make(method: Method, ratio: float) -> CompressedSum:
            return settings.compressed(
                routes.of(method), compressor_of(method, ratio), names, memory, history
            )

        return FlexibleSum(decisions, make)


def _closed_error() -> HookError:
    return HookError("state: was closed; make a new one")
