"""The sums of one bucket by the method and ratio that a strategy decides for each step.

All methods share a memory, so that what one has not sent the next one sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from peelsum.compress import CompressedResult, CompressedSum, Compressor, Dense, Single, StarTopK, TopK
from peelsum.flexible import DENSE, Method
from peelsum.torch.decisions import Decisions


class FlexibleSum:
    """The sum of a bucket; `make` returns its sum by a method at a ratio, each of which is kept."""

    def __init__(self, decisions: Decisions, make: Callable[[Method, float], CompressedSum]) -> None:
        self._decisions, self._make = decisions, make
        self._sums: dict[tuple[Method, float], CompressedSum] = {}

    def sum(self, tensors: Mapping[str, NDArray[np.float32]], step: int) -> CompressedResult:
        """See `CompressedSum.sum`; the step's decision must have been made."""
        plan = self._decisions.next
        key = plan.method, plan.ratio
        if key not in self._sums:
            self._sums[key] = self._make(*key)
        result = self._sums[key].sum(tensors, step)
        self._decisions.add(result)
        return result


def compressor_of(method: Method, ratio: float) -> Compressor:
    """Return the compressor of a method, which sends a share `ratio` of each tensor's elements."""
    if method in DENSE:
        return Dense()
    if method == "top_k_all_gather":
        return TopK(ratio, quantizer=Single())
    return TopK(ratio) if method == "top_k_switch" else StarTopK(ratio)
