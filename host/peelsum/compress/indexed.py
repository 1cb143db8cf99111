"""The sum of chosen elements by the exact allreduce: of all tensors of a bucket as one, or of each by itself.

As one, the tensors lie end to end: a bucket of small tensors takes one plan, one index and one result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import TensorResult
from peelsum.compress.compressor import Floats, Positions
from peelsum.compress.memory import Exact
from peelsum.compress.result import CompressedTensor

_T = TypeVar("_T", bound=np.generic)
#: The name of all tensors as one.
JOINED = "(joined)"
#: The shapes of tensors that lie end to end, by name, in order.
Shapes = Mapping[str, tuple[int, ...]]


def parted(joined: Floats, shapes: Shapes) -> dict[str, Floats]:
    """Return each tensor's elements float32[n], as views of those of all tensors."""
    return dict(zip(shapes, _cut(joined, _ends(shapes)), strict=True))


def tensor_result(result: TensorResult, shape: tuple[int, ...], feedback: bool) -> CompressedTensor:
    """Return the result of a tensor that was summed by itself; `sent` only with error feedback."""
    sent = _own(result) if result.finite and feedback else None
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


def joined_results(result: TensorResult, shapes: Shapes, feedback: bool) -> list[CompressedTensor]:
    """Return each tensor's result, given the result of all as one; `sent` only with error feedback."""
    ends, finite, bound, own = _ends(shapes), result.finite, result.error_bound, _own(result)
    own_ends, union_ends = (np.searchsorted(one, ends) for one in (own.positions, _union(result)))
    sent: list[Exact | None] = [None] * len(shapes)
    if finite and feedback:
        sent[:] = _sent(own, ends, own_ends)
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


def _own(result: TensorResult) -> Exact:
    """Return what this worker sent as other than zero."""
    if result.fixed is None:
        return Exact.of(np.zeros(0))
    numbers = result.quantized_at.astype(np.int64)
    at = np.flatnonzero(numbers)
    own = at if result.positions is None else result.positions[at]
    return Exact(own, numbers[at], result.scales_at(own).astype(np.int16))


def _sent(own: Exact, ends: NDArray[np.int64], own_ends: NDArray[np.int64]) -> list[Exact]:
    """Return what this worker sent for each tensor.

    ends: the elements before each tensor's end; own_ends: those of them in `own`.
    """
    within = own.positions - np.repeat(np.concatenate([[0], ends[:-1]]), np.diff(own_ends, prepend=0))
    parts = [_cut(one, own_ends) for one in (within, own.numbers)]
    return [Exact(*one) for one in zip(*parts, _cut(own.scales, own_ends), strict=True)]
