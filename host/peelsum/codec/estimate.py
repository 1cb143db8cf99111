"""Estimate the values that peeling left over. For experiments only: the rest of the codec is exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.kernels import Kernels
from peelsum.codec.layout import SketchLayout
from peelsum.codec.reference import places

#: Candidates per cell for which a scale must leave room: a cell may wrap for exact sums, not for estimates.
ESTIMABLE = 256


def estimate_left_over(
    ops: Kernels,
    layout: SketchLayout,
    sketch: NDArray[np.uint32],
    positions: NDArray[np.int64],
    values: NDArray[np.int32],
    left: NDArray[np.int64],
) -> None:
    """Write estimates of the left-over candidates `left` of positions[k] into values[k].

    On entry, the other elements of `values` hold the peeled values. An estimate is the mean of the
    candidate's three cells, each times the candidate's sign there. Other candidates in these cells have
    independent signs, so the mean is unbiased over seeds, provided that the scale leaves room for ESTIMABLE
    times as many values.
    """
    peeled = np.empty_like(sketch)
    ops.sketch_encode(layout, positions, values, peeled)
    cells, signs = places(layout, positions[left], left)
    seen = ((sketch - peeled)[cells] * signs).view(np.int32)
    values[left] = np.rint(seen.astype(np.float64).mean(axis=1)).astype(np.int32)
