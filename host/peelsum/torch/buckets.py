"""A bucket's gradients as sums take them, and the buckets of a backward pass that wait to be summed together.

Theory of operation. For a small bucket, the round trips of the exchanges take longer than sending its words.
So it waits for further buckets, until sending the words of all that wait would take longer than the exchanges
that waiting saves. Every rank decides the same: DDP hands over buckets in the same order on all ranks, and
all ranks send equally many words for a sum. The words are those of earlier passes' sums, which are complete
on every rank when another pass begins.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from peelsum.allreduce import NetworkModel
from peelsum.allreduce.allreduce import Tensor
from peelsum.codec import BFloat16
from peelsum.torch.errors import HookError

#: The names of a bucket's parameters.
Names = tuple[str, ...]
#: The exchanges of most sums: header and values.
_EXCHANGES = 2
#: Buckets that were summed together stay together until they take this many times the words.
_HYSTERESIS = 2.0


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
        self._summed_before |= self.buckets.keys()
        return all_known
