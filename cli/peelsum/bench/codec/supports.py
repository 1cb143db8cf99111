"""The benchmarks' tensors: random positions of non-zeros by support, and their expected counts."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.costs import UnionCounts
from peelsum.bench.point import Support
from peelsum.codec import BLOCK_SIZES

SUPPORTS: tuple[Support, ...] = get_args(Support)
#: Elements of a row in support `rows`; number of columns in support `columns`, half of which are all zero.
ROW = 64
COLUMNS = 256
_NONZERO_COLUMNS = COLUMNS // 2


def positions(support: Support, elements: int, density: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return random positions of non-zeros, int64[k], ascending.

    With `uniform` each element, with `rows` each row of ROW elements is non-zero with probability `density`.
    With `columns`, half of the columns are zero, and elements of the others are non-zero with probability
    `2 * density`; `density` is then at most 1/2.
    """
    if support == "rows":
        rows = np.flatnonzero(rng.random(-(-elements // ROW), np.float32) < density)
        nonzero = (rows[:, np.newaxis] * ROW + np.arange(ROW)).reshape(-1)
        return nonzero[: np.searchsorted(nonzero, elements)]
    if support == "uniform":
        return np.flatnonzero(rng.random(elements, np.float32) < density)
    in_nonzero_column = np.resize(rng.permutation(COLUMNS) < _NONZERO_COLUMNS, elements)
    return np.flatnonzero(in_nonzero_column & (rng.random(elements, np.float32) < 2 * density))


def tensor(
    support: Support, elements: int, density: float, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return float32[elements] with normally distributed values at `positions`, and these positions."""
    rng = np.random.default_rng([seed, elements])
    nonzero = positions(support, elements, density, rng)
    normal = rng.standard_normal(nonzero.size, np.float32)
    values = np.zeros(elements, np.float32)
    values[nonzero] = np.where(normal == 0, np.float32(1), normal)
    return values, nonzero


def expected_statistics(support: Support, elements: int, density: float) -> UnionCounts:
    """Return the expected statistics of a tensor with this support: its occupied blocks of each size."""
    if support == "uniform":
        return UnionCounts.uniform(elements, density)
    share = _row_share if support == "rows" else _column_share
    sizes = [2**b for b in range(BLOCK_SIZES)]
    return UnionCounts(tuple(elements / size * share(size, density) for size in sizes))


def _row_share(size: int, density: float) -> float:
    """Return the share of blocks of `size` elements, a power of 2, that hold a non-zero."""
    return float(1 - (1 - density) ** max(size // ROW, 1))


def _column_share(size: int, density: float) -> float:
    """Return the same for support `columns`, by the number of a block's columns that are not all zero."""
    zero = 1 - 2 * density
    if size >= COLUMNS:
        return float(1 - zero ** (size // 2))
    half, selections = _NONZERO_COLUMNS, math.comb(COLUMNS, size)
    empty = sum(
        math.comb(half, count) * math.comb(half, size - count) / selections * zero**count
        for count in range(max(0, size - half), min(size, half) + 1)
    )
    return 1 - empty
