"""Buckets of small tensors on a GPU.

Steps of `Allreduce.sum` with dense tensors in place, by one worker without a network. `make gpu` measures the
codec and training on a GPU, too.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from benchmarks import Experiment, Size
from peelsum.allreduce import Allreduce
from peelsum.bench.devices import require_gpu
from peelsum.bench.which_form import LoopbackSummation

_STEPS, _WARM_STEPS = 100, 5


def bucket_us(device: str, tensors: int, elements: int, steps: int = _STEPS) -> float:
    """Return microseconds of a step, for each tensor of a bucket, whose results take their places.

    Raises NoDeviceError if the device is a GPU and torch finds none.
    """
    import torch

    from peelsum.codec.gpu.memory import wait

    there = torch.device(device)
    if there.type == "cuda":
        require_gpu()
    allreduce = Allreduce(LoopbackSummation(), forms="dense", implementation="gpu")
    bucket = list(torch.randn(tensors, elements, device=there))
    seconds = []
    for number in range(steps + _WARM_STEPS):
        wait(there)
        started = time.perf_counter()
        allreduce.sum(bucket, in_place=True)
        wait(there)
        if number >= _WARM_STEPS:
            seconds.append(time.perf_counter() - started)
    return round(1e6 * median(seconds) / tensors, 2)


def measure(seed: int, tensors: int, elements: int) -> dict[str, Any]:
    """Measure steps with a bucket of dense tensors, of one worker, without a network."""
    return {"tensor_us": bucket_us("cuda", tensors, elements)}


EXPERIMENT = Experiment(
    measure=measure,
    columns={"tensor_us": "median microseconds of a step, for each tensor"},
    sizes={
        "usual": Size(
            [{"tensors": (1, 100), "elements": (1000,)}, {"tensors": (100,), "elements": (20_000,)}], 1
        )
    },
)
