"""Supports of the benchmarks' tensors: the non-zeros' positions at random, and their expected counts."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.costs import Seen
from peelsum.bench.point import Support
from peelsum.codec import BLOCK_SIZES

SUPPORTS: tuple[Support, ...] = get_args(Support)
#: Elements of a non-zero row in `rows`; number of `columns`, half of which are always zero.
ROW = 64
COLUMNS = 256
_ALIVE = COLUMNS // 2


def positions(support: Support, elements: int, density: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the elements that are not zero, ascending, int64[k].

    With `uniform` each element, with `rows` each row of ROW elements is non-zero with probability `density`.
    With `columns`, half of the columns are zero, and elements of the others are non-zero with twice that
    probability; `density` is then at most 1/2.
    """
    if support == "rows":
        rows = np.flatnonzero(rng.random(-(-elements // ROW), np.float32) < density)
        inside = (rows[:, np.newaxis] * ROW + np.arange(ROW)).reshape(-1)
        return inside[: np.searchsorted(inside, elements)]
    if support == "uniform":
        return np.flatnonzero(rng.random(elements, np.float32) < density)
    alive = np.resize(rng.permutation(COLUMNS) < _ALIVE, elements)
    return np.flatnonzero(alive & (rng.random(elements, np.float32) < 2 * density))


def tensor(
    support: Support, elements: int, density: float, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return float32[elements] with normally distributed values at `positions`, and these positions."""
    rng = np.random.default_rng([seed, elements])
    where = positions(support, elements, density, rng)
    drawn = rng.standard_normal(where.size, np.float32)
    values = np.zeros(elements, np.float32)
    values[where] = np.where(drawn == 0, np.float32(1), drawn)
    return values, where


def seen(support: Support, elements: int, density: float) -> Seen:
    """Return what workers see, on average, of a tensor with this support."""
    if support == "uniform":
        return Seen.uniform(elements, density)
    share = _row_share if support == "rows" else _column_share
    sizes = [2**b for b in range(BLOCK_SIZES)]
    return Seen(tuple(elements / size * share(size, density) for size in sizes))


def _row_share(size: int, density: float) -> float:
    """Return the share of blocks of `size` elements, a power of 2, that hold a non-zero."""
    return float(1 - (1 - density) ** max(size // ROW, 1))


def _column_share(size: int, density: float) -> float:
    zero = 1 - 2 * density
    if size >= COLUMNS:
        return float(1 - zero ** (size // 2))
    ways = math.comb(COLUMNS, size)
    empty = sum(
        math.comb(_ALIVE, alive) * math.comb(_ALIVE, size - alive) / ways * zero**alive
        for alive in range(max(0, size - _ALIVE), min(size, _ALIVE) + 1)
    )
    return 1 - empty
