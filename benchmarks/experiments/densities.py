"""How dense the gradients of the models are, for each parameter.

The small model is trained for five steps, or with `--full` that of the published size; then the gradients of
one worker, and of the union of 2, 4 and 8 workers, are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from benchmarks import Column, Experiment, Size
from peelsum.training import Task, make_task


@dataclass(frozen=True)
class Density:
    """The share of non-zero elements in a parameter's gradient."""

    tensor: str
    """Name of the parameter."""
    elements: int
    """Number of elements."""
    worker: float
    """Share on one worker, the mean over all."""
    union: dict[int, float]
    """For each number of workers n, the share that is non-zero on any of the first n."""


def densities(task: Task, workers: Sequence[int], *, steps: int = 5, seed: int = 0) -> list[Density]:
    """Return the density of each parameter's gradient, for each number in `workers`.

    The data are divided among max(workers) workers. `task`'s model is first trained for `steps` steps, on one
    worker's batches. All workers have the same parameters, so no sum is needed.
    """
    most = max(workers)
    optimizer = task.optimizer(task.model.parameters())
    for batch in islice(task.batches(0, most, seed), steps):
        optimizer.zero_grad()
        task.model(*batch).backward()
        optimizer.step()
    named = dict(task.model.named_parameters())
    together = {name: torch.zeros_like(parameter, dtype=torch.bool) for name, parameter in named.items()}
    alone = dict.fromkeys(named, 0.0)
    union: dict[str, dict[int, float]] = {name: {} for name in named}
    for worker in range(most):
        optimizer.zero_grad()
        task.model(*next(task.batches(worker, most, seed))).backward()
        for name, parameter in named.items():
            if parameter.grad is None:
                continue
            here = parameter.grad != 0
            together[name] |= here
            alone[name] += float(here.float().mean()) / most
            if worker + 1 in workers:
                union[name][worker + 1] = float(together[name].float().mean())
    return [Density(name, named[name].numel(), alone[name], union[name]) for name in named]


def overall(parameters: Sequence[Density]) -> Density:
    """Return the density of all parameters together."""
    elements = sum(parameter.elements for parameter in parameters)

    def mean(shares: Sequence[float]) -> float:
        return (
            sum(share * parameter.elements for share, parameter in zip(shares, parameters, strict=True))
            / elements
        )

    counts = parameters[0].union
    union = {count: mean([parameter.union[count] for parameter in parameters]) for count in counts}
    return Density("all", elements, mean([parameter.worker for parameter in parameters]), union)


#: Numbers of workers for which the union's density is shown.
UNIONS = (2, 4, 8)


def measure(seed: int, model: Any, small: bool, data: str | None) -> Any:
    """Measure every parameter's density, and that of all together."""
    task = make_task(model, small=small, path=data, seed=seed)
    parameters = densities(task, UNIONS, seed=seed)
    for density in (*parameters, overall(parameters)):
        unions = {f"union_{count}": density.union[count] for count in UNIONS}
        yield {
            "tensor": density.tensor,
            "of": task.data,
            "elements": density.elements,
            "worker": density.worker,
            **unions,
        }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "tensor": Column("name of the parameter; `all` for all together"),
        "of": Column("the data"),
        "elements": Column("elements of the parameter"),
        "worker": Column("share that is non-zero on one worker, the mean over all"),
        **{f"union_{n}": Column(f"share that is non-zero on any of {n} workers") for n in UNIONS},
    },
    keys=("tensor",),
    defaults={"small": True, "data": None},
    sizes={
        "quick": Size([{"model": "ncf"}], 1),
        "usual": Size([{"model": ("ncf", "lstm", "vgg19", "bert")}], 1),
        "full": Size([{"model": "ncf", "small": False}], 1),
    },
    choices={"model": ("ncf", "lstm", "vgg19", "bert")},
    timed=False,
)
