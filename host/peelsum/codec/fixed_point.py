"""Fixed point: the power-of-two scale that all workers share, and the exponents from which it follows.

It knows single numbers only; turning arrays into integers and back is the kernels' work.
Deterministic by construction: every worker derives the same scale from the same OR-ed words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.errors import CodecError

#: A float32's exponent field has 8 bits: 256 values, sent one-hot in eight words.
EXPONENT_WORDS = 8
#: The exponent field of NaN and infinity. As one-hot bit it reads 'some worker's tensor is not finite'.
NON_FINITE = 255
_EXPONENT_BIAS = 127
MANTISSA_BITS = 23
_LARGEST_SUM = 2**31 - 1
_WORD_BITS = 32
#: Up to this fan-in two limbs hold all bits of the largest float32, so that rounding cannot carry past them.
_MOST_FOR_TWO_LIMBS = 2**16


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as integers rint(value * 2**scale), in one int32 limb or in two.

    With two, the upper limb is the integer divided by 2**low_bits, rounded down; the lower limb is the rest,
    0 to 2**low_bits - 1. Sums of upper limbs are read as int32, sums of lower limbs as uint32.
    """

    scale: int
    low_bits: int = 0

    @property
    def limbs(self) -> int:
        """Words per number: 1, or 2 if there are lower bits."""
        return 2 if self.low_bits else 1

    def joined(self, limbs: NDArray[np.int32]) -> NDArray[np.int64]:
        """The numbers int64[k] that limbs[limbs, k] stand for."""
        numbers: NDArray[np.int64] = limbs[0].astype(np.int64) << self.low_bits
        if self.low_bits:
            numbers += limbs[1].view(np.uint32)
        return numbers


def exponent_words(magnitude: int) -> NDArray[np.uint32]:
    """The exponent field of a tensor's largest magnitude, one-hot: uint32[EXPONENT_WORDS].

    `magnitude` is the largest bit pattern of |g|, what `Kernels.magnitude` returns. Exponent e sets bit
    e % 32 of word e // 32. No bit stands for a tensor of zeros.
    """
    words = np.zeros(EXPONENT_WORDS, np.uint32)
    if magnitude:
        field = magnitude >> MANTISSA_BITS
        words[field // 32] = 1 << field % 32
    return words


def largest_exponent_field(words: NDArray[np.uint32]) -> int | None:
    """The highest bit of OR-ed `exponent_words`; None if every worker's tensor is zero."""
    for position in range(EXPONENT_WORDS - 1, -1, -1):
        if words[position]:
            return 32 * position + int(words[position]).bit_length() - 1
    return None


def scale_for(exponent_field: int, fan_in: int) -> int:
    """The largest s for which fan_in values of this exponent, times 2**s, add up within an int32.

    That is fan_in * 2**(E + 1 + s) <= 2**31 - 1 with E the unbiased exponent: all that is known of a value is
    that it is below 2**(E + 1). Subnormals count as E = -127. Raises CodecError for a fan-in that is none.
    """
    _check(exponent_field, fan_in, _LARGEST_SUM)
    headroom = (_LARGEST_SUM // fan_in).bit_length() - 1
    return headroom - 1 - (exponent_field - _EXPONENT_BIAS)


def fixed_point(exponent_field: int, fan_in: int, limbs: int = 1) -> FixedPoint:
    """The finest fixed point in which `fan_in` values of this exponent add up within 1 or 2 limbs.

    One limb has the scale of `scale_for`. Two have 62 - 2c - E, with c = ceil(log2(fan_in)): float32 values
    down to 2**-(39 - 2c) of the largest are exact. Raises CodecError for a fan-in too large.
    """
    if limbs == 1:
        return FixedPoint(scale_for(exponent_field, fan_in))
    if limbs != 2:
        raise CodecError(f"limbs: {limbs} is not possible; use 1 or 2")
    _check(exponent_field, fan_in, _MOST_FOR_TWO_LIMBS)
    carry = (fan_in - 1).bit_length()
    # The lower limbs' sum fits a uint32. Upper limbs are rounded down, so they stay below 2**(31 - carry).
    scale = (_WORD_BITS - 2) - carry - (exponent_field - _EXPONENT_BIAS)
    return FixedPoint(scale + _WORD_BITS - carry, _WORD_BITS - carry)


def _check(exponent_field: int, fan_in: int, most: int) -> None:
    if not 1 <= fan_in <= most:
        raise CodecError(f"fan_in: {fan_in} workers cannot be summed so; use 1 to {most}")
    if not 0 <= exponent_field < NON_FINITE:
        raise CodecError(
            f"exponent_field: {exponent_field} is no finite float32's; use 0 to {NON_FINITE - 1}"
        )


def error_bound(scale: int, fan_in: int) -> float:
    """How far the sum of `fan_in` quantised values can be from that of the floats: half a unit for each."""
    return float(np.ldexp(float(fan_in), -scale - 1))
