"""How dense the gradients of the models are, for each parameter.

The small model is trained for five steps, or with `--full` that of the published size; then the gradients of
one worker, and of the union of 2, 4 and 8 workers, are counted.
"""

from __future__ import annotations

from typing import Any

from benchmarks import Column, Experiment, Size

#: Numbers of workers for which the union's density is shown.
UNIONS = (2, 4, 8)


def measure(seed: int, model: Any, small: bool, data: str | None) -> Any:
    """Measure every parameter's density, and that of all together."""
    from benchmarks.accuracy.density import densities, overall
    from peelsum.training import make_task

    task = make_task(model, small=small, path=data, seed=seed)
    found = densities(task, UNIONS, seed=seed)
    for one in (*found, overall(found)):
        unions = {f"union_{count}": one.union[count] for count in UNIONS}
        yield {
            "tensor": one.tensor,
            "of": task.data,
            "elements": one.elements,
            "worker": one.worker,
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
