"""Events that the endpoint and the server report."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.transport.config import MARKER, SEAT
from peelsum.wire import MAX_WORKERS


@dataclass(frozen=True, eq=False)
class TensorCompleted:
    """Every chunk of a tensor is summed."""

    ticket: int
    """The number that `submit` returned for the tensor."""
    words: NDArray[np.uint32]
    """The sum, uint32[n]."""


def named(workers: Sequence[int], last_seen: Sequence[float | None], racks: int) -> str:
    """Return one or more workers as text: numbers, racks if there are any, when each was last seen."""
    ages: Sequence[float | str | None] = last_seen or [""] * len(workers)
    numbers = ", ".join(_worker_text(worker, age, racks) for worker, age in zip(workers, ages, strict=True))
    return f"worker{'s' * (len(workers) > 1)} {numbers}"


def _worker_text(worker: int, age: float | str | None, racks: int) -> str:
    """Return a worker's number with its rack, if there are racks, and when it was last seen.

    age: seconds since then; None: never; "": unknown, and left out.
    """
    notes = [f"rack {worker // MAX_WORKERS}"] if racks else []
    if age is None:
        notes.append("never seen")
    elif isinstance(age, float):
        notes.append(f"last seen {age:.1f} s ago")
    return f"{worker} ({', '.join(notes)})" if notes else str(worker)


def rerun(job_id: int, generation: int | None) -> str:
    """Return what to do before workers can run again after this generation, for messages."""
    with suppress(KeyError, TypeError, ValueError):  # no seat, or none that `peelsum up` wrote
        admission = json.loads(os.environ[SEAT])["admission"]
        if MARKER in os.environ and (admission["job_id"], admission["generation"]) == (job_id, generation):
            return "run `peelsum readmit`, then start all workers again"
    return "admit the job and start its server again, then all workers"


@dataclass(frozen=True)
class Stalled:
    """The job made no progress for a while."""

    job_id: int
    """The job."""
    oldest_chunk: int
    """Chunk id of the oldest incomplete chunk."""
    missing_workers: tuple[int, ...]
    """Numbers of the workers that the chunk waits for; empty while the server has not named any."""
    seconds: float
    """How long there was no progress."""
    last_seen: tuple[float | None, ...] = ()
    """Seconds since each missing worker's last contribution, None for never; always empty at a worker."""
    racks: int = 0
    """Number of racks; 0 with one level."""
    generation: int | None = None
    """The worker's generation; None at the server."""
    mtu: int = 0
    """The MTU in bytes that packets need, if this worker has received none; else 0."""

    def __str__(self) -> str:
        mtu = (
            f"whether every interface on the path, the switch's too, has an MTU of {self.mtu} or more, as no "
            "packet has come back, "
            if self.mtu
            else ""
        )
        it_is = "they are" if len(self.missing_workers) > 1 else "it is"
        reason = (
            f"still waiting for {named(self.missing_workers, self.last_seen, self.racks)}; see whether "
            f"{it_is} running, or give a longer timeout_s if {it_is} slow"
            if self.missing_workers
            else "the aggregation server has not answered; see whether it and the switch are running, "
            f"{mtu}and whether `peelsum status` has the job in generation {self.generation}. If generation "
            f"{self.generation} has run before, {rerun(self.job_id, self.generation)}"
        )
        return (
            f"job {self.job_id}: no progress on chunk {self.oldest_chunk} for {self.seconds:.1f} s: {reason}"
        )


@dataclass(frozen=True)
class WorkerLeft:
    """Another worker has finished while this one was still summing: their chunks were combined."""

    job_id: int
    """The job."""

    def __str__(self) -> str:
        return (
            f"job {self.job_id}: a worker has left while this one still sums: by an error of its own, which "
            "its output has, or because it calls sum less often; have all call it equally often, with equal "
            "lengths"
        )


@dataclass(frozen=True)
class JobFinished:
    """The job has finished at this endpoint or server."""

    job_id: int
    """The job."""
    confirmed: bool
    """Whether every worker is known to have every result; False if the wait for that timed out."""


Event = TensorCompleted | Stalled | WorkerLeft | JobFinished
