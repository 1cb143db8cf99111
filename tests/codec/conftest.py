"""Supports of every kind for codec tests, in poisoned memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from poison import poisoned_memory

__all__ = ["poisoned_memory", "support"]

Support = Callable[[np.random.Generator, int, int], NDArray[np.int64]]


def uniform(rng: np.random.Generator, n: int, lanes: int) -> NDArray[np.int64]:
    return np.flatnonzero(rng.random(n) < 0.07)


def rows(rng: np.random.Generator, n: int, lanes: int) -> NDArray[np.int64]:
    return np.flatnonzero(np.repeat(rng.random(n // 64 + 1) < 0.05, 64)[:n])


def dead_columns(rng: np.random.Generator, n: int, lanes: int) -> NDArray[np.int64]:
    alive = np.arange(n) % lanes < max(1, lanes // 2)
    return np.flatnonzero(alive & (rng.random(n) < 0.1))


def all_zero(rng: np.random.Generator, n: int, lanes: int) -> NDArray[np.int64]:
    return np.empty(0, np.int64)


def all_dense(rng: np.random.Generator, n: int, lanes: int) -> NDArray[np.int64]:
    return np.arange(n)


def single(rng: np.random.Generator, n: int, lanes: int) -> NDArray[np.int64]:
    return rng.integers(0, n, 1 if n else 0)


SUPPORTS: list[Support] = [uniform, rows, dead_columns, all_zero, all_dense, single]


@pytest.fixture(params=SUPPORTS, ids=lambda support: support.__name__)
def support(request: pytest.FixtureRequest) -> Support:
    chosen: Support = request.param
    return chosen
