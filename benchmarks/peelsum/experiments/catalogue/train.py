"""A training iteration through the switch, beside dense sums and gloo, by rate of links.

The small model is trained, or with `--full` that of the published size. Every worker is a process. The
switch is the softswitch on loopback, with ports of a rate; gloo's links are virtual Ethernet, limited to
the same rate by token buckets, which needs root. With `cpu`, no link has a rate, and the processor time of
all processes beyond computation is compared. `top_k` is the share of elements that `switch` sends, the rest
later.

LHC's paper (arXiv 2402.07529) has up to 3.74 for an iteration and 6.33 for aggregation, on GPUs, over its
own baselines.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.train.report import Row
from peelsum.experiments import Experiment, Plot, Size, Value, columns_of

MODELS = ("ncf", "lstm", "vgg19", "bert")


def measure(
    seed: int,
    model: Any,
    workers: int,
    gbps_each: tuple[float, ...],
    small: bool,
    data: str | None,
    steps: int,
    warm_ups: int,
    top_k: float | None,
    cpu: bool,
    device: str,
) -> Any:
    """Train a model by every backend."""
    from peelsum.bench.train.rows import Request, bench_train

    return bench_train(
        Request(model, workers, gbps_each, small, data, steps, warm_ups, seed, top_k, cpu, device)
    )


def part(*, small: bool = True, model: str = "ncf", steps: int = 10) -> dict[str, tuple[Value, ...]]:
    """Return one part of the grid."""
    return {
        "model": (model,),
        "workers": (4 if steps > 2 else 2,),
        "gbps_each": ((1.0, 10.0),),
        "small": (small,),
        "data": (None,),
        "steps": (steps,),
        "warm_ups": (3 if steps > 2 else 1,),
        "top_k": (None,),
        "cpu": (steps <= 2,),
        "device": ("cpu",),
    }


DRAWN = {"path": "switch", "top_k": None, "cpu": False, "small": True}
EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Row, without=("model", "workers")),
    keys=("gbps", "path"),
    sizes={
        "quick": Size([part(steps=2)], 1),
        "usual": Size([part()], 1),
        "full": Size([part(small=False)], 1),
    },
    plots=[
        Plot(name, "gbps", name, "model steps", DRAWN, "xy")
        for name in ("speedup_over_dense", "speedup_over_gloo", "aggregation_over_dense")
    ],
    ranges={
        "workers": (2, 32),
        "gbps_each": (0.001, 400),
        "steps": (1, 100_000),
        "warm_ups": (1, 100_000),
        "top_k": (1e-9, 1),
    },
    choices={"model": MODELS, "device": ("cpu", "cuda")},
    needs=("torch",),
)
