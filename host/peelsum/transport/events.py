"""What the endpoint and the server report, in the past tense. They hold values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.wire import MAX_WORKERS


@dataclass(frozen=True, eq=False)
class TensorCompleted:
    """Every chunk of the tensor submitted as `ticket` is summed: `words` is the sum, uint32[n]."""

    ticket: int
    words: NDArray[np.uint32]


def named(workers: Sequence[int], last_seen: Sequence[float | None], racks: int) -> str:
    """Workers as a list for people: numbers, racks where there are any, and when each was last seen."""
    ages: Sequence[float | str | None] = last_seen or [""] * len(workers)
    return ", ".join(_named(worker, age, racks) for worker, age in zip(workers, ages, strict=True))


def _named(worker: int, age: float | str | None, racks: int) -> str:
    notes = [f"rack {worker // MAX_WORKERS}"] if racks else []
    if age is None:
        notes.append("never seen")
    elif isinstance(age, float):
        notes.append(f"last seen {age:.1f} s ago")
    return f"{worker} ({', '.join(notes)})" if notes else str(worker)


@dataclass(frozen=True)
class Stalled:
    """Nothing moved for `seconds`. `missing_workers` is empty while the server has not named any.

    `last_seen`: at the server, how many seconds ago something of each missing worker's last came, None for
    never; empty at workers, who don't know. `racks`: how many racks the job has, 0 with one level.
    `generation`: the worker's; None at the server.
    """

    job_id: int
    oldest_chunk: int
    missing_workers: tuple[int, ...]
    seconds: float
    last_seen: tuple[float | None, ...] = ()
    racks: int = 0
    generation: int | None = None

    def __str__(self) -> str:
        who = named(self.missing_workers, self.last_seen, self.racks)
        reason = (
            f"still waiting for worker {who}; see whether it is running"
            if self.missing_workers
            else "the aggregation server has not answered; see whether it and the switch are running, and "
            f"whether `peelsum status` has the job in generation {self.generation}. If generation "
            f"{self.generation} has run before, admit the job and start its server again, then all workers"
        )
        return (
            f"job {self.job_id}: no progress on chunk {self.oldest_chunk} for {self.seconds:.1f} s: {reason}"
        )


@dataclass(frozen=True)
class WorkerLeft:
    """Some worker finished, and its last, empty chunk met one that this worker still had summed."""

    job_id: int

    def __str__(self) -> str:
        return (
            f"job {self.job_id}: a worker has left while this one still sums: by an error of its own, which "
            "its output has, or because it calls sum less often; have all call it equally often, with equal "
            "lengths"
        )


@dataclass(frozen=True)
class JobFinished:
    """The job is over here. `confirmed`: every worker has every result; else the wait for that ran out."""

    job_id: int
    confirmed: bool


Event = TensorCompleted | Stalled | WorkerLeft | JobFinished
