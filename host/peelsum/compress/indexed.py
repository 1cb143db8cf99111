"""The sum of chosen elements by the exact allreduce: of all tensors of a bucket as one, or of each by itself.

As one, the tensors lie end to end: a bucket of small tensors takes one plan, one index and one result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import TensorResult
from peelsum.compress.compressor import Floats, Positions
from peelsum.compress.memory import MOST_BITS, Exact
from peelsum.compress.result import CompressedTensor

#: The name of all tensors as one.
JOINED = "(joined)"
#: The shapes of tensors that lie end to end, by name, in order.
Shapes = Mapping[str, tuple[int, ...]]
#: The scales of the tensors' grids, by name; a tensor without one has no values yet.
Grids = Mapping[str, int | None]


def parted(joined: Floats, shapes: Shapes) -> dict[str, Floats]:
    """Return each tensor's elements float32[n], as views of those of all tensors."""
    spans = pairwise([0, *_ends(shapes).tolist()])
    return {name: joined[begin:end] for name, (begin, end) in zip(shapes, spans, strict=True)}


def results(result: TensorResult, shapes: Shapes, grids: Grids | None) -> list[CompressedTensor]:
    """Return each tensor's result, given the result of all as one.

    grids: None without error feedback, when `sent` is None.
    """
    values, known = parted(result.values.reshape(-1), shapes), result.finite
    union = _counts(_union(result), shapes)
    own, numbers = _own(result)
    sent = _sent(result, own, numbers, shapes, grids) if known and grids is not None else [None] * len(values)
    return [
        CompressedTensor(
            name=name,
            form=result.form,
            index=result.index,
            values=values[name].reshape(shape),
            finite=known,
            sent=one,
            density=share(in_union, values[name].size) if known else math.nan,
            density_worker=share(in_own, values[name].size) if known else math.nan,
            error_bound=result.error_bound,
        )
        for (name, shape), one, in_union, in_own in zip(
            shapes.items(), sent, union.tolist(), _counts(own, shapes).tolist(), strict=True
        )
    ]


def share(count: int, elements: int) -> float:
    """Return count / elements; 0 of a tensor without elements."""
    return count / max(elements, 1)


def _ends(shapes: Shapes) -> NDArray[np.int64]:
    return np.cumsum([math.prod(shape) for shape in shapes.values()], dtype=np.int64)


def _counts(positions: Positions, shapes: Shapes) -> NDArray[np.int64]:
    """Return how many of ascending positions lie in each tensor."""
    return np.diff(np.searchsorted(positions, _ends(shapes)), prepend=0)


def _union(result: TensorResult) -> Positions:
    """Return the elements that are not zero on any worker, by the index; without one, in the sum."""
    positions = result.positions
    return np.flatnonzero(result.total_at.any(0)) if positions is None else positions


def _own(result: TensorResult) -> tuple[Positions, NDArray[np.int64]]:
    """Return the elements that this worker sent as other than zero, and the integers that it sent."""
    if result.fixed is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    numbers = result.fixed.joined(result.quantized_at)
    at = np.flatnonzero(numbers)
    return at if result.positions is None else result.positions[at], numbers[at]


def _sent(
    result: TensorResult, own: Positions, numbers: NDArray[np.int64], shapes: Shapes, grids: Grids
) -> list[Exact]:
    """Return what this worker sent for each tensor, in units of the grid on which its values lie."""
    counts, ends = _counts(own, shapes), _ends(shapes)
    scales = [grids.get(name) or 0 for name in shapes]
    if result.fixed is not None:
        shift = np.repeat(np.array(scales, np.int64), counts) - result.scales_at(own)
        left, right = (np.minimum(np.maximum(one, 0), MOST_BITS) for one in (shift, -shift))
        numbers = numbers << left >> right
    within = own - np.repeat(np.concatenate([[0], ends[:-1]]), counts)
    spans = pairwise([0, *np.cumsum(counts).tolist()])
    return [
        Exact(within[begin:end], numbers[begin:end], scale)
        for scale, (begin, end) in zip(scales, spans, strict=True)
    ]
