"""Measures the rows of a task: calls the function, watches the machine, and repeats disturbed rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from peelsum.experiments.experiment import RESERVED, Experiment, ExperimentError, Task, Value
from peelsum.experiments.loading import Source, load
from peelsum.experiments.machine import Load, Watched, machine, versions
from peelsum.experiments.store import PART, Row, text, texts


@dataclass(frozen=True)
class Care:
    """How disturbed rows are treated."""

    calm: float = 0.25
    """The largest share of the processors that others may use while a row is measured."""
    attempts: int = 3
    """How often a row is measured at most; if all were disturbed, the least disturbed counts."""


def measure(source: Source, task: Task, care: Care, *, commit: str, size: str) -> list[Row]:
    """Measure a task's rows; return them as they are written. `commit` and `size` are the run's.

    Where a size measures each point once, disturbed rows are not repeated.
    Raises ExperimentError if `measure` returned other columns, and whatever `measure` raises.
    """
    experiment = load(source)
    timed = experiment.timed and not experiment.is_modelled(task.point)
    attempts = care.attempts if timed and experiment.size(size).repetitions > 1 else 1
    best: tuple[float, list[Row]] | None = None
    for attempt in range(1, attempts + 1):
        started, watched = datetime.now(UTC), Watched()
        found = checked(experiment, experiment.measure(seed=task.seed, **task.point))
        # Rows without measured times run side by side, so that each would count the others.
        seen = watched.load() if timed else replace(watched.load(), others=None)
        others = seen.others or 0.0
        known = {
            "started": started.isoformat(timespec="seconds"),
            "attempt": f"{attempt} of {attempts}",
            "disturbed": text(others > care.calm),
            "commit": commit,
            "size": size,
            "source": source.digest,
        }
        if best is None or others < best[0]:
            best = others, [_row(experiment, task, one, seen) | known for one in found]
        if others <= care.calm:
            break
    assert best is not None
    return best[1]


def checked(experiment: Experiment, found: Mapping[str, Value] | Iterable[Any]) -> list[dict[str, Value]]:
    """Return the rows that `measure` returned. Raises ExperimentError, which names a column that is wrong."""
    if not experiment.keys:
        return [_checked(experiment, found, {})]
    if isinstance(found, Mapping) or not isinstance(found, Iterable):
        found = [found]
    rows = list(found)
    return [_checked(experiment, row, {PART: f"{n} of {len(rows)}"}) for n, row in enumerate(rows, 1)]


def _checked(experiment: Experiment, row: Any, part: dict[str, Value]) -> dict[str, Value]:
    if not isinstance(row, Mapping):
        raise ExperimentError(f"measure: returned {type(row).__name__}; return a dict of all columns")
    extra = {*experiment.parameters, *RESERVED} - {"note"}
    figures = {name: value for name, value in row.items() if name not in extra}
    for name in experiment.columns:
        if name not in figures:
            raise ExperimentError(f"measure: {name}: is missing from what it returned; add it")
    for name in figures:
        if name not in experiment.columns and name != "note":
            raise ExperimentError(f"measure: {name}: is not among `columns`; add it there, or leave it out")
    return figures | part


def _row(experiment: Experiment, task: Task, figures: Mapping[str, Value], seen: Load) -> Row:
    return {
        **texts(experiment, task.point),
        **({PART: text(figures[PART])} if PART in figures else {}),
        **{name: text(figures[name]) for name in experiment.columns},
        "note": text(figures.get("note")),
        "repetition": text(task.repetition),
        "seed": text(task.seed),
        "wall_s": f"{seen.wall_s:.3f}",
        "cpu_s": f"{seen.cpu_s:.3f}",
        "load": f"{seen.load:.2f}",
        "others": "" if seen.others is None else f"{seen.others:.3f}",
        "modelled": text(experiment.is_modelled(task.point)),
        "machine": machine(),
        "versions": versions(),
    }
