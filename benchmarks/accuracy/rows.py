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

from benchmarks.accuracy.methods import DENSE
from benchmarks.accuracy.training import TrainingRun
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
    dense: Sequence[TrainingRun], runs: Sequence[TrainingRun], gbps: Sequence[float], latency_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the row of each rate for a method's runs, which differ in their seeds, beside dense ones."""
    target, compute_s = _target(dense), median(run.compute_s for run in dense)
    counts = [_steps_to(target, run) for run in runs]
    dense_counts = [_steps_to(target, run) for run in dense]

    def times(
        each: Sequence[TrainingRun], steps: Sequence[int | None], link: LinkModel
    ) -> list[float | None]:
        """Return the seconds of each run to the target."""
        step_s = (compute_s + fastest(run, link).seconds for run in each)
        return [count and count * seconds for count, seconds in zip(steps, step_s, strict=True)]

    def faster(link: LinkModel) -> float | None:
        """Return dense training's mean time over that of the runs; None unless all reach the target."""
        sparse, base = _mean(times(runs, counts, link)), _mean(times(dense, dense_counts, link))
        return None if base is None or not sparse else base / sparse

    pays_below = None
    if runs[0].setting.method != DENSE:
        count = round(math.log10(_MOST_GBPS / _LEAST_GBPS) * _PER_DECADE)
        rates = (_LEAST_GBPS * 10 ** (number / _PER_DECADE) for number in range(count, -1, -1))
        pays_below = next((rate for rate in rates if (faster(LinkModel(latency_s, rate)) or 0) > 1), None)
    finals = [run.curve[-1][1] for run in runs]
    late = [next((metric for at, metric in run.curve if at >= _LATE * run.steps), None) for run in runs]
    sent, dense_sent = (mean(run.wire_bytes / max(run.done, 1) for run in each) for each in (runs, dense))
    for rate in gbps:
        link = LinkModel(latency_s, rate)
        paths, to_target = [fastest(run, link) for run in runs], times(runs, counts, link)
        yield {
            "gbps": rate,
            "data": runs[0].data,
            "metric": runs[0].metric,
            "trained": runs[0].steps,
            "at_80_percent": _rounded(_mean(late)),
            "final": _rounded(_mean(finals)),
            "final_spread": _spread(finals),
            "target": _rounded(target),
            "reached": sum(count is not None for count in counts),
            "steps_to_target": _rounded(_mean(counts)),
            "bytes_per_step": round(sent),
            "times_less": round(dense_sent / sent, 2),
            "compute_ms": round(1e3 * compute_s, 3),
            "over": paths[0].name,
            "compress_ms": round(1e3 * mean(path.compress_s for path in paths), 3),
            "network_ms": round(1e3 * mean(path.network_s for path in paths), 4),
            "time_s": _rounded(_mean(to_target)),
            "time_spread_s": _spread(to_target),
            "faster": _rounded(faster(link)),
            "pays_below_gbps": None if pays_below is None else float(f"{pays_below:.2g}"),
        }


def _target(dense: Sequence[TrainingRun]) -> float | None:
    """Return the value that all methods have to reach; perplexities are compared by their logarithms."""
    starts, ends = ([run.curve[place][1] for run in dense] for place in (0, -1))
    scale, back = (math.log, math.exp) if dense[0].metric == "perplexity" else (float, float)
    start, end = (_mean([value and scale(value) for value in values]) for values in (starts, ends))
    return None if start is None or end is None else back(start + TARGET_SHARE * (end - start))


def _steps_to(target: float | None, run: TrainingRun) -> int | None:
    """Return a run's steps to the first measurement that reaches the target; None if there is none."""
    sign = -1 if run.metric == "perplexity" else 1
    measured = [(steps, value) for steps, value in run.curve if value is not None and target is not None]
    return next((steps for steps, value in measured if sign * value >= sign * (target or 0)), None)


def _mean(values: Sequence[float | None]) -> float | None:
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
