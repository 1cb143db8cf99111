"""Loops over all elements of a gradient, compiled by Numba and cached on disk.

They choose the largest elements, and compute residuals exactly. A residual's element is a pair of integers,
number and scale, with the value number * 2**-scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.cpu.words import largest_magnitude
from peelsum.compiling import compiled

#: The bits of floats; numbers, positions and counts; scales.
_Bits = NDArray[np.uint32]
_Numbers = NDArray[np.int64]
_Scales = NDArray[np.int16]
#: The bits of infinity, which are above those of the magnitudes of all finite floats.
NOT_FINITE = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
#: Numbers are at most 2**MAX_BITS.
MAX_BITS = 61
#: The largest float that `to_floats` writes: sums of values that compressors round up should be finite.
MAX_FLOAT = 2.0**126
#: A velocity has at least this many bits, if they fit.
_VELOCITY_BITS = 40
#: The scale of zero, coarser than any.
_NO_SCALE = np.int64(-(2**14))
_FLOAT64_MANTISSA, _FLOAT64_BIAS = np.int64(52), np.int64(1023)
#: Number of elements from which a limit for `largest` is estimated.
_SAMPLE_SIZE = 2048
#: The size of the array for counts that `largest` needs.
COUNTS = 2048


@compiled
def add_gradient(
    gradient: _Bits, residual: _Numbers, scales: _Scales, out: _Numbers, out_scales: _Scales
) -> None:
    """Write residual plus gradient. The gradient is given by its floats' bits; all arrays are [n]."""
    for i in range(np.uint64(out.size)):
        number, scale = _decode_float(gradient[i])
        out[i], out_scales[i] = _add_exact(residual[i], np.int64(scales[i]), number, scale)


@compiled
def add_gradient_with_momentum(
    gradient: _Bits,
    momentum: float,
    residual: _Numbers,
    velocity: _Numbers,
    scales: _Scales,
    out: _Numbers,
    out_velocity: _Numbers,
    out_scales: _Scales,
) -> None:
    """Write u = momentum * velocity + gradient, rounded to nearest, and residual + u, with a common scale.

    The gradient is given by its floats' bits; all arrays are [n].
    """
    for i in range(np.uint64(out.size)):
        number, number_scale = _decode_float(gradient[i])
        scale = np.int64(scales[i])
        # The number of bits of each value's integer part.
        gradient_bits = _magnitude_bits(number) - number_scale
        velocity_bits = _magnitude_bits(velocity[i]) - scale
        residual_bits = _magnitude_bits(residual[i]) - scale
        # Velocities have digits to spare, because their products by the momentum are rounded.
        finest = max(
            _needed_scale(number, _VELOCITY_BITS - gradient_bits),
            _needed_scale(velocity[i], _VELOCITY_BITS - velocity_bits),
        )
        finest = max(finest, _needed_scale(residual[i] | velocity[i], scale))
        target = _common_scale(finest, max(max(velocity_bits, residual_bits), gradient_bits) + 1)
        product = np.rint(momentum * np.float64(_rescale(velocity[i], target - scale)))
        new_velocity = np.int64(product) + _rescale(number, target - number_scale)
        out_velocity[i], out[i] = new_velocity, _rescale(residual[i], target - scale) + new_velocity
        out_scales[i] = target


@compiled
def subtract(
    numbers: _Numbers, scales: _Scales, positions: _Numbers, sent: _Numbers, sent_scales: _Scales
) -> None:
    """Subtract the values sent at `positions` in place. A scale increases only if a sent value needs it."""
    for j in range(np.uint64(positions.size)):
        i, number, scale = positions[j], sent[j], np.int64(sent_scales[j])
        while scale > scales[i] and number != 0 and number & 1 == 0:
            number >>= 1
            scale -= 1
        numbers[i], scales[i] = _add_exact(numbers[i], np.int64(scales[i]), -number, scale)


