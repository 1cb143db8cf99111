"""Buckets of small tensors on a device, and the speed of a GPU's copy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch

from peelsum.allreduce import Allreduce, Part
from peelsum.bench.devices import require_gpu
from peelsum.codec.gpu_memory import wait
from peelsum.summation import Words

#: Bytes of the copy, and how often it is repeated.
_COPY_BYTES, _COPIES = 2**28, 20
_STEPS, _WARM_STEPS = 100, 5


class _Alone:
    """A backend of one worker."""

    lanes, workers, worker_id = 256, 1, 0

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        return [part.words.copy() for part in parts]


def bucket_us(device: torch.device | str, tensors: int, elements: int, steps: int = _STEPS) -> float:
    """Return microseconds of a step, for each tensor of a bucket, whose results take their places.

    Raises NoDeviceError if the device is a GPU and torch finds none.
    """
    device = torch.device(device)
    if device.type == "cuda":
        require_gpu()
    allreduce = Allreduce(_Alone(), forms="dense", implementation="gpu")
    bucket = list(torch.randn(tensors, elements, device=device))
    seconds = []
    for number in range(steps + _WARM_STEPS):
        wait(device)
        started = time.perf_counter()
        allreduce.sum(bucket, in_place=True)
        wait(device)
        if number >= _WARM_STEPS:
            seconds.append(time.perf_counter() - started)
    return round(1e6 * median(seconds) / tensors, 2)


def copy_gbytes() -> float:
    """Return the gigabytes of a tensor that the GPU copies per second in its own memory."""
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target, seconds = torch.empty_like(source), []
    for _ in range(_COPIES):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return round(_COPY_BYTES / median(seconds) / 1e9, 1)
