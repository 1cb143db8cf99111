"""The errors of sums of real gradients, by way to sum them.

Errors are those of the elements whose exact sum is not zero, relative to it. The exact sum is NumPy's in long
double. `float32` adds float32 in the workers' order, `one scale` is fixed point with one scale a tensor,
`blocks` the allreduce.
"""

from __future__ import annotations

from typing import Any

from peelsum.experiments import Column, Experiment, Size


def measure(seed: int, model: Any, step_each: tuple[int, ...], workers: int) -> Any:
    """Train a small model, and sum its gradients in each way at some steps."""
    from peelsum.bench.codec.precision import gradients_of, rows_of

    for step, gradients in gradients_of(model, step_each, workers):
        for row in rows_of(gradients):
            yield {"step": step, **row}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "step": Column("steps of training before"),
        "tensor": Column("name of the parameter; `all` for all together"),
        "way": Column("how sums are made"),
        "sums": Column("elements whose exact sum is not zero"),
        "median_error": Column("median of the errors"),
        "p99_error": Column("99th percentile of the errors"),
        "lost": Column("share of elements whose exact sum is not zero, and whose result is"),
        "scale_words": Column("words that agree on scales over all words sent"),
    },
    keys=("step", "tensor", "way"),
    defaults={"workers": 4},
    sizes={
        "quick": Size([{"model": "ncf", "step_each": ((0, 5),)}], 1),
        "usual": Size([{"model": ("ncf", "lstm", "bert"), "step_each": ((0, 60, 300),)}], 1),
    },
    needs=("torch",),
)
