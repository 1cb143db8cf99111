"""What compression costs in accuracy, bytes and time to a target, beside dense training.

Accuracy, bytes and times of processors are measured, workers being threads of one process. The network's
time is modelled for each rate, without overlap. Methods are NAME or NAME:PARAMETER, then /no-feedback,
/momentum or /bucket. Shares are `iid`, `label`, or an alpha of Dirichlet's distribution. Figures are means
over seeds; spreads are sample standard deviations, None for one seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import Experiment, Plot, Series, Size
from benchmarks.accuracy.methods import DENSE
from benchmarks.accuracy.training import TrainingRun, TrainingSetting, train
from peelsum.bench.devices import require_device
from peelsum.compress import COLLECTIVES, LinkModel, SwitchPath

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
    require_device(device)
    runs, dense = (
        [
            train_once(TrainingSetting(model, method, workers, shares, number, steps, device))
            for number in range(seed, seed + seeds)
        ]
        for method in (compressor, DENSE)
    )
    return compared(dense, runs, gbps_each, latency_us * 1e-6)


#: The same run serves all rows that compare with it.
train_once = cache(train)


#: The target is this share of what dense training improves, from the start to its last measurement.
TARGET_SHARE = 0.95
#: The share of the steps after which the metric is shown beside the last one.
_LATE = 0.8
#: Rates among which the highest that pays is looked for, in Gbit/s, and how many for a factor of ten.
_LEAST_GBPS, _MOST_GBPS, _PER_DECADE = 1e-3, 1e3, 20
_WORD_BYTES = 4
#: Reductions over a process group, by the path's name.
_REDUCTIONS = {"ring": COLLECTIVES["all_reduce_ring"], "tree": COLLECTIVES["all_reduce_tree"]}


def compared(
    dense: Sequence[TrainingRun], runs: Sequence[TrainingRun], gbps: Sequence[float], latency_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the row of each rate for a method's runs, which differ in their seeds, beside dense ones."""
    target, compute_s = _target(dense), median(run.compute_s for run in dense)
    counts = [_steps_to(target, run) for run in runs]

    def times(each: Sequence[TrainingRun], link: LinkModel) -> NDArray[np.float64]:
        """Return the seconds of each run to the target; NaN where it was not reached."""
        step_s = (compute_s + fastest(run, link).seconds for run in each)
        return np.array([_steps_to(target, run) * s for run, s in zip(each, step_s, strict=True)])

    def faster(link: LinkModel) -> float:
        """Return dense training's mean time over that of the runs; NaN unless all reach the target."""
        return float(times(dense, link).mean() / times(runs, link).mean())

    pays_below = None
    if runs[0].setting.method != DENSE:
        count = round(math.log10(_MOST_GBPS / _LEAST_GBPS) * _PER_DECADE)
        rates = (_LEAST_GBPS * 10 ** (number / _PER_DECADE) for number in range(count, -1, -1))
        pays_below = next((rate for rate in rates if faster(LinkModel(latency_s, rate)) > 1), None)
    finals = np.array([run.curve[-1][1] for run in runs], float)
    late = [next((metric for at, metric in run.curve if at >= _LATE * run.steps), None) for run in runs]
    sent, dense_sent = (mean(run.wire_bytes / max(run.done, 1) for run in each) for each in (runs, dense))
    for rate in gbps:
        link = LinkModel(latency_s, rate)
        paths, to_target = [fastest(run, link) for run in runs], times(runs, link)
        yield {
            "gbps": rate,
            "data": runs[0].data,
            "metric": runs[0].metric,
            "trained": runs[0].steps,
            "at_80_percent": _rounded(np.mean(np.array(late, float))),
            "final": _rounded(finals.mean()),
            "final_spread": _rounded(_spread(finals)),
            "target": _rounded(target),
            "reached": int(np.isfinite(counts).sum()),
            "steps_to_target": _rounded(np.mean(counts)),
            "bytes_per_step": round(sent),
            "times_less": round(dense_sent / sent, 2),
            "compute_ms": round(1e3 * compute_s, 3),
            "over": paths[0].name,
            "compress_ms": round(1e3 * mean(path.compress_s for path in paths), 3),
            "network_ms": round(1e3 * mean(path.network_s for path in paths), 4),
            "time_s": _rounded(to_target.mean()),
            "time_spread_s": _rounded(_spread(to_target)),
            "faster": _rounded(faster(link)),
            "pays_below_gbps": None if pays_below is None else float(f"{pays_below:.2g}"),
        }


def _target(dense: Sequence[TrainingRun]) -> float:
    """Return the value that all methods have to reach; perplexities are compared by their logarithms."""
    ends = np.array([[run.curve[place][1] for run in dense] for place in (0, -1)], float)
    if dense[0].metric == "perplexity":
        start, end = np.log(ends).mean(axis=1)
        return math.exp(start + TARGET_SHARE * (end - start))
    start, end = ends.mean(axis=1)
    return float(start + TARGET_SHARE * (end - start))


def _steps_to(target: float, run: TrainingRun) -> float:
    """Return a run's steps to the first measurement that reaches the target; NaN if there is none."""
    sign = -1 if run.metric == "perplexity" else 1
    measured = ((steps, value) for steps, value in run.curve if value is not None)
    return next((steps for steps, value in measured if sign * value >= sign * target), math.nan)


def _spread(values: NDArray[np.float64]) -> float:
    """Return the sample standard deviation; NaN of one value."""
    return float(values.std(ddof=1)) if values.size > 1 else math.nan


def _rounded(value: Any) -> float | None:
    """Return a number with four decimals, or None in place of NaN."""
    return round(float(value), 4) if math.isfinite(value) else None


class Path(NamedTuple):
    """What a step takes on one way to sum, without overlap with computation."""

    name: str
    """By what words are summed: "switch", "ring", "tree"; "float ring", "float tree"; or "all_gather"."""
    compress_s: float
    """Measured seconds of encoding and decoding."""
    network_s: float
    """Modelled seconds of the exchanges."""

    @property
    def seconds(self) -> float:
        """Seconds of both."""
        return self.compress_s + self.network_s


def fastest(run: TrainingRun, link: LinkModel) -> Path:
    """Return the fastest path of a run's steps, mean over steps.

    Dense gradients also travel as floats, without encoding. Values and positions can also be gathered.
    """
    traffic, workers, done = run.traffic, run.setting.workers, max(run.done, 1)
    all_gather = COLLECTIVES["all_gather"](link, workers)
    # Gathers are of lengths, and then of bytes.
    gathered = all_gather.seconds(traffic.gathered_bytes / _WORD_BYTES, 2 * traffic.gathers)
    words = traffic.summed_words + traffic.broadcast_words
    switch_s = SwitchPath().network(link).seconds(words, traffic.exchanges) + gathered
    paths = [Path("switch", run.compress_s, switch_s / done)]
    broadcast = COLLECTIVES["broadcast"](link, workers)
    for name, reduction in _REDUCTIONS.items():
        network = reduction(link, workers)
        seconds = network.seconds(traffic.summed_words, traffic.parts) + gathered
        seconds += broadcast.seconds(traffic.broadcast_words, traffic.broadcasts)
        paths.append(Path(name, run.compress_s, seconds / done))
        if run.kind == "dense":
            paths.append(Path(f"float {name}", 0.0, network.seconds(run.elements, 1)))
    if run.kind == "indexed":
        sent = run.payload_bytes / _WORD_BYTES / done
        paths.append(Path("all_gather", run.compress_s, all_gather.seconds(sent, 1)))
    return min(paths, key=lambda path: path.seconds)


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
