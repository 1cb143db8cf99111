"""A bucket's gradients as sums take them, and the buckets that wait to be summed together.

Theory of operation. A bucket of few words takes longer in exchanges' round trips than on the link. So it
waits, until the buckets that wait would take the link longer than the exchanges that they save. Every rank
decides the same: DDP hands over buckets in the same order on all ranks, and all ranks send as many words for
a sum. Only sums of earlier passes count, which are done on every rank when another pass begins.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from peelsum.allreduce import NetworkModel
from peelsum.allreduce.allreduce import Tensor
from peelsum.codec import BFloat16
from peelsum.torch.errors import HookError

#: The exchanges of most sums: header and values.
_EXCHANGES = 2
#: Buckets that were summed together stay together until they take this many times the words.
_STAY = 2.0


class Bucket:
    """A flat tensor of gradients, of `shapes[i]` for parameter i, as the caller's stream left it."""

    def __init__(self, buffer: torch.Tensor, shapes: Sequence[torch.Size]) -> None:
        self.buffer, self.shapes = buffer, shapes
        #: Whether the gradients are float32 in host memory, so that `arrays` shares theirs.
        self.in_floats = not buffer.is_cuda and buffer.dtype == torch.float32
        self._written = torch.cuda.current_stream(buffer.device).record_event() if buffer.is_cuda else None

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
            yield self.buffer
            return
        stream = _STREAMS.of(self.buffer.device)
        stream.wait_event(self._written)
        with torch.cuda.stream(stream):
            near = self.buffer
            if on_host:
                near = torch.empty_like(self.buffer, device="cpu", pin_memory=True)
                near.copy_(self.buffer, non_blocking=True)
                stream.synchronize()
            yield near
            if on_host:
                self.buffer.copy_(near, non_blocking=True)
        stream.synchronize()

    def arrays(self) -> list[NDArray[np.float32]]:
        """Return one flat array for each parameter, if `in_floats`: faster than torch splits a tensor."""
        flat, end, arrays = self.buffer.numpy(), 0, []
        for shape in self.shapes:
            begin, end = end, end + shape.numel()
            arrays.append(flat[begin:end])
        return arrays

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """Return a future for the buffer, on which a training stream can wait."""
        return torch.futures.Future(devices=[self.buffer.device] if self._written else None)


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


@dataclass(frozen=True, eq=False)
class Waiting:
    """A bucket that waits."""

    bucket: Bucket
    names: tuple[str, ...]
    """The names of its parameters."""
    done: Future[None]
    """Completes with the sum; the same for all buckets that wait together."""


class WaitingBuckets:
    """The buckets that wait in one backward pass. `network`: the model of what words and exchanges take."""

    def __init__(self, network: NetworkModel) -> None:
        self._network = network
        self._waiting: list[Waiting] = []
        self._pass: int | None = None
        #: Words of each bucket's last sum, by its names.
        self._words: dict[tuple[str, ...], int] = {}
        #: The names of buckets that waited for another the last time.
        self._together: set[tuple[tuple[str, ...], ...]] = set()

    def ended(self, names: tuple[str, ...], within: int | None) -> bool:
        """Return whether what waits must be summed before a bucket of the backward pass `within`.

        So it is if the pass is another, e.g. one inside of the first. If the bucket itself waits, its pass
        has failed. Then what waits is dropped, because its gradients have been replaced.
        """
        if self._waiting and names in [one.names for one in self._waiting]:
            dropped = self.taken()[0].done
            dropped.set_exception(HookError("sum: its backward pass ended before the last bucket"))
        before, self._pass = self._pass, within
        return bool(self._waiting) and before != within

    def add(self, bucket: Bucket, names: tuple[str, ...]) -> Future[None]:
        """Add a bucket; return the future of its sum."""
        done = self._waiting[0].done if self._waiting else Future()
        self._waiting.append(Waiting(bucket, names, done))
        return done

    def wait(self) -> bool:
        """Return whether the buckets wait for another."""
        names = tuple(one.names for one in self._waiting)
        if any(one not in self._words for one in names):
            return False
        worth_s = _EXCHANGES * self._network.round_trip_s * (_STAY if names in self._together else 1.0)
        together = self._network.seconds(sum(self._words[one] for one in names), 0) <= worth_s
        (self._together.add if together else self._together.discard)(names)
        return together

    def taken(self) -> Sequence[Waiting]:
        """Return the buckets that wait, which then wait no longer."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def learn(self, buckets: Sequence[tuple[str, ...]], sent: Mapping[str, int]) -> None:
        """Note how many words the sum of buckets of these names took for each name, for the next pass."""
        for names in buckets:
            self._words[names] = sum(map(sent.__getitem__, names))
