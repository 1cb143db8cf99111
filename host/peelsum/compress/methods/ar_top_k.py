"""AR-Topk: the workers take turns to choose, or the one with the largest variance does."""

from __future__ import annotations

import math

import numpy as np

from peelsum.compress.compressor import Floats, TensorState
from peelsum.compress.sparsifier import Elected


class StarTopK(Elected):
    """STAR-Topk: the workers take turns; worker (step mod workers) decides the index.

    An element waits up to `workers` steps for a worker that ranks it high. The sum has k elements.
    """

    name = "star"


class VarTopK(Elected):
    """VAR-Topk: the worker whose k largest elements have the largest variance decides the index.

    The variances are compared as float32 numbers, rounded up.
    """

    name = "var"
    by_merit = True

    def merit(self, tensor: Floats, state: TensorState) -> float:
        """Return the variance of this worker's top-k values; its sums are rounded once."""
        values = tensor[self.own(tensor, state)].astype(np.float64)
        if not values.size:
            return 0.0
        mean = math.fsum(values) / values.size
        return math.fsum((values - mean) ** 2) / values.size
