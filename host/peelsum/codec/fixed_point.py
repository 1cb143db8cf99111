"""Choose the power-of-two scale that all workers share, from the exponents that they exchange.

Every worker derives the same scale from the same OR-ed words. The kernels do the conversion of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.errors import CodecError

#: Words of a one-hot exponent field: a float32's has 8 bits, i.e. 256 values.
EXPONENT_WORDS = 8
#: The exponent field of NaN and infinity. Its one-hot bit means that some worker's tensor is not finite.
NON_FINITE = 255
_EXPONENT_BIAS = 127
MANTISSA_BITS = 23
_LARGEST_SUM = 2**31 - 1
_WORD_BITS = 32
#: Up to this fan-in, two limbs hold all bits of the largest float32, so rounding cannot carry beyond them.
_MOST_FOR_TWO_LIMBS = 2**16


@dataclass(frozen=True)
class FixedPoint:
    """A fixed-point format: values become integers rint(value * 2**scale), in one or two int32 limbs.

    With two limbs, the upper is the integer divided by 2**low_bits, rounded down; the lower is the remainder,
    0 to 2**low_bits - 1. Sums of upper limbs are read as int32, sums of lower limbs as uint32.
    """

    scale: int
    """Exponent of the power of two by which values are multiplied."""
    low_bits: int = 0
    """Bits of the lower limb; 0 if there is one limb."""

    @property
    def limbs(self) -> int:
        """Words per number: 1, or 2 if `low_bits` is not 0."""
        return 2 if self.low_bits else 1

    def joined(self, limbs: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the numbers int64[k] that limbs[limbs, k] represent."""
        numbers: NDArray[np.int64] = limbs[0].astype(np.int64) << self.low_bits
        if self.low_bits:
            numbers += limbs[1].view(np.uint32)
        return numbers


def exponent_words(magnitude: int) -> NDArray[np.uint32]:
    """Return the exponent field of a tensor's largest magnitude, one-hot: uint32[EXPONENT_WORDS].

    `magnitude` is the largest bit pattern of |g|, as `Kernels.magnitude` returns it. Exponent field e sets
    bit e % 32 of word e // 32. A tensor of zeros sets no bit.
    """
    words = np.zeros(EXPONENT_WORDS, np.uint32)
    if magnitude:
        field = magnitude >> MANTISSA_BITS
        words[field // 32] = 1 << field % 32
    return words


def largest_exponent_field(words: NDArray[np.uint32]) -> int | None:
    """Return the largest exponent field in OR-ed `exponent_words`; None if every worker's tensor is zero."""
    for position in range(EXPONENT_WORDS - 1, -1, -1):
        if words[position]:
            return 32 * position + int(words[position]).bit_length() - 1
    return None


def scale_for(exponent_field: int, fan_in: int) -> int:
    """Return the largest s for which the sum of `fan_in` values of this exponent, times 2**s, fits an int32.

    s satisfies fan_in * 2**(E + 1 + s) <= 2**31 - 1, where E is the unbiased exponent: a value of exponent E
    is only known to be below 2**(E + 1). Subnormals count as E = -127. Raises CodecError for a fan-in below 1
    or above 2**31 - 1, and for an exponent field that is not 0 to 254.
    """
    _check(exponent_field, fan_in, _LARGEST_SUM)
    headroom = (_LARGEST_SUM // fan_in).bit_length() - 1
    return headroom - 1 - (exponent_field - _EXPONENT_BIAS)


def fixed_point(exponent_field: int, fan_in: int, limbs: int = 1) -> FixedPoint:
    """Return the finest format in which the sum of `fan_in` values of this exponent fits 1 or 2 limbs.

    One limb has the scale of `scale_for`. Two limbs have scale 62 - 2c - E, with c = ceil(log2(fan_in)):
    float32 values down to 2**-(39 - 2c) of the largest are then exact. Raises CodecError for a fan-in, an
    exponent field or a number of limbs that is out of range.
    """
    if limbs == 1:
        return FixedPoint(scale_for(exponent_field, fan_in))
    if limbs != 2:
        raise CodecError(f"limbs: {limbs} is out of range; use 1 or 2")
    _check(exponent_field, fan_in, _MOST_FOR_TWO_LIMBS)
    carry = (fan_in - 1).bit_length()
    # The sum of lower limbs fits a uint32. Upper limbs are rounded down, so each is below 2**(31 - carry).
    scale = (_WORD_BITS - 2) - carry - (exponent_field - _EXPONENT_BIAS)
    return FixedPoint(scale + _WORD_BITS - carry, _WORD_BITS - carry)


def _check(exponent_field: int, fan_in: int, most: int) -> None:
    if not 1 <= fan_in <= most:
        raise CodecError(f"fan_in: {fan_in} workers are out of range; use 1 to {most}")
    if not 0 <= exponent_field < NON_FINITE:
        raise CodecError(
            f"exponent_field: {exponent_field} is not that of a finite float32; use 0 to {NON_FINITE - 1}"
        )


def error_bound(scale: int, fan_in: int) -> float:
    """Return the largest error of a sum of `fan_in` quantized values: half of 2**-scale for each."""
    return float(np.ldexp(float(fan_in), -scale - 1))