@compiled
def add(
    numbers: _Numbers,
    velocity: _Numbers,
    scales: _Scales,
    other: _Numbers,
    other_velocity: _Numbers,
    other_scales: _Scales,
) -> None:
    """Add another residual in place: numbers and velocities, all [n], which have a common scale."""
    for i in range(np.uint64(numbers.size)):
        scale, other_scale = np.int64(scales[i]), np.int64(other_scales[i])
        nonzero, other_nonzero = numbers[i] | velocity[i], other[i] | other_velocity[i]
        bits = max(_magnitude_bits(numbers[i]), _magnitude_bits(velocity[i])) - scale
        other_bits = max(_magnitude_bits(other[i]), _magnitude_bits(other_velocity[i])) - other_scale
        finest = max(_needed_scale(nonzero, scale), _needed_scale(other_nonzero, other_scale))
        target = _common_scale(finest, max(bits, other_bits))
        shift, other_shift = target - scale, target - other_scale
        numbers[i] = _rescale(numbers[i], shift) + _rescale(other[i], other_shift)
        velocity[i] = _rescale(velocity[i], shift) + _rescale(other_velocity[i], other_shift)
        scales[i] = target


@compiled
def to_floats(numbers: _Numbers, scales: _Scales, out: NDArray[np.float32]) -> None:
    """Write each value, rounded to a float; magnitudes are limited to `MAX_FLOAT`."""
    for i in range(np.uint64(out.size)):
        unit = np.int64((_FLOAT64_BIAS - np.int64(scales[i])) << _FLOAT64_MANTISSA).view(np.float64)
        value = np.float64(np.float32(numbers[i])) * unit
        out[i] = np.float32(min(max(value, -MAX_FLOAT), MAX_FLOAT))


@compiled
def _decode_float(bits: np.uint32) -> tuple[np.int64, np.int64]:
    """Return number and scale of a finite float, given by its bits."""
    field = np.int64((bits & _MAGNITUDE) >> np.uint32(23))
    mantissa = np.int64(bits & np.uint32(0x7FFFFF)) + (np.int64(field != 0) << np.int64(23))
    scale = np.int64(150) - max(field, np.int64(1))
    return mantissa * (1 - 2 * np.int64(bits >> np.uint32(31))), scale


@compiled
def _add_exact(
    number: np.int64, scale: np.int64, other: np.int64, other_scale: np.int64
) -> tuple[np.int64, np.int64]:
    """Return the sum of two numbers, and its scale: the finer one, or the finest in which the sum fits."""
    bits = max(_magnitude_bits(number) - scale, _magnitude_bits(other) - other_scale)
    target = _common_scale(max(_needed_scale(number, scale), _needed_scale(other, other_scale)), bits)
    return _rescale(number, target - scale) + _rescale(other, target - other_scale), target


@compiled
def _needed_scale(number: np.int64, scale: np.int64) -> np.int64:
    """Return the scale of a number; that of zero is coarser than any other."""
    return scale if number != 0 else _NO_SCALE


@compiled
def _common_scale(finest: np.int64, bits: np.int64) -> np.int64:
    """Return `finest`, or the finest scale in which sums of values up to 2**bits fit; 0 if all are zero."""
    return min(finest, MAX_BITS - 1 - bits) if finest > _NO_SCALE else np.int64(0)


@compiled
def _rescale(number: np.int64, shift: np.int64) -> np.int64:
    """Return number * 2**shift, rounded to nearest."""
    left_shift = min(max(shift, np.int64(0)), np.int64(63))
    right_shift = min(max(-shift, np.int64(0)), np.int64(63))
    half = np.int64((np.uint64(1) << np.uint64(right_shift)) >> np.uint64(1))
    return ((number << left_shift) + half) >> right_shift


@compiled
def _magnitude_bits(number: np.int64) -> np.int64:
    """Return the number of bits of a magnitude, or one bit more; for zero, a number far below 0."""
    return (np.float64(abs(number)).view(np.int64) >> _FLOAT64_MANTISSA) - (_FLOAT64_BIAS - 1)


