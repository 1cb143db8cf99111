"""Loops over all elements of a gradient, compiled by Numba and cached on disk.

They choose the largest elements, and do the arithmetic of error feedback. Factors are powers of two in
float64, so that products of floats by them are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.wire.compiled import compiler

compiled = compiler([__file__])


@compiled
def magnitude(numbers: NDArray[np.int64]) -> np.int64:
    """Return the largest magnitude, 0 without numbers."""
    least, most = np.int64(0), np.int64(0)
    for i in range(np.uint64(numbers.size)):
        least, most = min(least, numbers[i]), max(most, numbers[i])
    return max(-least, most)


@compiled
def units(gradient: NDArray[np.float32], factor: float, out: NDArray[np.int64]) -> None:
    """Write a gradient times `factor`, rounded to nearest."""
    for i in range(np.uint64(out.size)):
        out[i] = np.int64(np.rint(np.float64(gradient[i]) * factor))


@compiled
def offer(numbers: NDArray[np.int64], factor: float, out: NDArray[np.float32]) -> None:
    """Write each number, rounded to a float, times `factor`."""
    for i in range(np.uint64(out.size)):
        out[i] = np.float32(np.float64(np.float32(numbers[i])) * factor)


@compiled
def largest(magnitudes: NDArray[np.floating[Any]], least: float, out: NDArray[np.int64]) -> int:
    """Write the positions of the largest magnitudes, of which `least` is the smallest, ascending.

    out: int64[k], as many as there are; of magnitudes equal to `least`, the first are taken. Return how many
    were written: less than k if some magnitudes are NaN.
    """
    equal, k = np.int64(out.size), np.uint64(0)
    for i in range(np.uint64(magnitudes.size)):
        equal -= np.int64(magnitudes[i] > least)
    for i in range(np.uint64(magnitudes.size)):
        if magnitudes[i] >= least and (magnitudes[i] > least or equal > 0):
            equal -= np.int64(magnitudes[i] == least)
            out[k] = np.int64(i)
            k += np.uint64(1)
    return int(np.int64(k))


def warm_up() -> None:
    """Run every loop once, so that a later timed step does not include its compilation."""
    numbers, floats = np.zeros(1, np.int64), np.zeros(1, np.float32)
    magnitude(numbers)
    units(floats, 1.0, numbers)
    offer(numbers, 1.0, floats)
    largest(floats, floats[0], numbers)
