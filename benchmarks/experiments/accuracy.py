"""What compression costs in accuracy, bytes and time to a target, beside dense training.

Accuracy, bytes and times of processors are measured, workers being threads of one process. The network's
time is modelled for each rate, without overlap. Methods are NAME or NAME:PARAMETER, then /no-feedback,
/momentum or /bucket. Shares are `iid`, `label`, or an alpha of Dirichlet's distribution. Figures are means
over seeds; spreads are sample standard deviations, None for one seed. `path` is published data of a model:
CIFAR-10's binary files or a folder for images, MovieLens' ratings.csv for ratings, a file for text. The model
then has its published size, and a worker passes once over the data.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks import Column, Experiment, Plot, Size, Value

#: Methods by default: one for each way to compress.
METHODS = (
    *("dense", "exact", "top-k:0.01", "star:0.01", "random-k:0.01", "qsgd:4", "packed:8"),
    *("ef-sign", "power:2"),
)
MODELS = ("digits", "images", "ratings", "text", "transformer")


def measure(
    seed: int,
    model: Any,
    compressor: str,
    workers: int,
    shares: str,
    gbps_each: tuple[float, ...],
    latency_us: float,
    seeds: int,
    steps: int | None,
    path: str | None,
    device: str,
) -> Any:
    """Train a model by a method, and by dense gradients unless this process did already."""
    from benchmarks.accuracy.methods import DENSE
    from benchmarks.accuracy.rows import compared
    from benchmarks.accuracy.training import Setting
    from peelsum.bench.devices import require_device

    require_device(device)
    mine, dense = (
        [
            _trained(Setting(model, method, workers, shares, number, steps, device, path or ""))
            for number in range(seed, seed + seeds)
        ]
        for method in (compressor, DENSE)
    )
    return compared(dense, mine, gbps_each, latency_us * 1e-6)


@cache
def _trained(setting: Any) -> Any:
    from benchmarks.accuracy.training import train

    return train(setting)


#: Rows that differ in the compressor and one parameter more.
USUAL: dict[str, Value] = {"shares": "iid", "workers": 4}
OF_ONE_RATE: dict[str, Value] = {"gbps": 1.0, "workers": 4}
EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "gbps": Column("rate of the links in Gbit/s"),
        "data": Column("the data, and what the model reaches elsewhere on published data"),
        "metric": Column("the measure of what was learned, on data held out"),
        "trained": Column("steps of training"),
        "at_80_percent": Column("the metric after 80 % of the steps"),
        "final": Column("the metric after the last step; None if any run's was not finite"),
        "final_spread": Column("its standard deviation"),
        "target": Column("the target: 95 % of dense training's improvement"),
        "reached": Column("runs that reached the target"),
        "steps_to_target": Column("steps to the first measurement at the target, if all runs reached it"),
        "bytes_per_step": Column("bytes that a worker contributes, by the hook's statistics"),
        "times_less": Column("bytes of dense training over these"),
        "compute_ms": Column("processor time of a step's computation: the median over dense runs"),
        "over": Column("the path that takes the least time: switch, ring, tree or all_gather", modelled=True),
        "compress_ms": Column("processor time of a step's encoding and decoding; 0 on a path without"),
        "network_ms": Column("time of a step's exchanges", modelled=True),
        "time_s": Column("seconds to the target, if all runs reached it", modelled=True),
        "time_spread_s": Column("their standard deviation", modelled=True),
        "faster": Column("dense training's time to the target over this one", modelled=True),
        "pays_below_gbps": Column("highest rate at which the target is reached sooner", modelled=True),
    },
    keys=("gbps",),
    defaults={
        "compressor": METHODS,
        "workers": 4,
        "shares": "iid",
        "gbps_each": ((0.1, 1.0, 10.0),),
        "latency_us": 50.0,
        "steps": None,
        "path": None,
        "device": "cpu",
    },
    sizes={
        "quick": Size([{"model": "digits", "compressor": ("dense", "ef-sign"), "seeds": 1, "steps": 20}], 1),
        "usual": Size([{"model": ("digits", "ratings", "text"), "seeds": 3}], 1),
    },
    plots=[
        *(
            Plot(f"time_{model}", "gbps", "time_s", "compressor", {"model": model, **USUAL}, "xy")
            for model in ("ratings", "text")
        ),
        *(
            Plot(f"shares_{model}", "shares", "final", "compressor", {"model": model, **OF_ONE_RATE})
            for model in ("digits", "ratings")
        ),
    ],
    ranges={
        "workers": (2, 32),
        "gbps_each": (0.001, 1000),
        "latency_us": (0, 1e6),
        "seeds": (1, 100),
        "steps": (1, 1_000_000),
    },
    choices={"model": MODELS, "device": ("cpu", "cuda")},
)
