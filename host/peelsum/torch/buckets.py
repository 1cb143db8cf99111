"""The buckets of DDP's gradients: which of them are summed together, and the sums, which replace gradients.

A bucket is an ordered list of parameters. DDP rebuilds its buckets after the first step; each new bucket gets
a sum of its own, and so do several buckets that are summed together.

Theory of operation. For a small bucket, the round trips of the exchanges take longer than sending its words.
So it waits for further buckets, until sending the words of all that wait would take longer than the exchanges
that waiting saves. Every rank decides the same: DDP hands over buckets in the same order on all ranks, and
all ranks send equally many words for a sum. The words are those of earlier passes' sums, which are complete
on every rank when another pass begins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from peelsum.allreduce import DeviceMemoryError, History, InvalidRequestError, NetworkModel, measured
from peelsum.allreduce.allreduce import BucketSum, Reducer, Tensor
from peelsum.allreduce.history_loops import warm_up
from peelsum.codec import BFloat16
from peelsum.torch.backends import connect, connect_members
from peelsum.torch.errors import HookError
from peelsum.torch.member_changes import MemberChanges, Ranks, StateBroadcast
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.settings import HookSettings, hook_errors
from peelsum.torch.sparse_sums import SparseTensor, average_rows
from peelsum.torch.stats import MOST_SUMS, SumCost
from peelsum.torch.sum_queue import SumQueue
from peelsum.transport.lease import RankLostError

#: The names of a bucket's parameters.
Names = tuple[str, ...]
#: Replaces the gradients of buckets by their averages in a step, as `average` does.
Average = Callable[[Mapping[Names, Any], int], Any]
#: See `RunningStats.add`.
CountSum = Callable[[SumCost, int, Names, Ranks], None]
_log = logging.getLogger("peelsum.torch")
#: The exchanges of most sums: header and values.
_EXCHANGES = 2
#: Buckets that were summed together stay together until they take this many times the words.
_HYSTERESIS = 2.0
#: Sparse parameters of which it is kept that they have been summed.
_MOST_TABLES = 1 << 14


class Bucket:
    """A flat tensor of gradients, of which `shapes[i]` is the shape of parameter i's.

    It has the content that the stream of the thread that makes this object writes before.
    """

    def __init__(self, tensor: torch.Tensor, shapes: Sequence[torch.Size]) -> None:
        self.tensor, self.shapes = tensor, shapes
        #: Whether the gradients are float32 in host memory, so that `arrays` shares their memory.
        self.is_host_float32 = not tensor.is_cuda and tensor.dtype == torch.float32
        #: On a GPU, the event after which the gradients have been written.
        self._written = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    @contextmanager
    def gradients(self, *, on_host: bool) -> Iterator[Sequence[torch.Tensor]]:
        """Yield one flat tensor for each parameter; writes go back to the bucket. See `buffer`."""
        with self.buffer(on_host=on_host) as buffer:
            yield torch.split(buffer, [shape.numel() for shape in self.shapes])

    @contextmanager
    def buffer(self, *, on_host: bool) -> Iterator[torch.Tensor]:
        """Yield the flat tensor, for work on this thread's stream; writes go back to the bucket.

        on_host: yield a copy in host memory if the bucket is on a GPU, and copy it back afterwards.
        """
        if self._written is None:
            yield self.tensor
            return
        stream = _STREAMS.on(self.tensor.device)
        stream.wait_event(self._written)
        with torch.cuda.stream(stream):
            buffer = self.tensor
            if on_host:
                buffer = torch.empty_like(self.tensor, device="cpu", pin_memory=True)
                buffer.copy_(self.tensor, non_blocking=True)
                stream.synchronize()
            yield buffer
            if on_host:
                self.tensor.copy_(buffer, non_blocking=True)
        stream.synchronize()

    def arrays(self) -> list[NDArray[np.float32]]:
        """Return one flat array for each parameter, if `is_host_float32`: faster than torch.split."""
        flat, end, arrays = self.tensor.numpy(), 0, []
        for shape in self.shapes:
            begin, end = end, end + shape.numel()
            arrays.append(flat[begin:end])
        return arrays


class _Streams(threading.local):
    """A CUDA stream for each thread and device, so that the buckets of two threads overlap."""

    def __init__(self) -> None:
        self._by_device: dict[torch.device, torch.cuda.Stream] = {}

    def on(self, device: torch.device) -> torch.cuda.Stream:
        """Return this thread's stream on a device."""
        if device not in self._by_device:
            self._by_device[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._by_device[device]


_STREAMS = _Streams()


def as_array(tensor: torch.Tensor) -> Tensor:
    """Return a flat host tensor in the type that the all-reduce takes; memory is shared."""
    if tensor.dtype == torch.bfloat16:
        return BFloat16(tensor.view(torch.int16).numpy().view(np.uint16))
    array: Tensor = tensor.numpy()
    return array


class WaitingBuckets:
    """Buckets of one backward pass that wait to be summed together. Subclasses decide how long."""

    def __init__(self) -> None:
        #: The buckets, by their parameters' names, in order.
        self.buckets: dict[Names, Any] = {}
        #: The future of their sum.
        self.future: Future[None] = Future()
        #: The id of their backward pass; None outside of any.
        self._pass_id: int | None = None

    def ends_before(self, names: Names, pass_id: int | None) -> bool:
        """Return whether the buckets that wait must be summed before the bucket `names` of a pass is added.

        They must if that pass is another one, e.g. one inside of the first. If the bucket itself waits, its
        pass has failed: all that wait are dropped, because their gradients have been replaced.
        """
        if names in self.buckets:
            self.take()[1].set_exception(HookError("sum: its backward pass ended before the last bucket"))
        previous, self._pass_id = self._pass_id, pass_id
        return bool(self.buckets) and previous != pass_id

    def should_wait(self) -> bool:
        """Return whether the buckets wait for another one."""
        raise NotImplementedError

    def take(self) -> tuple[Mapping[Names, Any], Future[None]]:
        """Remove all buckets; return them and the future of their sum."""
        buckets, future = self.buckets, self.future
        self.buckets, self.future = {}, Future()
        return buckets, future


class DenseBuckets(WaitingBuckets):
    """Dense buckets, which wait while they are small. Without a network model they never wait."""

    def __init__(self, network: NetworkModel | None) -> None:
        super().__init__()
        self.network = network
        #: Words of each bucket's last sum.
        self._words: dict[Names, int] = {}
        #: Lists of buckets that waited for another one the last time.
        self._waited: set[tuple[Names, ...]] = set()

    def should_wait(self) -> bool:
        """Return whether sending their words takes less time than the exchanges that waiting saves."""
        names = tuple(self.buckets)
        if self.network is None or not self._words.keys() >= self.buckets.keys():
            return False
        saved_s = _EXCHANGES * self.network.round_trip_s * (_HYSTERESIS if names in self._waited else 1.0)
        waits = self.network.seconds(sum(map(self._words.__getitem__, names)), 0) <= saved_s
        (self._waited.add if waits else self._waited.discard)(names)
        return waits

    def note_words(self, buckets: Iterable[Names], words: Mapping[str, int]) -> None:
        """Store how many words the sum of buckets took for each parameter, for the next pass."""
        for names in buckets:
            self._words[names] = sum(map(words.__getitem__, names))

    def forget(self) -> None:
        """Forget the words of all buckets, which then do not wait in their next pass."""
        self._words.clear()
        self._waited.clear()


class SparseGradients(WaitingBuckets):
    """Gradients of sparse tables, which wait for the end of their backward pass.

    A parameter's first gradient does not wait: in the first pass of a static graph DDP marks no bucket as the
    last one, and waits for all sums before the pass ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._summed_before: set[Names] = set()

    def should_wait(self) -> bool:
        """Return whether all of them have been summed before."""
        all_known = self._summed_before >= self.buckets.keys()
        if len(self._summed_before) >= _MOST_TABLES:
            self.forget()
        self._summed_before |= self.buckets.keys()
        return all_known

    def forget(self) -> None:
        """Forget which parameters have been summed: the next gradient of each does not wait."""
        self._summed_before.clear()


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
        #: The names of sums in the order in which they were last submitted, which is the same on all ranks,
        #: and how often the step had changed until then.
        self._recent: dict[Names, int] = {}
        self._step, self._step_changes = -1, 0
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
        """Compile the kernels of sums of gradients on this device, which may not be the current one."""
        on_gpu = gradients if gradients is not None and gradients.is_cuda else None
        with nullcontext() if on_gpu is None else torch.cuda.device(on_gpu.device):
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
        work = _BucketWork(self, queue, buckets, step)
        if self._settings.on_lost == "error":
            work.begin()  # here, so that the caller gets its errors; the queue calls it again after each loss
        if group is self._sparse:
            queue.submit(work, future, key="rows")
        else:
            if step != self._step:
                self._step, self._step_changes = step, self._step_changes + 1
                if len(self._recent) >= MOST_SUMS:
                    self._forget_oldest(queue)
            names = tuple(chain(*buckets))
            queue.submit(self._reducer.before(work, step), future, key=names)
            self._recent.pop(names, None)
            self._recent[names] = self._step_changes

    def _forget_oldest(self, queue: SumQueue) -> None:
        """Forget the half of the sums that were not used for longest, except those of the last two steps.

        In the history, the tensors of the others remain. Parameters that are summed in ever different groups,
        or whose modules are replaced, thus do not add up; but a module of many groups keeps its history. All
        ranks forget the same sums, before the first sum of a step: then none waits for a sum of this step.
        """
        oldest = [
            names
            for names in islice(self._recent, len(self._recent) - MOST_SUMS // 2)
            if self._recent[names] < self._step_changes - 2
        ]
        if not oldest:
            return
        queue.drain()
        for names in oldest:
            del self._recent[names]
            self._sums.pop(names, None)
        queue.forget(oldest)
        self._dense.forget()
        self.history.keep_only(set(chain(*self._recent)))

    def average_of(self, queue: SumQueue, buckets: Mapping[Names, Any]) -> Average:
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

    def count(self, result: SumCost, buckets: Mapping[Names, Any], members: Ranks) -> None:
        """Count a sum of buckets over these members."""
        if self._merges and (words := result.summary.words_sent()):
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
        # The rank that enters has summed nothing before.
        queue.forget(self._recent)
        self._recent.clear()
        self._sparse.forget()
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
    """One sum of buckets, as `RepeatableWork`."""

    def __init__(self, sums: BucketSums, queue: SumQueue, buckets: Mapping[Names, Any], step: int) -> None:
        self._sums, self._queue, self._buckets, self._step = sums, queue, buckets, step

    def begin(self) -> None:
        self._average = self._sums.average_of(self._queue, self._buckets)

    def __call__(self) -> None:
        try:
            result = self._average(self._buckets, self._step)
        except RankLostError as error:
            names = list(chain(*self._buckets))
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise error.during(f"step {self._step}, average of {names[0]!r}{more}") from error
        self._sums.count(result, self._buckets, self._queue.members)


def _closed_error() -> HookError:
    return HookError("state: was closed; make a new one")
