"""Measures rows on a Dask cluster. Needs `distributed`, which the extra `experiments` installs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from peelsum.experiments.experiment import ExperimentError
from peelsum.experiments.plan import Task
from peelsum.experiments.running import Execute, Measured, ended, outcome
from peelsum.experiments.store import Row
from peelsum.extras import missing

#: Seconds to wait for the scheduler.
_CONNECT_S = 30.0


def on_cluster(address: str) -> Execute:
    """Return what measures tasks on the workers of the scheduler at `address`.

    Every worker needs peelsum, and should have one thread: rows that share a machine disturb each other.
    Raises ExperimentError if `distributed` is not installed.
    """
    if importlib.util.find_spec("distributed") is None:
        raise ExperimentError(f"--scheduler: {missing('distributed', 'experiments')}")
    return partial(_execute, address)


def _execute(
    address: str, tasks: Sequence[Task], measure_one: Callable[[Task], list[Row]]
) -> Iterator[Measured]:
    """Yield outcomes as they come in; a row whose worker was lost has failed.

    Cancels what has not begun if the caller stops.
    """
    distributed: Any = importlib.import_module("distributed")
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ExperimentError(f"--scheduler: {address}: {error}; start dask scheduler there") from None
    with client:
        of = {client.submit(outcome, task, measure_one, pure=False): task for task in tasks}
        try:
            for future in distributed.as_completed(of, loop=client.loop):
                yield of[future], ended(of[future], future)
        finally:
            client.cancel(list(of))
