"""`peelsum bench accuracy`: what each compression method costs in accuracy, and on which links it pays.

Training is measured, once for each setting, since its results do not depend on the link. The network's time
is modelled for each link. Time to a target is steps times the seconds of computing, compressing, exchanging.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from peelsum.bench.accuracy.methods import DENSE, parse
from peelsum.bench.accuracy.network import fastest
from peelsum.bench.accuracy.report import Row
from peelsum.bench.accuracy.shares import check_shares
from peelsum.bench.accuracy.subjects import PUBLISHED, SubjectName, make_subject
from peelsum.bench.accuracy.training import Run, Setting, require_sgd, train
from peelsum.flexible import LinkModel

#: The target is this share of what dense training improves, from the start to its last measurement.
TARGET_SHARE = 0.95
#: Rates among which `Row.pays_below_gbps` is looked for, in Gbit/s, and how many for a factor of ten.
_LEAST_GBPS, _MOST_GBPS, _PER_DECADE = 1e-3, 1e3, 20


class KeptRunsError(ValueError):
    """A file of kept runs that cannot be used. The message names file, fault and remedy in one line."""


@dataclass(frozen=True)
class Request:
    """The options of the benchmark."""

    models: tuple[SubjectName, ...] = ("digits", "ratings", "text")
    methods: tuple[str, ...] = (DENSE, "top-k:0.01")
    workers: int = 4
    seeds: int = 3
    """Runs of each method, with seeds from 0."""
    shares: tuple[str, ...] = ("iid",)
    """Divisions of the examples among workers; each gives a comparison of its own."""
    gbps: tuple[float, ...] = (0.1, 1.0, 10.0)
    latency_s: float = 50e-6
    """Seconds that a message takes."""
    steps: int | None = None
    """Steps of every run; None takes each subject's."""
    device: str = "cpu"
    """Where models compute, "cpu" or "cuda"."""
    path: str = ""
    """Published data of the only model, see `make_subject`; empty for data that every machine has."""

    def settings(self) -> list[Setting]:
        """Return the settings to train: the first methods of all models first.

        Dense training is always among them. Raises MethodError, SharesError, CompressError.
        """
        for shares in self.shares:
            check_shares(shares)
        methods = list(dict.fromkeys((DENSE, *self.methods)))
        for text in methods:
            method = parse(text, 1)
            if method.compressor:
                method.compressor.check(self.workers)
            for model in self.models if method.momentum else ():
                require_sgd(make_subject(model), method)
        return [
            Setting(model, method, self.workers, shares, seed, self.steps, self.device, self.path)
            for method in methods
            for model in self.models
            for shares in self.shares
            for seed in range(self.seeds)
        ]


def bench_accuracy(request: Request, kept: Path | None = None) -> list[Row]:
    """Train the runs that are not kept yet, keep each as soon as it is done, and return all rows.

    Raises MethodError, SharesError, CompressError, TrainingDataError, KeptRunsError.
    """
    return rows_of(list(measure(request, kept)), request.gbps, request.latency_s)


def measure(request: Request, kept: Path | None = None) -> Iterator[Run]:
    """Yield the requested runs; see `bench_accuracy`."""
    settings = request.settings()
    runs = read_runs(kept) if kept and kept.exists() else {}
    if kept:
        _write(kept, list(runs.values()))
    for setting in settings:
        if setting not in runs:
            runs[setting] = train(setting)
            if kept:
                _write(kept, list(runs.values()))
        yield runs[setting]


def rows_of(runs: Sequence[Run], gbps: Sequence[float], latency_s: float) -> list[Row]:
    """Return a row for each model, method and rate, model by model. Each model's runs include dense ones."""
    groups, rows = grouped(runs), []
    compared: dict[tuple[Any, ...], list[list[Run]]] = {}
    for mine in groups.values():
        compared.setdefault(_group(replace(mine[0].setting, method=DENSE)), []).append(mine)
    for key, methods in compared.items():
        everything = [run for mine in methods for run in mine]
        baseline = _Baseline(groups[key], _target(groups[key]), median(run.compute_s for run in everything))
        for mine in methods:
            sooner = baseline.pays_below(mine, latency_s) if mine[0].setting.method != DENSE else None
            rows += [_row(mine, baseline, LinkModel(latency_s, rate), sooner) for rate in gbps]
    return rows


