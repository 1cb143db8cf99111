"""Measures rows on this machine: side by side where no time is measured, else one after the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import active_children, get_context

from peelsum.experiments.experiment import Experiment
from peelsum.experiments.plan import Task
from peelsum.experiments.running import Execute, Measured, ended, one_after_the_other, outcome
from peelsum.experiments.store import Row
from peelsum.topology.processes import die_with_parent

#: Fewer rows are measured before other processes have started.
_FEW = 8


def on_this_machine(experiment: Experiment) -> Execute:
    """Return what measures the tasks of an experiment here.

    Rows whose times are measured are alone. The others come first, as many at once as there are processors.
    """
    return partial(_execute, experiment)


def _execute(
    experiment: Experiment, tasks: Sequence[Task], measure_one: Callable[[Task], list[Row]]
) -> Iterator[Measured]:
    timed = [task for task in tasks if experiment.timed and not experiment.is_modelled(task.point)]
    others = [task for task in tasks if task not in timed]
    if len(others) < _FEW:
        timed, others = list(tasks), []
    if others:
        yield from _side_by_side(others, measure_one)
    yield from one_after_the_other(timed, measure_one)


def _side_by_side(tasks: Sequence[Task], measure_one: Callable[[Task], list[Row]]) -> Iterator[Measured]:
    """Yield outcomes as they come in; a row whose process ended has failed."""
    others = set(active_children())
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), initializer=_begin) as pool:
        of = {pool.submit(outcome, task, measure_one): task for task in tasks}
        try:
            for future in as_completed(of):
                yield of[future], ended(of[future], future)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()  # a row may take minutes
            raise


def _begin() -> None:
    """End with the parent, and without words at Ctrl-C."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
