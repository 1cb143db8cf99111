"""Loops over all elements of a gradient, compiled by Numba and cached on disk.

They choose the largest elements, and do the arithmetic of error feedback: on numbers, integers in units of
2**-scale, each with a scale of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled

#: The bits of infinity: those of the magnitudes of all finite floats are less.
NOT_FINITE = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
#: Numbers are at most 2**MOST_BITS.
MOST_BITS = 61
#: The largest float offered. Compressors round up, and their sums should still be finite floats.
MOST_OFFERED = 2.0**126
#: Bits of a velocity, at least, if there is room.
_VELOCITY_BITS = 40
#: The scale of zero, coarser than any.
_NO_SCALE = np.int64(-(2**14))
_FLOAT64_MANTISSA, _FLOAT64_BIAS = np.int64(52), np.int64(1023)
#: Elements of a sample.
_SAMPLE = 2048
#: The size of the space for counts that `largest` needs.
COUNTS = 2048


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
def grow(
    gradient: NDArray[np.uint32],
    kept: NDArray[np.int64],
    scales: NDArray[np.int16],
    out: NDArray[np.int64],
    out_scales: NDArray[np.int16],
) -> None:
    """Write `kept` plus a gradient, given by its floats' bits."""
    for i in range(np.uint64(out.size)):
        number, scale = _of_bits(gradient[i])
        out[i], out_scales[i] = _sum(kept[i], np.int64(scales[i]), number, scale)


@compiled
def grow_velocity(
    gradient: NDArray[np.uint32],
    momentum: float,
    kept: NDArray[np.int64],
    velocity: NDArray[np.int64],
    scales: NDArray[np.int16],
    out: NDArray[np.int64],
    out_velocity: NDArray[np.int64],
    out_scales: NDArray[np.int16],
) -> None:
    """Write u = momentum * velocity + gradient, rounded to nearest, and kept + u; both have one scale."""
    for i in range(np.uint64(out.size)):
        number, own = _of_bits(gradient[i])
        scale, own_bits = np.int64(scales[i]), _bits(number) - own
        bits, kept_bits = _bits(velocity[i]) - scale, _bits(kept[i]) - scale
        # Velocities have digits to spare, because their products by the momentum are rounded.
        finest = max(_finest(number, _VELOCITY_BITS - own_bits), _finest(velocity[i], _VELOCITY_BITS - bits))
        finest = max(finest, _finest(kept[i] | velocity[i], scale))
        target = _target(finest, max(max(bits, kept_bits), own_bits) + 1)
        moved = np.rint(momentum * np.float64(_moved(velocity[i], target - scale)))
        new = np.int64(moved) + _moved(number, target - own)
        out_velocity[i], out[i] = new, _moved(kept[i], target - scale) + new
        out_scales[i] = target


@compiled
def subtract(
    numbers: NDArray[np.int64],
    scales: NDArray[np.int16],
    positions: NDArray[np.int64],
    sent: NDArray[np.int64],
    sent_scales: NDArray[np.int16],
) -> None:
    """Subtract in place what was sent at `positions`. A scale grows only if what was sent needs it."""
    for j in range(np.uint64(positions.size)):
        i, number, scale = positions[j], sent[j], np.int64(sent_scales[j])
        while scale > scales[i] and number != 0 and number & 1 == 0:
            number >>= 1
            scale -= 1
        numbers[i], scales[i] = _sum(numbers[i], np.int64(scales[i]), -number, scale)


