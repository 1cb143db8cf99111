"""The sum of chosen elements by the exact allreduce: of all tensors of a bucket as one, or of each by itself.

As one, the tensors lie end to end: a bucket of small tensors takes one plan, one index and one result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import TensorResult
from peelsum.compress.compressor import Floats, Positions
from peelsum.compress.memory import MOST_BITS, Exact
from peelsum.compress.result import CompressedTensor

_T = TypeVar("_T", bound=np.generic)
#: The name of all tensors as one.
JOINED = "(joined)"
#: The shapes of tensors that lie end to end, by name, in order.
Shapes = Mapping[str, tuple[int, ...]]
#: The scales of the tensors' grids, by name; a tensor without one has no values yet.
Grids = Mapping[str, int | None]


def parted(joined: Floats, shapes: Shapes) -> dict[str, Floats]:
    """Return each tensor's elements float32[n], as views of those of all tensors."""
    return dict(zip(shapes, _cut(joined, _ends(shapes)), strict=True))


def tensor_result(result: TensorResult, shape: tuple[int, ...], grids: Grids | None) -> CompressedTensor:
    """Return the result of a tensor that was summed by itself. grids: as in `joined_results`."""
    sent = None
    if result.finite and grids is not None:
        own, numbers = _own(result)
        grid = grids.get(result.name) or 0
        if result.fixed is not None:
            numbers = _shifted(numbers, grid - result.scales_at(own))
        sent = Exact(own, numbers, grid)
    return CompressedTensor(
        name=result.name,
        form=result.form,
        index=result.index,
        values=result.values.reshape(shape),
        finite=result.finite,
        sent=sent,
        density=result.density,
        density_worker=result.density_worker,
        error_bound=result.error_bound,
        words_sent=result.words_sent,
    )


def joined_results(result: TensorResult, shapes: Shapes, grids: Grids | None) -> list[CompressedTensor]:
    """Return each tensor's result, given the result of all as one.

    grids: None without error feedback, when `sent` is None.
    """
    ends, finite, bound = _ends(shapes), result.finite, result.error_bound
    own, numbers = _own(result)
    own_ends, union_ends = (np.searchsorted(one, ends) for one in (own, _union(result)))
    sent: list[Exact | None] = [None] * len(shapes)
    if finite and grids is not None:
        sent[:] = _sent(result, own, numbers, [grids.get(name) or 0 for name in shapes], ends, own_ends)
    rows = zip(
        shapes.items(),
        _cut(result.values.reshape(-1), ends),
        sent,
        np.diff(union_ends, prepend=0).tolist(),
        np.diff(own_ends, prepend=0).tolist(),
        strict=True,
    )
    return [
        CompressedTensor(
            name=name,
            form=result.form,
            index=result.index,
            values=values.reshape(shape),
            finite=finite,
            sent=one,
            density=share(in_union, values.size) if finite else math.nan,
            density_worker=share(in_own, values.size) if finite else math.nan,
            error_bound=bound,
            words_sent=result.words_sent * values.size // max(result.elements, 1),
        )
        for (name, shape), values, one, in_union, in_own in rows
    ]


def share(count: int, elements: int) -> float:
    """Return count / elements; 0 of a tensor without elements."""
    return count / max(elements, 1)


def _ends(shapes: Shapes) -> NDArray[np.int64]:
    return np.cumsum([math.prod(shape) for shape in shapes.values()], dtype=np.int64)


def _cut(array: NDArray[_T], ends: NDArray[np.int64]) -> list[NDArray[_T]]:
    """Return the array's parts, which end at `ends`, as views."""
    return [array[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


def _union(result: TensorResult) -> Positions:
    """Return the elements that are not zero on any worker, by the index; without one, in the sum."""
    positions = result.positions
    return np.flatnonzero(result.total_at) if positions is None else positions


def _own(result: TensorResult) -> tuple[Positions, NDArray[np.int64]]:
    """Return the elements that this worker sent as other than zero, and the integers that it sent."""
    if result.fixed is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    numbers = result.quantized_at.astype(np.int64)
    at = np.flatnonzero(numbers)
    return at if result.positions is None else result.positions[at], numbers[at]


def _sent(
    result: TensorResult,
    own: Positions,
    numbers: NDArray[np.int64],
    scales: Sequence[int],
    ends: NDArray[np.int64],
    own_ends: NDArray[np.int64],
) -> list[Exact]:
    """Return what this worker sent for each tensor, in units of the grid on which its values lie.

    scales: the grids'. ends: the elements before each tensor's end; own_ends: those of them in `own`.
    """
    counts = np.diff(own_ends, prepend=0)
    if result.fixed is not None:
        numbers = _shifted(numbers, np.repeat(np.array(scales, np.int64), counts) - result.scales_at(own))
    within = own - np.repeat(np.concatenate([[0], ends[:-1]]), counts)
    parts = zip(_cut(within, own_ends), _cut(numbers, own_ends), scales, strict=True)
    return [Exact(positions, units, scale) for positions, units, scale in parts]


def _shifted(numbers: NDArray[np.int64], by: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.int64]:
    """Return numbers * 2**by, rounded down."""
    left, right = (np.minimum(np.maximum(one, 0), MOST_BITS) for one in (by, -by))
    return numbers << left >> right
