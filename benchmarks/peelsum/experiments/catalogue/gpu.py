"""Buckets of small tensors on a GPU, and the device's copy, to which the codec's speed compares.

Steps of `Allreduce.sum` with dense tensors in place, by one worker without a network. `make gpu` measures the
codec and training on a GPU, too.
"""

from __future__ import annotations

from typing import Any

from peelsum.experiments import Column, Experiment, Size


def measure(seed: int, tensors: int, elements: int) -> dict[str, Any]:
    """Measure steps with a bucket of dense tensors, of one worker, without a network."""
    from peelsum.bench.gpu import bucket_us, copy_gbytes

    return {"tensor_us": bucket_us("cuda", tensors, elements), "copy_gbytes": copy_gbytes()}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "tensor_us": Column("median microseconds of a step, for each tensor"),
        "copy_gbytes": Column("gigabytes of a tensor that the device copies per second in its memory"),
    },
    sizes={
        "usual": Size(
            [{"tensors": (1, 100), "elements": (1000,)}, {"tensors": (100,), "elements": (20_000,)}], 1
        )
    },
    needs=("torch",),
)
