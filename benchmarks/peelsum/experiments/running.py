"""Runs an experiment's plan: skips rows that there are, measures the others, keeps each at once.

Rows whose times are measured are alone. The others come first, as many at once as there are processors.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path

from pydantic import BaseModel, ValidationError

from peelsum.control.validation import first_validation_error
from peelsum.experiments.experiment import Experiment, Task, Value, plan
from peelsum.experiments.loading import Source, load
from peelsum.experiments.machine import commit
from peelsum.experiments.measuring import Care, measure
from peelsum.experiments.store import Row, Store, complete, key, text, texts
from peelsum.processes.children import die_with_parent

#: Fewer rows are measured before other processes have started.
_FEW = 8


@dataclass(frozen=True)
class Failed:
    """A task whose row could not be measured."""

    task: Task
    error: str
    """Kind and message, in one line."""


Measured = tuple[Task, list[Row] | Failed]
_MeasureOne = Callable[[Task], list[Row]]


@dataclass(frozen=True)
class Run:
    """Which rows to measure, and how."""

    source: Source
    size: str = "usual"
    seed: int = 0
    care: Care = field(default_factory=Care)
    given: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """Parameters' values, in place of the size's."""
    again: bool = False
    """Whether to measure rows that were measured already."""

    @property
    def tasks(self) -> list[Task]:
        """The plan."""
        return plan(load(self.source), self.size, self.seed, self.given)


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


def run(what: Run, path: Path, watch: Watch | None = None) -> Report:
    """Measure what is missing among the rows of the file at `path`, and append it there.

    Rows count as measured if parameters, repetition, seed, commit and the experiment's file are the same.
    Raises ExperimentError.
    """
    experiment, watch = load(what.source), watch or Watch()
    tasks = what.tasks
    ours = commit()
    wanted = [_key(what, task) for task in tasks]
    with Store(path, experiment) as store:
        there = {} if what.again else store.tasks()
        missing = [task for task, one in zip(tasks, wanted, strict=True) if one not in there]
        watch.starts(len(missing))
        measure_one = partial(_measure, what.source, what.care, ours, what.size)
        failed = []
        for done in _execute(experiment, missing, measure_one):
            if isinstance(done[1], Failed):
                failed.append(done[1])
            else:
                for row in done[1]:
                    store.add(row)
                there[_key(what, done[0])] = done[1]
            watch.measured(done)
    rows = [row for one in wanted for row in there.get(one, ())]
    new = sum(len(there.get(_key(what, task), ())) for task in missing)
    return Report(rows, len(rows) - new, failed)


def rows_of(what: Run, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a plan among others, in its order: the last of each, of whatever commit and file."""
    last = complete(load(what.source), rows, ignoring=2)
    return [row for task in what.tasks for row in last.get(_key(what, task)[:-2], ())]


def _execute(experiment: Experiment, tasks: Sequence[Task], measure_one: _MeasureOne) -> Iterator[Measured]:
    """Yield each task's outcome, in any order."""
    timed = [task for task in tasks if experiment.timed and not experiment.is_modelled(task.point)]
    others = [task for task in tasks if task not in timed]
    if len(others) < _FEW:
        timed, others = list(tasks), []
    if others:
        yield from _side_by_side(others, measure_one)
    for task in timed:
        yield task, _outcome(task, measure_one)


def _side_by_side(tasks: Sequence[Task], measure_one: _MeasureOne) -> Iterator[Measured]:
    """Yield outcomes as they come in; a row whose process ended has failed."""
    others = set(active_children())
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), initializer=_begin) as pool:
        of = {pool.submit(_outcome, task, measure_one): task for task in tasks}
        try:
            for future in as_completed(of):
                error = future.exception()
                yield of[future], _failed(of[future], error) if error else future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()  # a row may take minutes
            raise


def _begin() -> None:
    """End with the parent, and without words at Ctrl-C."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _outcome(task: Task, measure_one: _MeasureOne) -> list[Row] | Failed:
    """Return a task's rows, or what failed."""
    try:
        return measure_one(task)
    except Exception as error:  # an experiment may raise anything; the other rows are measured nevertheless
        return _failed(task, error)


def _failed(task: Task, error: BaseException) -> Failed:
    if isinstance(error, ValidationError):
        return Failed(task, first_validation_error(error, f"a {error.title.lower()}", BaseModel))
    # Our own errors say what to do; the names of others say what they are.
    kind = "" if type(error).__module__.startswith("peelsum.") else f"{type(error).__name__}: "
    return Failed(task, f"{kind}{' '.join(str(error).split())}")


def _measure(source: Source, care: Care, ours: str, size: str, task: Task) -> list[Row]:
    return measure(source, task, care, commit=ours, size=size)


def _key(what: Run, task: Task) -> tuple[str, ...]:
    experiment = load(what.source)
    known_by = {"repetition": text(task.repetition), "seed": text(task.seed)}
    ours = {"commit": commit(), "source": what.source.digest}
    return key(experiment, texts(experiment, task.point) | known_by | ours)
