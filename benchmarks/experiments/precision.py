"""The errors of sums of real gradients, by way to sum them.

Errors are those of the elements whose exact sum is not zero, relative to it. The exact sum is NumPy's in long
double. `float32` adds float32 in the workers' order, `one scale` is fixed point with one scale a tensor,
`blocks` the allreduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import Experiment, Size
from peelsum.allreduce import Allreduce, LocalSummation, StepResult, TensorResult
from peelsum.codec import scale_for

_LANES = 4096

Floats = NDArray[np.float32]
#: The gradients of each worker, by the parameter's name.
Gradients = Mapping[str, Sequence[Floats]]


def gradients_of(
    model: Any, steps: Sequence[int], workers: int, seed: int = 0
) -> Iterator[tuple[int, Gradients]]:
    """Train a small model with the mean of the workers' gradients; yield them at each of `steps`."""
    import torch

    from peelsum.training import make_task

    task = make_task(model, small=True, seed=seed)
    optimizer = task.optimizer(task.model.parameters())
    named = dict(task.model.named_parameters())
    shares = [task.batches(rank, workers, seed) for rank in range(workers)]
    for step in range(max(steps) + 1):
        gradients: dict[str, list[Floats]] = {name: [] for name in named}
        for share in shares:
            optimizer.zero_grad()
            task.model(*next(share)).backward()
            for name, parameter in named.items():
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients[name].append(gradient.detach().numpy().copy())
        if step in steps:
            yield step, gradients
        for name, parameter in named.items():
            parameter.grad = torch.from_numpy(np.sum(gradients[name], axis=0) / workers)
        optimizer.step()


def rows_of(gradients: Gradients) -> Iterator[dict[str, Any]]:
    """Yield the rows of one step: those of every tensor with a gradient, then those of all together."""
    used = {name: arrays for name, arrays in gradients.items() if any(array.any() for array in arrays)}
    exact = {name: np.sum(arrays, axis=0, dtype=np.longdouble) for name, arrays in used.items()}
    step = _allreduced(used)
    by_way: dict[str, dict[str, Floats]] = {
        # float32 is added in the workers' order.
        "float32": {name: reduce(np.add, arrays) for name, arrays in used.items()},
        "one scale": {name: _one_scale(arrays) for name, arrays in used.items()},
        "blocks": {name: step[name].values for name in used},
    }
    for name in [*used, "all"]:
        tensors = list(used) if name == "all" else [name]
        true = np.concatenate([exact[member].reshape(-1) for member in tensors])
        words = sum(step[member].words_sent for member in tensors)
        scales = sum(_scale_words(step[member]) for member in tensors)
        for way, sums in by_way.items():
            values = np.concatenate([sums[member].reshape(-1) for member in tensors])
            share = scales / words if way == "blocks" else None
            yield {"tensor": name, "way": way, **_errors(true, values), "scale_words": share}


def _errors(exact: NDArray[np.longdouble], values: Floats) -> dict[str, Any]:
    there = exact != 0
    errors = np.abs((values[there] - exact[there]) / exact[there]).astype(np.float64)
    median, p99 = np.quantile(errors, [0.5, 0.99]).tolist()
    lost = float(np.mean(values[there] == 0))
    return {"sums": int(there.sum()), "median_error": median, "p99_error": p99, "lost": lost}


def _one_scale(arrays: Sequence[Floats]) -> Floats:
    largest = max(float(np.abs(array).max()) for array in arrays)
    scale = scale_for(int(np.float32(largest).view(np.uint32)) >> 23, len(arrays))
    total = np.sum([np.rint(np.ldexp(array.astype(np.float64), scale)) for array in arrays], axis=0)
    result: Floats = np.ldexp(total, -scale).astype(np.float32)
    return result


def _allreduced(gradients: Gradients) -> StepResult:
    """Return the second of two equal steps, whose forms follow from the first one's densities."""
    workers = len(next(iter(gradients.values())))
    group = LocalSummation.group(workers, _LANES)

    def work(rank: int) -> StepResult:
        allreduce = Allreduce(group[rank])
        gradient = {name: arrays[rank] for name, arrays in gradients.items()}
        allreduce.sum(gradient)
        return allreduce.sum(gradient)

    with ThreadPoolExecutor(workers) as pool:
        return next(iter(pool.map(work, range(workers))))


def _scale_words(tensor: TensorResult) -> int:
    """Return the words that agree on a tensor's scales: one of its largest value, and those of its blocks."""
    octaves = tensor.fixed.octaves if tensor.fixed else None
    return 1 + (0 if octaves is None else octaves.size)


def measure(seed: int, model: Any, step_each: tuple[int, ...], workers: int) -> Any:
    """Train a small model, and sum its gradients in each way at some steps."""
    for step, gradients in gradients_of(model, step_each, workers):
        for row in rows_of(gradients):
            yield {"step": step, **row}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "step": "steps of training before",
        "tensor": "name of the parameter; `all` for all together",
        "way": "how sums are made",
        "sums": "elements whose exact sum is not zero",
        "median_error": "median of the errors",
        "p99_error": "99th percentile of the errors",
        "lost": "share of elements whose exact sum is not zero, and whose result is",
        "scale_words": "words that agree on scales over all words sent",
    },
    keys=("step", "tensor", "way"),
    defaults={"workers": 4},
    sizes={
        "quick": Size([{"model": "ncf", "step_each": ((0, 5),)}], 1),
        "usual": Size([{"model": ("ncf", "lstm", "bert"), "step_each": ((0, 60, 300),)}], 1),
    },
)
