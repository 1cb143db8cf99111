"""The scales of blocks on a GPU, and the conversion of numbers with them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from peelsum.codec.fixed_point import (
    DEPTH,
    LEVEL_BITS,
    LEVELS,
    MANTISSA_BITS,
    NON_FINITE,
    NON_FINITE_BIT,
    SPAN,
)
from peelsum.codec.gpu import launch
from peelsum.codec.gpu.launch import BLOCK, tiles_of
from peelsum.codec.gpu.words import as_int64

_LEVELS = tl.constexpr(LEVELS)
_LEVEL_BITS = tl.constexpr(LEVEL_BITS)
_DEPTH = tl.constexpr(DEPTH)
_SPAN = tl.constexpr(SPAN)
_NON_FINITE_BIT = tl.constexpr(NON_FINITE_BIT)
_NON_FINITE = tl.constexpr(NON_FINITE)
_MANTISSA_BITS = tl.constexpr(MANTISSA_BITS)
#: In place of the scale of a block of which no dense numbers are sent, because it is zero or not finite.
ZERO_SCALE, NON_FINITE_SCALE = 2**20, 2**20 + 1
_ZERO_SCALE, _NON_FINITE_SCALE = tl.constexpr(ZERO_SCALE), tl.constexpr(NON_FINITE_SCALE)
#: Adding and then subtracting this rounds a float64 below 2**51 to an integer, half to even.
_ROUNDING = tl.constexpr(1.5 * 2.0**52)
_INTEGERS_FROM = tl.constexpr(2.0**51)
_EXPONENT_BIAS, _WIDE_MANTISSA_BITS = tl.constexpr(1023), tl.constexpr(52)


def write_words(largest: Tensor, magnitudes: Tensor, segments: Tensor, out: Tensor) -> None:
    """Write the words that agree on scales, of segments and blocks, from their largest magnitudes.

    largest: int32[segments]. magnitudes: int32[blocks]. segments: int32[blocks], each block's segment.
    """
    count, blocks = largest.numel(), magnitudes.numel()
    launch.run(segments_kernel, tiles_of(count, BLOCK), largest, out, count, BLOCK)
    rest = segments, out[count:], blocks, BLOCK
    launch.run(blocks_kernel, tiles_of(blocks, BLOCK), magnitudes, largest, *rest)


@triton.jit
def segments_kernel(largest, out, count, BLOCK: tl.constexpr):
    """Write the segments' words of scales, from their largest magnitudes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    magnitude = tl.load(largest + at, mask=at < count, other=0)
    field = magnitude >> _MANTISSA_BITS
    bit = tl.where(field == _NON_FINITE, _NON_FINITE_BIT, field // _SPAN)
    words = tl.where(magnitude != 0, tl.full(bit.shape, 1, tl.int32) << bit, 0)
    tl.store(out + at, words, mask=at < count)


@triton.jit
def blocks_kernel(magnitudes, largest, segments, out, count, BLOCK: tl.constexpr):
    """Write the blocks' words of scales, from their magnitudes and those of their segments."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    magnitude = tl.load(magnitudes + at, mask=at < count, other=0)
    of_segment = tl.load(largest + tl.load(segments + at, mask=at < count, other=0))
    lowest = tl.maximum((of_segment >> _MANTISSA_BITS) - _DEPTH, 0)
    level = (tl.maximum(magnitude >> _MANTISSA_BITS, lowest) >> _LEVEL_BITS) % _LEVELS
    words = tl.where(magnitude != 0, tl.full(level.shape, 1, tl.int32) << level, 0)
    tl.store(out + at, words, mask=at < count)


@triton.jit
def scales_of(scales, block):
    """Return the scales of blocks, or 0; whether each block has a scale; and whether it is not finite."""
    scale = tl.load(scales + block)
    return tl.where(scale < _ZERO_SCALE, scale, 0), scale < _ZERO_SCALE, scale == _NON_FINITE_SCALE


@triton.jit
def power_of_two(exponent):
    """Return 2.0**exponent as a normal float64, built from bits: Triton passes float arguments as float32."""
    return ((exponent.to(tl.int64) + _EXPONENT_BIAS) << _WIDE_MANTISSA_BITS).to(tl.float64, bitcast=True)


@triton.jit
def fixed_number(value, scale):
    """Return int64 rint(value * 2**scale) of float32 values, half to even; `scale` is an int32 or several.

    From 2**51 on, the product is an integer already: a float32 has only 24 significant bits.
    """
    scaled = value.to(tl.float64) * power_of_two(scale)
    rounded = tl.where(tl.abs(scaled) < _INTEGERS_FROM, (scaled + _ROUNDING) - _ROUNDING, scaled)
    return rounded.to(tl.int64)


@triton.jit
def write_floats(number, scale, not_finite, divisor, out, element, inside):
    """Write number * 2**-scale / divisor to the elements `inside`, as float32, or NaN where `not_finite`."""
    factor = power_of_two(0 - scale)[:, None]
    value = (number.to(tl.float64) * factor / as_int64(divisor).to(tl.float64)).to(tl.float32)
    tl.store(out + element, tl.where(not_finite[:, None], float("nan"), value), mask=inside)
