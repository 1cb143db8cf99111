"""Runs an experiment's plan: skips rows that there are, measures the others, keeps each at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from peelsum.experiments.loading import Source, load
from peelsum.experiments.machine import commit
from peelsum.experiments.measuring import Care, measure
from peelsum.experiments.plan import Task, plan
from peelsum.experiments.store import Row, Store, key, text, texts


@dataclass(frozen=True)
class Failed:
    """A task whose row could not be measured."""

    task: Task
    error: str
    """Kind and message, in one line."""


Measured = tuple[Task, Row | Failed]
#: Takes tasks and a function that measures one; yields each task's outcome, in any order.
Execute = Callable[[Sequence[Task], Callable[[Task], Row]], Iterator[Measured]]


@dataclass(frozen=True)
class Run:
    """Which rows to measure, and how."""

    source: Source
    size: str = "usual"
    seed: int = 0
    care: Care = field(default_factory=Care)


@dataclass(frozen=True)
class Report:
    """The result of a run."""

    rows: Sequence[Row]
    """All rows of the plan that there are now, in its order."""
    kept: int
    """Rows that earlier runs had measured."""
    failed: Sequence[Failed]
    """Tasks without a row."""


class Watch:
    """Callbacks that report progress. These do nothing; subclasses may."""

    def starts(self, rows: int) -> None:
        """Take the number of rows that are to be measured."""

    def measured(self, outcome: Measured) -> None:
        """Take a row, or what failed."""


def one_after_the_other(tasks: Sequence[Task], measure_one: Callable[[Task], Row]) -> Iterator[Measured]:
    """Measure tasks in this process, in order."""
    for task in tasks:
        yield task, outcome(task, measure_one)


def outcome(task: Task, measure_one: Callable[[Task], Row]) -> Row | Failed:
    """Return a task's row, or what failed."""
    try:
        return measure_one(task)
    except Exception as error:  # an experiment may raise anything; the other rows are measured nevertheless
        return _failed(task, error)


def ended(task: Task, future: Any) -> Row | Failed:
    """Return the result of a future of `outcome`, or what ended its process."""
    error = future.exception()
    if error is not None:
        return _failed(task, error)
    done: Row | Failed = future.result()
    return done


def _failed(task: Task, error: BaseException) -> Failed:
    return Failed(task, f"{type(error).__name__}: {' '.join(str(error).split())}")


def run(what: Run, path: Path, execute: Execute = one_after_the_other, watch: Watch | None = None) -> Report:
    """Measure what is missing among the rows of the file at `path`, and append it there.

    Rows count as measured if parameters, repetition, seed, commit and the experiment's file are the same.
    Raises ExperimentError.
    """
    experiment, watch = load(what.source), watch or Watch()
    tasks = plan(experiment, what.size, what.seed)
    ours = commit()
    wanted = [_key(what, task) for task in tasks]
    with Store(path, experiment) as store:
        there = {key(experiment, row): row for row in store.rows}
        missing = [task for task, one in zip(tasks, wanted, strict=True) if one not in there]
        watch.starts(len(missing))
        measure_one = partial(_measure, what.source, what.care, ours, what.size)
        failed = []
        for done in execute(missing, measure_one):
            if isinstance(done[1], Failed):
                failed.append(done[1])
            else:
                store.add(done[1])
                there[key(experiment, done[1])] = done[1]
            watch.measured(done)
    rows = [there[one] for one in wanted if one in there]
    return Report(rows, len(tasks) - len(missing), failed)


def rows_of(what: Run, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a plan among others, in its order: the last of each, of whatever commit and file."""
    experiment = load(what.source)
    last = {key(experiment, row)[:-2]: row for row in rows}
    wanted = (_key(what, task)[:-2] for task in plan(experiment, what.size, what.seed))
    return [last[one] for one in wanted if one in last]


def _measure(source: Source, care: Care, ours: str, size: str, task: Task) -> Row:
    return measure(source, task, care, commit=ours, size=size)


def _key(what: Run, task: Task) -> tuple[str, ...]:
    experiment = load(what.source)
    known_by = {"repetition": text(task.repetition), "seed": text(task.seed)}
    ours = {"commit": commit(), "source": what.source.digest}
    return key(experiment, texts(experiment, task.point) | known_by | ours)
