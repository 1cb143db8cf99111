"""Tensors that all workers of a job sum, with results computed independently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peelsum.summation import Op, Words


@dataclass
class Round:
    """One tensor of every worker, and its expected result."""

    op: Op
    inputs: list[Words]

    @property
    def expected(self) -> Words:
        """Return the workers' sum modulo 2**32, or their bitwise OR."""
        if self.op == "or":
            return np.bitwise_or.reduce(self.inputs)
        return np.sum(np.asarray(self.inputs, np.uint64), axis=0).astype(np.uint32)

    def recomputed(self) -> Round:
        """Return tensors with other values for a restart, so that remains of the old ones change a sum."""
        return Round(self.op, [words ^ np.uint32(0x5A5A5A5A + len(self.inputs)) for words in self.inputs])
