"""What the endpoint and the server report, in the past tense. They hold values only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class TensorCompleted:
    """Every chunk of the tensor submitted as `ticket` is summed: `words` is the sum, uint32[n]."""

    ticket: int
    words: NDArray[np.uint32]


@dataclass(frozen=True)
class Stalled:
    """Nothing moved for `seconds`. `missing_workers` is empty while the server has not named any."""

    job_id: int
    oldest_chunk: int
    missing_workers: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        who = ", ".join(map(str, self.missing_workers))
        reason = (
            f"still waiting for worker {who}; see whether it is running"
            if self.missing_workers
            else "the aggregation server has not answered; see whether it and the switch are running"
        )
        return (
            f"job {self.job_id}: no progress on chunk {self.oldest_chunk} for {self.seconds:.1f} s: {reason}"
        )


@dataclass(frozen=True)
class JobFinished:
    """The job is over here. `confirmed`: every worker has every result; else the wait for that ran out."""

    job_id: int
    confirmed: bool


Event = TensorCompleted | Stalled | JobFinished
