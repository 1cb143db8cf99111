"""A bucket's gradients as sums take them: on the host or on their device, in the order of the streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from peelsum.allreduce.allreduce import Tensor
from peelsum.codec import BFloat16


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
