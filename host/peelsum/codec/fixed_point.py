"""Fixed point: the power-of-two scale that all workers share, and the exponents from which it follows.

It knows single numbers only; turning arrays into integers and back is the kernels' work.
Deterministic by construction: every worker derives the same scale from the same OR-ed words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.errors import CodecError

#: A float32's exponent field has 8 bits: 256 values, sent one-hot in eight words.
EXPONENT_WORDS = 8
#: The exponent field of NaN and infinity. As one-hot bit it reads 'some worker's tensor is not finite'.
NON_FINITE = 255
_EXPONENT_BIAS = 127
_MANTISSA_BITS = 23
_LARGEST_SUM = 2**31 - 1


def exponent_words(magnitude: int) -> NDArray[np.uint32]:
    """The exponent field of a tensor's largest magnitude, one-hot: uint32[EXPONENT_WORDS].

    `magnitude` is the largest bit pattern of |g|, what `Kernels.magnitude` returns. Exponent e sets bit
    e % 32 of word e // 32. No bit stands for a tensor of zeros.
    """
    words = np.zeros(EXPONENT_WORDS, np.uint32)
    if magnitude:
        field = magnitude >> _MANTISSA_BITS
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
    if not 1 <= fan_in <= _LARGEST_SUM:
        raise CodecError(f"fan_in: {fan_in} workers cannot be summed in an int32; use 1 to {_LARGEST_SUM}")
    if not 0 <= exponent_field < NON_FINITE:
        raise CodecError(
            f"exponent_field: {exponent_field} is no finite float32's; use 0 to {NON_FINITE - 1}"
        )
    headroom = (_LARGEST_SUM // fan_in).bit_length() - 1
    return headroom - 1 - (exponent_field - _EXPONENT_BIAS)


def error_bound(scale: int, fan_in: int) -> float:
    """How far the sum of `fan_in` quantised values can be from that of the floats: half a unit for each."""
    return float(np.ldexp(float(fan_in), -scale - 1))
