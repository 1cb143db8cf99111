"""Choose the powers of two by which all workers multiply, from the exponents that they exchange.

Every worker derives the same scales from the same OR-ed words: one for each segment, and one for each block.
The devices convert the arrays.

A segment's word says in which range of `SPAN` exponent fields its largest value lies, by one bit, and has bit
`NON_FINITE_BIT` if some value is not finite. A block's word has bit `level % LEVELS`, where the level of an
exponent field is half of it. So the bits of all workers, read downwards from the upper end of the segment's
range, give the block's largest level, unless it is LEVELS or more below that end.

A block that is far below its worker's largest value counts as `DEPTH` octaves below it. Only if workers'
largest values differ by more than 2 * LEVELS - `DEPTH` - `SPAN` octaves can a level be read as one that is
LEVELS higher. The scale is then coarser than needed, never too fine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.arrays import CodecError

#: The exponent field of NaN and infinity.
NON_FINITE = 255
LARGEST_FINITE = NON_FINITE - 1
#: Levels that a block's word distinguishes, one for each bit.
LEVELS = 32
#: log2 of the octaves (exponent fields) of a level.
LEVEL_BITS = 1
#: Octaves below a worker's largest value from which on blocks are not distinguished.
DEPTH = 40
#: Exponent fields that have the same bit in a segment's word. Bits up to 28 are those of finite values.
SPAN = 9
#: The bit of a segment's word that says that some value is not finite.
NON_FINITE_BIT = 31
#: In place of the exponent field of a segment that is zero on every worker; see also `NON_FINITE`.
ZERO = -1
_EXPONENT_BIAS = 127
MANTISSA_BITS = 23
_MANTISSA = MANTISSA_BITS + 1
_LARGEST_SUM = 2**31 - 1
#: A sum is below 2**this.
_SUM_BITS = 31
#: Spacing of the largest float32, which has no successor.
_LARGEST_SPACING = 2.0**104
#: Half the spacing of float32 over the number; bound on a few roundings to float64; half the least float32.
_HALF_ULP, _ROUNDINGS, _SMALLEST = 2.0**-24, 2.0**-50, 2.0**-150


@dataclass(frozen=True)
class FixedPoint:
    """A fixed-point format: values become int32 numbers rint(value * 2**scale).

    With `octaves`, element i is multiplied by 2**(scale + octaves[i // block]) instead.
    """

    scale: int
    """Exponent of the power of two by which values are multiplied; with `octaves`, the smallest."""
    octaves: NDArray[np.int32] | None = field(default=None, compare=False)
    """int32[blocks], 0 or more, in the kernels' memory; None if all elements have the same scale."""
    block: int = 2**62
    """Elements in a block, a power of 2."""

    def scales_at(self, positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the scales int32[k] of elements positions[k]. `octaves` must be on the host."""
        if self.octaves is None:
            return np.full(positions.size, self.scale, np.int32)
        scales: NDArray[np.int32] = self.scale + self.octaves[positions // self.block]
        return scales


@lru_cache(1024)  # scales of a model's tensors seldom change
def error_bound(scale: int, workers: int, divisor: int) -> float:
    """Return a bound on |result - sum of `workers` floats / divisor| that holds for every element.

    The result is number * 2**-scale / divisor, rounded to float32. It counts half of 2**-scale for each
    worker, and the rounding of the largest possible sum. Infinite if a sum can be too large for float32.
    """
    largest = np.ldexp(1.0, _SUM_BITS - scale) / divisor
    if largest > np.finfo(np.float32).max:
        return float("inf")
    rounded = largest * (_HALF_ULP + _ROUNDINGS) + _SMALLEST
    return float((np.ldexp(float(workers), -scale - 1) / divisor + rounded) * (1 + _ROUNDINGS))


def scale_for(exponent_field: int, workers: int) -> int:
    """Return the largest s for which the sum of `workers` values of this exponent, times 2**s, fits an int32.

    A float32 of exponent E is at most 2**(E + 1) * (1 - 2**-24). With h = E + 1 + s, its integer is at most
    2**h - 2**(h - 24). If h is below 24, rounding can carry, and it is at most 2**h. Subnormals count as E =
    -127. Raises CodecError for fewer workers than 1 or more than 2**31 - 1, and for an exponent field that is
    not 0 to 254.
    """
    if not 1 <= workers <= _LARGEST_SUM:
        raise CodecError(f"workers: {workers} workers are out of range; use 1 to {_LARGEST_SUM}")
    if not 0 <= exponent_field < NON_FINITE:
        raise CodecError(
            f"exponent_field: {exponent_field} is not that of a finite float32; use 0 to {NON_FINITE - 1}"
        )
    most = _LARGEST_SUM // workers
    headroom = most.bit_length()
    least_bit = 1 << headroom - _MANTISSA if headroom >= _MANTISSA else 0
    if (1 << headroom) - least_bit > most:  # the largest rint(x) of a float32 x below 2**headroom
        headroom -= 1
    return headroom - 1 - (exponent_field - _EXPONENT_BIAS)


@lru_cache(1024)
def fixed_point(exponent_field: int, workers: int) -> FixedPoint:
    """Return the format with the scale of `scale_for`, and raise what that raises."""
    return FixedPoint(scale_for(exponent_field, workers))


def rounding_bounds(
    scales: NDArray[np.int32], values: NDArray[np.float32], workers: int, divisor: int
) -> NDArray[np.float64]:
    """Return bounds float64[k] on |values[k] - sum of `workers` floats / divisor|, for results values[k].

    Each worker's rounding adds half of 2**-scale, and the conversion to float32 half of its spacing. A result
    that is too large for float32 has no bound: infinity.
    """
    size = np.abs(values).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = np.spacing(np.abs(values)).astype(np.float64)
    spacing = np.where(np.isfinite(spacing), spacing, _LARGEST_SPACING)
    bounds = np.ldexp(workers / 2 / divisor, -scales) + spacing / 2 + size * _ROUNDINGS
    return np.where(np.isfinite(size), bounds * (1 + _ROUNDINGS), np.inf)
