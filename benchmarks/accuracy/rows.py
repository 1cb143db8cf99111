"""What a compression method costs in accuracy, and on which links it pays, beside dense training.

Training is measured, once for each setting, since its results do not depend on the link. The network's time
is modelled for each link, by the cost model of `peelsum plan`, on the path on which compression and network
together are fastest. Time to a target is steps times the seconds of computing, compressing, exchanging.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from benchmarks.accuracy.in_process import Traffic
from benchmarks.accuracy.methods import DENSE
from benchmarks.accuracy.training import Run
from peelsum.compress import COLLECTIVES, LinkModel, SwitchPath

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
    dense: Sequence[Run], mine: Sequence[Run], gbps: Sequence[float], latency_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the row of each rate for a method's runs, which differ in their seeds, beside dense ones."""
    baseline = _Baseline(dense, _target(dense), median(run.compute_s for run in dense))
    sooner = baseline.pays_below(mine, latency_s) if mine[0].setting.method != DENSE else None
    learned = _learned(mine, baseline)
    for rate in gbps:
        link = LinkModel(latency_s, rate)
        paths, times = [fastest(run, link) for run in mine], baseline.times(mine, link)
        yield {
            "gbps": rate,
            **learned,
            "over": paths[0].name,
            "compress_ms": round(1e3 * mean(path.compress_s for path in paths), 3),
            "network_ms": round(1e3 * mean(path.network_s for path in paths), 4),
            "time_s": _rounded(_mean_of_all(times)),
            "time_spread_s": _spread(times),
            "faster": _rounded(baseline.faster(mine, link)),
            "pays_below_gbps": None if sooner is None else float(f"{sooner:.2g}"),
        }


def _learned(runs: Sequence[Run], baseline: _Baseline) -> dict[str, Any]:
    """Return the figures that do not depend on the link."""
    finals, steps = [run.curve[-1][1] for run in runs], [baseline.steps(run) for run in runs]
    late = [next((metric for at, metric in run.curve if at >= _LATE * run.steps), None) for run in runs]
    sent, dense = (mean(run.wire_bytes / max(run.done, 1) for run in each) for each in (runs, baseline.dense))
    return {
        "data": runs[0].data,
        "metric": runs[0].metric,
        "trained": runs[0].steps,
        "at_80_percent": _rounded(_mean_of_all(late)),
        "final": _rounded(_mean_of_all(finals)),
        "final_spread": _spread(finals),
        "target": _rounded(baseline.target),
        "reached": sum(count is not None for count in steps),
        "steps_to_target": _rounded(_mean_of_all(steps)),
        "bytes_per_step": round(sent),
        "times_less": round(dense / sent, 2),
        "compute_ms": round(1e3 * baseline.compute_s, 3),
    }


@dataclass(frozen=True)
class _Baseline:
    """Dense training, with which methods are compared."""

    dense: Sequence[Run]
    """The runs of dense training."""
    target: float | None
    """The value to reach."""
    compute_s: float
    """Seconds of a step's computation, which all methods have in common."""

    def steps(self, run: Run) -> int | None:
        """Return a run's steps to the first measurement that reaches the target; None if there is none."""
        if self.target is None:
            return None
        for steps, value in run.curve:
            if value is not None and (value >= self.target if run.higher else value <= self.target):
                return steps
        return None

    def times(self, runs: Sequence[Run], link: LinkModel) -> list[float | None]:
        """Return the seconds of each run to the target."""
        counts = [self.steps(run) for run in runs]
        return [
            None if count is None else count * (self.compute_s + fastest(run, link).seconds)
            for run, count in zip(runs, counts, strict=True)
        ]

    def faster(self, runs: Sequence[Run], link: LinkModel) -> float | None:
        """Return dense training's mean time over that of other runs; None unless all reach the target."""
        mine, dense = _mean_of_all(self.times(runs, link)), _mean_of_all(self.times(self.dense, link))
        return None if dense is None or not mine else dense / mine

    def pays_below(self, runs: Sequence[Run], latency_s: float) -> float | None:
        """Return the highest rate at which the runs are faster than dense training; None if there is none."""
        count = round(math.log10(_MOST_GBPS / _LEAST_GBPS) * _PER_DECADE)
        rates = (_LEAST_GBPS * 10 ** (number / _PER_DECADE) for number in range(count, -1, -1))
        return next(
            (rate for rate in rates if (self.faster(runs, LinkModel(latency_s, rate)) or 0) > 1), None
        )


def _target(dense: Sequence[Run]) -> float | None:
    """Return the value that all methods have to reach; perplexities are compared by their logarithms."""
    ends = [(run.curve[0][1], run.curve[-1][1]) for run in dense]
    pairs = [(start, end) for start, end in ends if start is not None and end is not None]
    if len(pairs) < len(ends):
        return None
    scale, back = (float, float) if dense[0].higher else (math.log, math.exp)
    start, end = mean(scale(metric) for metric, _ in pairs), mean(scale(metric) for _, metric in pairs)
    return back(start + TARGET_SHARE * (end - start))


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def _spread(values: Sequence[float | None]) -> float | None:
    """Return the standard deviation; None if a value is missing, or there is only one."""
    known = [value for value in values if value is not None]
    return _rounded(stdev(known)) if len(known) == len(values) > 1 else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@dataclass(frozen=True)
class Path:
    """One way to sum, and what a step takes on it. There is no overlap with computation."""

    name: str
    """By what words are summed: "switch", "ring" or "tree".

    "float ring" and "float tree" sum dense gradients without encoding them. "all_gather" sends every worker's
    values and positions to all others.
    """
    compress_s: float
    """Measured seconds of encoding and decoding."""
    network_s: float
    """Modelled seconds of the exchanges."""

    @property
    def seconds(self) -> float:
        """Seconds of both."""
        return self.compress_s + self.network_s


def fastest(run: Run, link: LinkModel) -> Path:
    """Return the fastest path of a run's steps, mean over steps."""
    return min(_paths(run, link), key=lambda path: path.seconds)


def _paths(run: Run, link: LinkModel) -> Iterator[Path]:
    """Yield the paths on which a run's payloads can travel.

    Dense gradients also travel as floats, without encoding. Values and positions can also be gathered.
    """
    traffic, workers = run.traffic, run.setting.workers
    done = max(run.done, 1)
    switch = SwitchPath().network(link)
    words = traffic.summed_words + traffic.broadcast_words
    gathered = _gathered_s(traffic, link, workers)
    yield Path("switch", run.compress_s, (switch.seconds(words, traffic.exchanges) + gathered) / done)
    for name, reduction in _REDUCTIONS.items():
        network = reduction(link, workers)
        broadcast = COLLECTIVES["broadcast"](link, workers)
        seconds = network.seconds(traffic.summed_words, traffic.parts) + gathered
        seconds += broadcast.seconds(traffic.broadcast_words, traffic.broadcasts)
        yield Path(name, run.compress_s, seconds / done)
        if run.kind == "dense":
            yield Path(f"float {name}", 0.0, network.seconds(run.elements, 1))
    if run.kind == "indexed":
        gather = COLLECTIVES["all_gather"](link, workers)
        yield Path("all_gather", run.compress_s, gather.seconds(run.payload_bytes / _WORD_BYTES / done, 1))


def _gathered_s(traffic: Traffic, link: LinkModel, workers: int) -> float:
    """Return the seconds of gathers, each of lengths and then of bytes."""
    network = COLLECTIVES["all_gather"](link, workers)
    return network.seconds(traffic.gathered_bytes / _WORD_BYTES, 2 * traffic.gathers)