def grouped(runs: Sequence[Run]) -> dict[tuple[Any, ...], list[Run]]:
    """Return the runs that differ in nothing but their seeds, by (model, method, workers, shares, steps)."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(_group(run.setting), []).append(run)
    return groups


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


def _row(runs: Sequence[Run], baseline: _Baseline, link: LinkModel, sooner: float | None) -> Row:
    setting, first = runs[0].setting, runs[0]
    finals = [run.curve[-1][1] for run in runs]
    known = [value for value in finals if value is not None]
    steps, times = [baseline.steps(run) for run in runs], baseline.times(runs, link)
    faster = baseline.faster(runs, link)
    paths = [fastest(run, link) for run in runs]
    sent = mean(run.wire_bytes / max(run.done, 1) for run in runs)
    return Row(
        model=setting.model,
        data=first.data,
        published=PUBLISHED.get(setting.model, "") if setting.path else "",
        method=setting.method,
        workers=setting.workers,
        shares=setting.shares,
        seeds=len(runs),
        steps=first.steps,
        metric=first.metric,
        final=_rounded(mean(known)) if len(known) == len(runs) else None,
        final_spread=_spread(known) if len(known) == len(runs) else None,
        target=_rounded(baseline.target),
        reached=sum(one is not None for one in steps),
        steps_to_target=_rounded(_mean_of_all(steps)),
        bytes_per_step=round(sent),
        times_less=round(mean(run.wire_bytes / max(run.done, 1) for run in baseline.dense) / sent, 2),
        compute_ms=round(1e3 * baseline.compute_s, 3),
        gbps=link.gbps,
        latency_ms=1e3 * link.latency_s,
        path=paths[0].name,
        compress_ms=round(1e3 * mean(path.compress_s for path in paths), 3),
        network_ms=round(1e3 * mean(path.network_s for path in paths), 4),
        time_s=_rounded(_mean_of_all(times)),
        time_spread_s=_spread([time for time in times if time is not None]) if None not in times else None,
        faster=_rounded(faster),
        pays_below_gbps=None if sooner is None else float(f"{sooner:.2g}"),
    )


def _group(setting: Setting) -> tuple[Any, ...]:
    return setting.model, setting.method, setting.workers, setting.shares, setting.steps


def _target(dense: Sequence[Run]) -> float | None:
    """Return the value that all methods have to reach; perplexities are compared by their logarithms."""
    ends = [(run.curve[0][1], run.curve[-1][1]) for run in dense]
    pairs = [(start, end) for start, end in ends if start is not None and end is not None]
    if len(pairs) < len(ends):
        return None
    scale, back = (float, float) if dense[0].higher else (math.log, math.exp)
    start, end = mean(scale(one) for one, _ in pairs), mean(scale(one) for _, one in pairs)
    return back(start + TARGET_SHARE * (end - start))


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def _spread(values: Sequence[float]) -> float | None:
    return _rounded(stdev(values)) if len(values) > 1 else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def read_runs(path: Path) -> dict[Setting, Run]:
    """Read kept runs, by their settings. Raises KeptRunsError if the file is not one of them."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        runs = [Run(**one | _typed(one)) for one in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeptRunsError(
            f"{path}: is not a file of runs ({type(error).__name__}: {error}); pass another, or remove it"
        ) from error
    return {run.setting: run for run in runs}


def _typed(one: dict[str, Any]) -> dict[str, Any]:
    return {"setting": Setting(**one["setting"]), "curve": [(step, value) for step, value in one["curve"]]}


def _write(path: Path, runs: Sequence[Run]) -> None:
    """Replace the file at once, so that an interrupt leaves the old or the new one; a line for each run."""
    lines = ",\n".join(json.dumps(asdict(run)) for run in runs)
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise KeptRunsError(f"{path}: cannot be written ({error.strerror}); pass another path") from error