@compiled
def add(
    numbers: NDArray[np.int64],
    velocity: NDArray[np.int64],
    scales: NDArray[np.int16],
    other: NDArray[np.int64],
    other_velocity: NDArray[np.int64],
    other_scales: NDArray[np.int16],
) -> None:
    """Add other numbers and velocities in place, all [n]; an element's number and velocity have one scale."""
    for i in range(np.uint64(numbers.size)):
        scale, other_scale = np.int64(scales[i]), np.int64(other_scales[i])
        bits, other_bits = numbers[i] | velocity[i], other[i] | other_velocity[i]
        most = max(_bits(numbers[i]), _bits(velocity[i])) - scale
        other_most = max(_bits(other[i]), _bits(other_velocity[i])) - other_scale
        finest = max(_finest(bits, scale), _finest(other_bits, other_scale))
        target = _target(finest, max(most, other_most))
        shift, other_shift = target - scale, target - other_scale
        numbers[i] = _moved(numbers[i], shift) + _moved(other[i], other_shift)
        velocity[i] = _moved(velocity[i], shift) + _moved(other_velocity[i], other_shift)
        scales[i] = target


@compiled
def offer(numbers: NDArray[np.int64], scales: NDArray[np.int16], out: NDArray[np.float32]) -> None:
    """Write each number, rounded to a float; of more than `MOST_OFFERED`, that much of it."""
    for i in range(np.uint64(out.size)):
        unit = np.int64((_FLOAT64_BIAS - np.int64(scales[i])) << _FLOAT64_MANTISSA).view(np.float64)
        value = np.float64(np.float32(numbers[i])) * unit
        out[i] = np.float32(min(max(value, -MOST_OFFERED), MOST_OFFERED))


@compiled
def _of_bits(bits: np.uint32) -> tuple[np.int64, np.int64]:
    """Return a finite float's mantissa with its sign, and its scale."""
    field = np.int64((bits & _MAGNITUDE) >> np.uint32(23))
    mantissa = np.int64(bits & np.uint32(0x7FFFFF)) + (np.int64(field != 0) << np.int64(23))
    scale = np.int64(150) - max(field, np.int64(1))
    return mantissa * (1 - 2 * np.int64(bits >> np.uint32(31))), scale


@compiled
def _sum(
    number: np.int64, scale: np.int64, other: np.int64, other_scale: np.int64
) -> tuple[np.int64, np.int64]:
    """Return the sum of two numbers and its scale: the finer, or the finest for which the sum has room."""
    most = max(_bits(number) - scale, _bits(other) - other_scale)
    target = _target(max(_finest(number, scale), _finest(other, other_scale)), most)
    return _moved(number, target - scale) + _moved(other, target - other_scale), target


@compiled
def _finest(number: np.int64, scale: np.int64) -> np.int64:
    """Return the scale that a number needs."""
    return scale if number != 0 else _NO_SCALE


@compiled
def _target(finest: np.int64, bits: np.int64) -> np.int64:
    """Return the scale, `finest` at most, for which 2**bits has room; 0 if all numbers are zero."""
    return min(finest, MOST_BITS - 1 - bits) if finest > _NO_SCALE else np.int64(0)


@compiled
def _moved(number: np.int64, by: np.int64) -> np.int64:
    """Return number * 2**by, rounded to nearest."""
    left = min(max(by, np.int64(0)), np.int64(63))
    right = min(max(-by, np.int64(0)), np.int64(63))
    half = np.int64((np.uint64(1) << np.uint64(right)) >> np.uint64(1))
    return ((number << left) + half) >> right


@compiled
def _bits(number: np.int64) -> np.int64:
    """Return the bits of a number's magnitude, or one more; far below 0 for zero."""
    return (np.float64(abs(number)).view(np.int64) >> _FLOAT64_MANTISSA) - (_FLOAT64_BIAS - 1)


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
    """Run every loop of a step once, so that a later timed step does not include its compilation."""
    numbers, scales, floats = np.zeros(1, np.int64), np.zeros(1, np.int16), np.zeros(1, np.float32)
    bits = floats.view(np.uint32)
    grow(bits, numbers, scales, numbers, scales)
    grow_velocity(bits, 0.5, numbers, numbers, scales, numbers, numbers, scales)
    subtract(numbers, scales, numbers, numbers, scales)
    offer(numbers, scales, floats)
    float_magnitude(bits)
    largest(bits, numbers, np.zeros(COUNTS, np.int64), numbers)
