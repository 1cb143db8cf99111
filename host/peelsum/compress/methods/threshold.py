"""The elements above a threshold."""

from __future__ import annotations

import numpy as np

from peelsum import kept_pages
from peelsum.compress.arguments import Level
from peelsum.compress.compressor import Floats, Positions, TensorState
from peelsum.compress.sparsifier import Sparsifier


class Threshold(Sparsifier):
    """The elements of at least magnitude `value`, above 0 (Strom, Interspeech'15; here without quantizing).

    What it leaves out is below `value` in each element: an absolute bound, and no contraction.
    """

    name = "threshold"
    value: Level = 0.01

    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        return np.flatnonzero(np.abs(tensor, out=kept_pages.empty(tensor.size, np.float32)) >= self.value)
