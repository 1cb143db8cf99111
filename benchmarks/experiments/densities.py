"""How dense the gradients of the models are, for each parameter.

The small model is trained for five steps, or with `--full` that of the published size; then the gradients of
one worker, and of the union of 2, 4 and 8 workers, are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from benchmarks import Experiment, Size
from peelsum.training import Task, make_task

#: Numbers of workers for which the union's density is shown.
UNIONS = (2, 4, 8)


def densities(
    task: Task, unions: Sequence[int] = UNIONS, *, steps: int = 5, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield the row of each parameter's gradient, and that of all together.

    The data are divided among max(unions) workers. `task`'s model is first trained for `steps` steps, on one
    worker's batches. All workers have the same parameters, so no sum is needed.
    """
    most = max(unions)
    optimizer = task.optimizer(task.model.parameters())
    for batch in islice(task.batches(0, most, seed), steps):
        optimizer.zero_grad()
        task.model(*batch).backward()
        optimizer.step()
    named = dict(task.model.named_parameters())
    used = {name: torch.zeros_like(parameter, dtype=torch.bool) for name, parameter in named.items()}
    counts = {name: {"worker": 0.0, **{f"union_{count}": 0 for count in unions}} for name in named}
    for worker in range(most):
        optimizer.zero_grad()
        task.model(*next(task.batches(worker, most, seed))).backward()
        for name, parameter in named.items():
            if parameter.grad is not None:
                used[name] |= parameter.grad != 0
                counts[name]["worker"] += int((parameter.grad != 0).sum()) / most
            if worker + 1 in unions:
                counts[name][f"union_{worker + 1}"] = int(used[name].sum())
    sizes = {name: parameter.numel() for name, parameter in named.items()}
    sizes["all"] = sum(sizes.values())
    counts["all"] = {column: sum(count[column] for count in counts.values()) for column in counts[name]}
    for name, elements in sizes.items():
        shares = {column: count / elements for column, count in counts[name].items()}
        yield {"tensor": name, "of": task.data, "elements": elements, **shares}


def measure(seed: int, model: Any, small: bool, data: str | None) -> Iterator[dict[str, Any]]:
    """Measure every parameter's density, and that of all together."""
    return densities(make_task(model, small=small, path=data, seed=seed), seed=seed)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "tensor": "name of the parameter; `all` for all together",
        "of": "the data",
        "elements": "elements of the parameter",
        "worker": "share that is non-zero on one worker, the mean over all",
        **{f"union_{n}": f"share that is non-zero on any of {n} workers" for n in UNIONS},
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
