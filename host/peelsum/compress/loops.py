"""Loops over all elements of a gradient, compiled by Numba and cached on disk.

They choose the largest elements, and do the arithmetic of error feedback. Factors are powers of two in
float64, so that products of floats by them are exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.wire.compiled import compiler

compiled = compiler([__file__])
#: The bits of infinity: those of the magnitudes of all finite floats are less.
NOT_FINITE = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
#: Elements of a sample.
_SAMPLE = 2048
#: The size of the space for counts that `largest` needs.
COUNTS = 2048


@compiled
def magnitude(numbers: NDArray[np.int64]) -> np.int64:
    """Return the largest magnitude, 0 without numbers."""
    least, most = np.int64(0), np.int64(0)
    for i in range(np.uint64(numbers.size)):
        least, most = min(least, numbers[i]), max(most, numbers[i])
    return max(-least, most)


@compiled
def float_magnitude(bits: NDArray[np.uint32]) -> np.uint32:
    """Return the bits of the largest magnitude among floats, given by their bits; 0 without floats.

    They are at least `NOT_FINITE` if one of the floats is not finite.
    """
    most = np.uint32(0)
    for i in range(np.uint64(bits.size)):
        most = max(most, bits[i] & _MAGNITUDE)
    return most


@compiled
def units(gradient: NDArray[np.float32], factor: float, out: NDArray[np.int64]) -> None:
    """Write a gradient times `factor`, rounded to nearest."""
    for i in range(np.uint64(out.size)):
        out[i] = np.int64(np.rint(np.float64(gradient[i]) * factor))


@compiled
def added_units(
    gradient: NDArray[np.float32], factor: float, kept: NDArray[np.int64], out: NDArray[np.int64]
) -> np.int64:
    """Write `kept` plus a gradient times `factor`, rounded to nearest; return the largest magnitude."""
    least, most = np.int64(0), np.int64(0)
    for i in range(np.uint64(out.size)):
        number = kept[i] + np.int64(np.rint(np.float64(gradient[i]) * factor))
        out[i] = number
        least, most = min(least, number), max(most, number)
    return max(-least, most)


@compiled
def offer(numbers: NDArray[np.int64], factor: float, out: NDArray[np.float32]) -> None:
    """Write each number, rounded to a float, times `factor`."""
    for i in range(np.uint64(out.size)):
        out[i] = np.float32(np.float64(np.float32(numbers[i])) * factor)


@compiled
def largest(
    floats: NDArray[np.uint32], above: NDArray[np.int64], counts: NDArray[np.int64], out: NDArray[np.int64]
) -> int:
    """Write the positions of the floats of largest magnitude, ascending; return how many.

    floats: their bits. out: int64[k], where k is their number at most. Of equal magnitudes, the first are
    taken. NaN is never among them, so that fewer than k positions may be written. above: space, int64[n].
    counts: space, int64[COUNTS].
    Only the elements above a limit are compared further: one that a sample shows or, if less than k are above
    it, one that a count of all elements shows.
    """
    n, k = np.int64(floats.size), np.int64(out.size)
    every = n // np.int64(_SAMPLE) | np.int64(1)
    size = _above(floats, _limit(floats, every, k, counts) if every > 1 else np.uint32(0), above)
    if size < k and every > 1:
        size = _above(floats, _limit(floats, np.int64(1), k, counts), above)
    least, equal = np.uint32(0), k
    if size > k:
        least, equal = _least(floats, above, size, k, counts)
    written = np.uint64(0)
    for i in range(np.uint64(size)):
        at = above[i]
        bits = floats[at] & _MAGNITUDE
        if written < np.uint64(k) and (bits > least or (bits == least and equal > 0)):
            equal -= np.int64(bits == least)
            out[written] = at
            written += np.uint64(1)
    return int(np.int64(written))


@compiled
def _limit(floats: NDArray[np.uint32], every: np.int64, k: np.int64, counts: NDArray[np.int64]) -> np.uint32:
    """Return a limit of magnitudes, by one float of `every`, above which k of all floats are expected.

    If `every` is 1, at least k floats are above it, or all.
    """
    counts[:] = 0
    for i in range(0, np.int64(floats.size), every):
        # Equal counts in a row would wait for one another; so there are four tables.
        counts[(i & 3) << 9 | np.int64((floats[i] & _MAGNITUDE) >> np.uint32(22))] += 1
    expected = np.float64(k) / np.float64(every)
    left = k if every == 1 else np.int64(expected + 3 * np.sqrt(expected)) + 1
    for high in range(255 << 1, 0, -1):
        for table in range(4):
            left -= counts[table << 9 | high]
        if left <= 0:
            return np.uint32(high) << np.uint32(22)
    return np.uint32(0)


@compiled
def _above(floats: NDArray[np.uint32], limit: np.uint32, out: NDArray[np.int64]) -> np.int64:
    """Write the positions of magnitudes from `limit` on, but not of NaN; return their number."""
    size = np.uint64(0)
    for i in range(np.uint64(floats.size)):
        bits = floats[i] & _MAGNITUDE
        if bits >= limit and bits <= NOT_FINITE:
            out[size] = np.int64(i)
            size += np.uint64(1)
    return np.int64(size)


@compiled
def _least(
    floats: NDArray[np.uint32],
    above: NDArray[np.int64],
    size: np.int64,
    k: np.int64,
    counts: NDArray[np.int64],
) -> tuple[np.uint32, np.int64]:
    """Return the k-th largest of the magnitudes at above[:size], and how many equal ones are among the k."""
    least, left = np.uint32(0), k
    for shift in (22, 11, 0):  # 31 bits: 9, 11 and 11 of them
        known = np.uint32(min(shift + 11, 31))
        counts[:] = 0
        for i in range(np.uint64(size)):
            bits = floats[above[i]] & _MAGNITUDE
            if bits >> known == least >> known:
                counts[np.int64(bits >> np.uint32(shift)) & 2047] += 1
        digit = 2047
        while counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        least |= np.uint32(digit) << np.uint32(shift)
    return least, left


def warm_up() -> None:
    """Run every loop once, so that a later timed step does not include its compilation."""
    numbers, floats = np.zeros(1, np.int64), np.zeros(1, np.float32)
    magnitude(numbers)
    units(floats, 1.0, numbers)
    offer(numbers, 1.0, floats)
    added_units(floats, 1.0, numbers, numbers)
    float_magnitude(floats.view(np.uint32))
    largest(floats.view(np.uint32), numbers, np.zeros(COUNTS, np.int64), numbers)
