"""What compression costs in accuracy, bytes and time to a target, beside dense training.

Accuracy, bytes and times of processors are measured, workers being threads of one process. The network's
time is modelled for each rate, without overlap. Methods are NAME or NAME:PARAMETER, then /no-feedback,
/momentum or /bucket. Shares are `iid`, `label`, or an alpha of Dirichlet's distribution. Figures are means
over seeds; spreads are sample standard deviations, None for one seed.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from benchmarks import Experiment, Plot, Series, Size

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
    device: str,
) -> Any:
    """Train a model by a method, and by dense gradients unless this process did already."""
    from benchmarks.accuracy.methods import DENSE
    from benchmarks.accuracy.rows import compared
    from benchmarks.accuracy.training import TrainingSetting
    from peelsum.bench.devices import require_device

    require_device(device)
    runs, dense = (
        [
            _trained(TrainingSetting(model, method, workers, shares, number, steps, device))
            for number in range(seed, seed + seeds)
        ]
        for method in (compressor, DENSE)
    )
    return compared(dense, runs, gbps_each, latency_us * 1e-6)


@cache
def _trained(setting: Any) -> Any:
    from benchmarks.accuracy.training import train

    return train(setting)


#: Names of methods that are not their own.
NAMES = {
    "dense": Series("dense", "ink", ":"),
    "exact": Series("peelsum, exact", "blue", ours=True),
    "power:2": "PowerSGD, rank 2",
    "qsgd:4": "QSGD, 4 bits",
    "packed:8": "packed, 8 bits",
    "top-k:0.01": "top-k, 1%",
    "star:0.01": "STAR-Topk, 1%",
}
OVER_RATES: dict[str, Any] = {
    "x": "gbps",
    "y": "time_s",
    "lines": "compressor",
    "log": "xy",
    "setting": "Four workers. Accuracy and times of processors are measured, the network's time is modelled.",
    "xlabel": "Rate of the links (Gbit/s)",
    "ylabel": "Time to the target (s)",
    "names": NAMES,
}


def in_time(medians: Any, data: str, fastest: str, name: str) -> str:
    """Return times to the target at 0.1 Gbit/s, if `fastest` is it there, and dense sums at 10 Gbit/s."""
    times = medians.by_series
    slow, fast = ({method: times[method][rate] for method in times} for rate in ("0.1", "10.0"))
    if min(slow, key=slow.__getitem__) != fastest or min(fast, key=fast.__getitem__) != "dense":
        return ""
    return f"""At 0.1 Gbit/s {data} reach the target in {slow[fastest]:.1f} s with {name}, {slow["exact"]:.1f}
        s with exact sparse sums and {slow["dense"]:.1f} s with dense ones; at 10 Gbit/s dense sums are
        first"""


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "gbps": "rate of the links in Gbit/s",
        "data": "the data",
        "metric": "the measure of what was learned, on data held out",
        "trained": "steps of training",
        "at_80_percent": "the metric after 80 % of the steps",
        "final": "the metric after the last step; None if any run's was not finite",
        "final_spread": "its standard deviation",
        "target": "the target: 95 % of dense training's improvement",
        "reached": "runs that reached the target",
        "steps_to_target": "steps to the first measurement at the target, if all runs reached it",
        "bytes_per_step": "bytes that a worker contributes, by the hook's statistics",
        "times_less": "bytes of dense training over these",
        "compute_ms": "processor time of a step's computation: the median over dense runs",
        "over": "the path that takes the least time: switch, ring, tree or all_gather",
        "compress_ms": "processor time of a step's encoding and decoding; 0 on a path without",
        "network_ms": "time of a step's exchanges",
        "time_s": "seconds to the target, if all runs reached it",
        "time_spread_s": "their standard deviation",
        "faster": "dense training's time to the target over this one",
        "pays_below_gbps": "highest rate at which the target is reached sooner",
    },
    modelled_columns=("over", "network_ms", "time_s", "time_spread_s", "faster", "pays_below_gbps"),
    keys=("gbps",),
    defaults={
        "compressor": METHODS,
        "workers": 4,
        "shares": "iid",
        "gbps_each": ((0.1, 1.0, 10.0),),
        "latency_us": 50.0,
        "steps": None,
        "device": "cpu",
    },
    sizes={
        "quick": Size([{"model": "digits", "compressor": ("dense", "ef-sign"), "seeds": 1, "steps": 20}], 1),
        "usual": Size([{"model": ("digits", "ratings", "text"), "seeds": 3}], 1),
    },
    plots=[
        *(
            Plot(
                f"time_{model}",
                where={"model": model, "shares": "iid", "workers": 4},
                finding=partial(in_time, data=data, fastest=fastest, name=name),
                **OVER_RATES,
            )
            for model, data, fastest, name in (
                ("text", "texts", "top-k:0.01", "top-k of 1%"),
                ("ratings", "ratings", "packed:8", "packed 8-bit values"),
            )
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
