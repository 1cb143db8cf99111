"""What compression costs in accuracy, bytes and time to a target, beside dense training.

Accuracy, bytes and times of processors are measured, workers being threads of one process. The network's
time is modelled for each rate, without overlap. Methods are NAME or NAME:PARAMETER, then /no-feedback,
/momentum or /bucket. Shares are `iid`, `label`, or an alpha of Dirichlet's distribution. With `keep`, each
run is written to that file as soon as it is done, and runs that are in it are not repeated. `path` is
published data of the only model: CIFAR-10's binary files or a folder for images, MovieLens' ratings.csv for
ratings, a file for text. The model then has its published size, and a worker passes once over the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peelsum.bench.accuracy.report import Row, text
from peelsum.experiments import Experiment, ExperimentError, Size, Value, columns_of

#: Methods by default: one for each way to compress.
METHODS = (
    *("dense", "exact", "top-k:0.01", "star:0.01", "random-k:0.01", "qsgd:4", "packed:8"),
    *("ef-sign", "power:2"),
)
MODELS = ("digits", "images", "ratings", "text", "transformer")


def measure(
    seed: int,
    model_each: tuple[Any, ...],
    compressor_each: tuple[str, ...],
    workers: int,
    shares_each: tuple[str, ...],
    gbps_each: tuple[float, ...],
    latency_us: float,
    seeds: int,
    steps: int | None,
    keep: str | None,
    path: str | None,
    device: str,
) -> Any:
    """Train every model by every method, but runs that are kept."""
    from peelsum.bench.accuracy.rows import Request, bench_accuracy
    from peelsum.bench.devices import require_device

    require_device(device)
    models: tuple[Any, ...] = tuple(known for known in MODELS if known in model_each)
    if path and len(models) > 1:
        raise ExperimentError(f"--path: {path} is data of one model; pass --model images, ratings or text")
    latency_s = latency_us * 1e-6
    request = Request(
        models, compressor_each, workers, seeds, shares_each, gbps_each, latency_s, steps, device, path or ""
    )
    rows = bench_accuracy(request, Path(keep) if keep else None)
    return [{**vars(row), "trained": row.steps, "over": row.path} for row in rows]


def part(models: tuple[str, ...], methods: tuple[str, ...], seeds: int, steps: int | None) -> dict[str, Any]:
    """Return one part of the grid."""
    found: dict[str, tuple[Value, ...]] = {
        "model_each": (models,),
        "compressor_each": (methods,),
        "workers": (4,),
        "shares_each": (("iid",),),
        "gbps_each": ((0.1, 1.0, 10.0),),
        "latency_us": (50.0,),
        "seeds": (seeds,),
        "steps": (steps,),
        "keep": (None,),
        "path": (None,),
        "device": ("cpu",),
    }
    return found


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(
        Row,
        without=("workers", "seeds", "steps", "path"),
        trained="steps of training",
        over="the fastest path",
    ),
    keys=("model", "shares", "method", "gbps"),
    sizes={
        "quick": Size([part(("digits",), ("dense", "ef-sign"), 1, 20)], 1),
        "usual": Size([part(("digits", "ratings", "text"), METHODS, 3, None)], 1),
    },
    ranges={
        "workers": (2, 32),
        "gbps_each": (0.001, 1000),
        "latency_us": (0, 1e6),
        "seeds": (1, 100),
        "steps": (1, 1_000_000),
    },
    choices={"model_each": MODELS, "device": ("cpu", "cuda")},
    needs=("torch",),
    text=text,
)
