"""Tensors that all workers of a job sum, with results computed independently."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from peelsum.summation import Op, Words
from peelsum.transport import WorkerEndpoint
from peelsum.transport.endpoint_state import GATHER, SCATTER, SUM


@dataclass
class Round:
    """One tensor of every worker, and its expected result."""

    op: Op
    inputs: list[Words]
    collective: Literal["sum", "scatter", "gather"] = "sum"
    root: int | None = None

    def submit(self, endpoint: WorkerEndpoint, worker: int) -> int:
        """Submit a worker's tensor, and return its ticket."""
        collective = {"sum": SUM, "scatter": SCATTER, "gather": GATHER}[self.collective]
        return endpoint.submit(self.inputs[worker], self.op, collective=collective, root=self.root)

    def expected_at(self, worker: int) -> Words:
        """Return the result of one worker."""
        if self.collective == "sum":
            return self.expected
        if self.collective == "scatter":
            return np.split(self.expected, len(self.inputs))[worker]
        return np.concatenate(self.inputs) if self.root is None else self.inputs[self.root]

    @property
    def expected(self) -> Words:
        """Return the workers' sum modulo 2**32, or their bitwise OR."""
        if self.op == "or":
            return np.bitwise_or.reduce(self.inputs)
        return np.sum(np.asarray(self.inputs, np.uint64), axis=0).astype(np.uint32)

    def recomputed(self) -> Round:
        """Return tensors with other values for a restart, so that remains of the old ones change a sum."""
        changed = [words ^ np.uint32(0x5A5A5A5A + len(self.inputs)) for words in self.inputs]
        return replace(self, inputs=changed)
