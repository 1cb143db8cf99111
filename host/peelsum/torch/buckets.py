"""A bucket's gradients as sums take them, and the buckets of a backward pass that wait to be summed together.

Theory of operation. A bucket of few words takes longer in exchanges' round trips than on the link. So it
waits, until the buckets that wait would take the link longer than the exchanges that they save. Every rank
decides the same: DDP hands over buckets in the same order on all ranks, and all ranks send as many words for
a sum. Only sums of earlier passes count, which are done on every rank when another pass begins.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from peelsum.allreduce import NetworkModel
from peelsum.allreduce.allreduce import Tensor
from peelsum.codec import BFloat16
from peelsum.torch.errors import HookError
from peelsum.torch.sparse_sums import SparseTensor

B = TypeVar("B")
#: The names of a bucket's parameters.
Names = tuple[str, ...]
#: The exchanges of most sums: header and values.
_EXCHANGES = 2
#: Buckets that were summed together stay together until they take this many times the words.
_STAY = 2.0


class Bucket:
    """A flat tensor of gradients, of `shapes[i]` for parameter i, as the caller's stream left it."""

    def __init__(self, tensor: torch.Tensor, shapes: Sequence[torch.Size]) -> None:
        self.tensor, self.shapes = tensor, shapes
        #: Whether the gradients are float32 in host memory, so that `arrays` shares theirs.
        self.in_floats = not tensor.is_cuda and tensor.dtype == torch.float32
        self._written = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    @contextmanager
    def gradients(self, *, on_host: bool) -> Iterator[Sequence[torch.Tensor]]:
        """Yield one flat tensor for each parameter, as `near` does."""
        with self.near(on_host=on_host) as buffer:
            yield torch.split(buffer, [shape.numel() for shape in self.shapes])

    @contextmanager
    def near(self, *, on_host: bool) -> Iterator[torch.Tensor]:
        """Yield the buffer on this thread's stream; writes go back to the bucket.

        on_host: yield a tensor in host memory, wherever the bucket is.
        """
        if self._written is None:
            yield self.tensor
            return
        stream = _STREAMS.of(self.tensor.device)
        stream.wait_event(self._written)
        with torch.cuda.stream(stream):
            near = self.tensor
            if on_host:
                near = torch.empty_like(self.tensor, device="cpu", pin_memory=True)
                near.copy_(self.tensor, non_blocking=True)
                stream.synchronize()
            yield near
            if on_host:
                self.tensor.copy_(near, non_blocking=True)
        stream.synchronize()

    def arrays(self) -> list[NDArray[np.float32]]:
        """Return one flat array for each parameter, if `in_floats`: faster than torch splits a tensor."""
        flat, end, arrays = self.tensor.numpy(), 0, []
        for shape in self.shapes:
            begin, end = end, end + shape.numel()
            arrays.append(flat[begin:end])
        return arrays

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """Return a future for the buffer, on which a training stream can wait."""
        return torch.futures.Future(devices=[self.tensor.device] if self._written else None)


class _Streams(threading.local):
    """A stream for each thread and device: two threads' buckets overlap, and no bucket makes a stream."""

    def __init__(self) -> None:
        self._kept: dict[torch.device, torch.cuda.Stream] = {}

    def of(self, device: torch.device) -> torch.cuda.Stream:
        """Return this thread's stream on a device."""
        if device not in self._kept:
            self._kept[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._kept[device]


_STREAMS = _Streams()


def summable(tensor: torch.Tensor) -> Tensor:
    """Return a flat host tensor in the form that the all-reduce takes; memory is shared."""
    if tensor.dtype == torch.bfloat16:
        return BFloat16(tensor.view(torch.int16).numpy().view(np.uint16))
    array: Tensor = tensor.numpy()
    return array


class WaitingBuckets(ABC, Generic[B]):
    """Buckets that wait in one backward pass. Subclasses decide how long."""

    def __init__(self) -> None:
        #: Those that wait, by their parameters' names, in order.
        self.waiting: dict[Names, B] = {}
        self._done: Future[None] = Future()
        self._pass: int | None = None

    def ended(self, names: Names, within: int | None) -> bool:
        """Return whether what waits must be summed before a bucket of the backward pass `within`.

        So it is if the pass is another, e.g. one inside of the first. If the bucket itself waits, its pass
        has failed. Then what waits is dropped, because its gradients have been replaced.
        """
        if names in self.waiting:
            self.taken()[1].set_exception(HookError("sum: its backward pass ended before the last bucket"))
        before, self._pass = self._pass, within
        return bool(self.waiting) and before != within

    def add(self, names: Names, bucket: B) -> Future[None]:
        """Add a bucket; return the future of the sum, the same for all that wait together."""
        if not self.waiting:
            self._done = Future()
        self.waiting[names] = bucket
        return self._done

    @abstractmethod
    def wait(self) -> bool:
        """Return whether the buckets wait for another."""

    def taken(self) -> tuple[Mapping[Names, B], Future[None]]:
        """Return the buckets that wait, which then wait no longer, and the future of their sum."""
        waiting, self.waiting = self.waiting, {}
        return waiting, self._done


class DenseBuckets(WaitingBuckets[Bucket]):
    """Buckets that wait by what words and exchanges take; with None for the network, they never wait."""

    def __init__(self, network: NetworkModel | None) -> None:
        super().__init__()
        self.network = network
        #: Words of each bucket's last sum.
        self._words: dict[Names, int] = {}
        #: Buckets that waited for another the last time.
        self._together: set[tuple[Names, ...]] = set()

    def wait(self) -> bool:
        """Return whether their words take less time than the exchanges that another bucket would save."""
        names = tuple(self.waiting)
        if self.network is None or not self._words.keys() >= self.waiting.keys():
            return False
        worth_s = _EXCHANGES * self.network.round_trip_s * (_STAY if names in self._together else 1.0)
        together = self.network.seconds(sum(map(self._words.__getitem__, names)), 0) <= worth_s
        (self._together.add if together else self._together.discard)(names)
        return together

    def learn(self, buckets: Iterable[Names], sent: Mapping[str, int]) -> None:
        """Note how many words the sum of buckets took for each name, for the next pass."""
        for names in buckets:
            self._words[names] = sum(map(sent.__getitem__, names))


class SparseGradients(WaitingBuckets[SparseTensor]):
    """Gradients of sparse tables, which wait for the end of their backward pass.

    A parameter's first gradient does not wait: in the first pass of a static graph DDP marks no bucket as the
    last one, and waits for all sums before the pass ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._summed_before: set[Names] = set()

    def wait(self) -> bool:
        """Return whether all of them have been summed before."""
        known = self._summed_before >= self.waiting.keys()
        self._summed_before |= self.waiting.keys()
        return known