@compiled
def largest(floats: _Bits, above: _Numbers, counts: _Numbers, out: _Numbers) -> int:
    """Write the positions of the k floats with the largest magnitudes, ascending; return their number.

    floats: uint32[n], their bits. above: int64[n], scratch. counts: int64[COUNTS], scratch. out: int64[k].
    Of equal magnitudes, the first are taken. NaN is left out, so the number may be less than k.
    The search is among the elements above a limit, which is estimated from a sample. If less than k elements
    are above it, all elements are counted to find a lower limit.
    """
    n, k = np.int64(floats.size), np.int64(out.size)
    every = n // np.int64(_SAMPLE_SIZE) | np.int64(1)
    size = _positions_above(
        floats, _magnitude_limit(floats, every, k, counts) if every > 1 else np.uint32(0), above
    )
    if size < k and every > 1:
        size = _positions_above(floats, _magnitude_limit(floats, np.int64(1), k, counts), above)
    smallest, equal = np.uint32(0), k
    if size > k:
        smallest, equal = _kth_largest(floats, above, size, k, counts)
    written = np.uint64(0)
    for i in range(np.uint64(size)):
        position = above[i]
        bits = floats[position] & _MAGNITUDE
        if written < np.uint64(k) and (bits > smallest or (bits == smallest and equal > 0)):
            equal -= np.int64(bits == smallest)
            out[written] = position
            written += np.uint64(1)
    return int(np.int64(written))


@compiled
def _magnitude_limit(floats: _Bits, every: np.int64, k: np.int64, counts: _Numbers) -> np.uint32:
    """Return a magnitude, as bits, from which on about k of all floats are expected.

    It is estimated from each `every`-th float. If `every` is 1, at least k floats, or all, are not below it.
    """
    counts[:] = 0
    for i in range(0, np.int64(floats.size), every):
        # There are four tables, because consecutive increments of the same count would wait for each other.
        counts[(i & 3) << 9 | np.int64((floats[i] & _MAGNITUDE) >> np.uint32(22))] += 1
    expected = np.float64(k) / np.float64(every)
    missing = k if every == 1 else np.int64(expected + 3 * np.sqrt(expected)) + 1
    for high_bits in range(255 << 1, 0, -1):
        for table in range(4):
            missing -= counts[table << 9 | high_bits]
        if missing <= 0:
            return np.uint32(high_bits) << np.uint32(22)
    return np.uint32(0)


@compiled
def _positions_above(floats: _Bits, limit: np.uint32, out: _Numbers) -> np.int64:
    """Write the positions of magnitudes from `limit` on, but not of NaN; return their number."""
    size = np.uint64(0)
    for i in range(np.uint64(floats.size)):
        bits = floats[i] & _MAGNITUDE
        if bits >= limit and bits <= NOT_FINITE:
            out[size] = np.int64(i)
            size += np.uint64(1)
    return np.int64(size)


@compiled
def _kth_largest(
    floats: _Bits, above: _Numbers, size: np.int64, k: np.int64, counts: _Numbers
) -> tuple[np.uint32, np.int64]:
    """Return the k-th largest magnitude at above[:size], as bits, and how many equal ones are among the k.

    It is found digit by digit, as in a radix sort.
    """
    result, rank = np.uint32(0), k
    for shift in (22, 11, 0):  # 31 bits: 9, 11 and 11 of them
        known_shift = np.uint32(min(shift + 11, 31))
        counts[:] = 0
        for i in range(np.uint64(size)):
            bits = floats[above[i]] & _MAGNITUDE
            if bits >> known_shift == result >> known_shift:
                counts[np.int64(bits >> np.uint32(shift)) & 2047] += 1
        digit = 2047
        while counts[digit] < rank:
            rank -= counts[digit]
            digit -= 1
        result |= np.uint32(digit) << np.uint32(shift)
    return result, rank


def warm_up() -> None:
    """Call every loop of a step once, so that it is compiled before the first step."""
    numbers, scales, floats = np.zeros(1, np.int64), np.zeros(1, np.int16), np.zeros(1, np.float32)
    bits = floats.view(np.uint32)
    add_gradient(bits, numbers, scales, numbers, scales)
    add_gradient_with_momentum(bits, 0.5, numbers, numbers, scales, numbers, numbers, scales)
    subtract(numbers, scales, numbers, numbers, scales)
    to_floats(numbers, scales, floats)
    largest_magnitude(bits)
    largest(bits, numbers, np.zeros(COUNTS, np.int64), numbers)
