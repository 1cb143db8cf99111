"""Estimates of what peeling left over, for experiments only: all else in the codec is exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.kernels import Kernels
from peelsum.codec.layout import SketchLayout
from peelsum.codec.reference import places

#: Exact sums may wrap in a cell, estimates may not: scales leave room for so many candidates to a cell.
ESTIMABLE = 256


def estimate_left_over(
    ops: Kernels,
    layout: SketchLayout,
    sketch: NDArray[np.uint32],
    positions: NDArray[np.int64],
    values: NDArray[np.int32],
    left: NDArray[np.int64],
) -> None:
    """Estimate the candidates `left` of positions[k] in values[k], where the others are what was peeled.

    The mean of a candidate's cells, each times its sign there: whatever else lies in them has signs of its
    own, so the mean is unbiased over seeds, if the scale leaves room for ESTIMABLE times as many values.
    """
    peeled = np.empty_like(sketch)
    ops.sketch_encode(layout, positions, values, peeled)
    cells, signs = places(layout, positions[left])
    seen = ((sketch - peeled)[cells] * signs).view(np.int32)
    values[left] = np.rint(seen.astype(np.float64).mean(axis=1)).astype(np.int32)
