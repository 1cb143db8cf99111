"""Functions that kernels share: bit operations on words, rows of 32 elements as tiles, the hash, and scales.

Words are int32 on the device, element numbers int64. A tile is [words, 32 bits], so 32 neighbouring elements
are one row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec import layout
from peelsum.codec.fixed_point import (
    DEPTH,
    LARGEST_FINITE,
    LEVEL_BITS,
    LEVELS,
    MANTISSA_BITS,
    NON_FINITE,
    NON_FINITE_BIT,
    SPAN,
)

WORD_BITS = tl.constexpr(32)
_MIX_STEP = tl.constexpr(layout.MIX_STEP)
_MIX_FIRST = tl.constexpr(layout.MIX_FIRST)
_MIX_SECOND = tl.constexpr(layout.MIX_SECOND)
_LEVELS, _TOP_LEVEL = tl.constexpr(LEVELS), tl.constexpr(LEVELS - 1)
_LEVEL_BITS = tl.constexpr(LEVEL_BITS)
_DEPTH = tl.constexpr(DEPTH)
_SPAN = tl.constexpr(SPAN)
_NON_FINITE_BIT = tl.constexpr(NON_FINITE_BIT)
_NON_FINITE, _LARGEST_FINITE = tl.constexpr(NON_FINITE), tl.constexpr(LARGEST_FINITE)
_MANTISSA_BITS = tl.constexpr(MANTISSA_BITS)
_FINITE_BITS = tl.constexpr(2**NON_FINITE_BIT - 1)
#: In place of the scale of a block of which no dense numbers are sent, because it is zero or not finite.
ZERO_SCALE, NON_FINITE_SCALE = 2**20, 2**20 + 1
_ZERO_SCALE, _NON_FINITE_SCALE = tl.constexpr(ZERO_SCALE), tl.constexpr(NON_FINITE_SCALE)
#: Adding and then subtracting this rounds a float64 below 2**51 to an integer, half to even.
_ROUNDING = tl.constexpr(1.5 * 2.0**52)
_INTEGERS_FROM = tl.constexpr(2.0**51)
#: From here on the low 32 bits of a float32's integer are 0, and a GPU converts it to the nearest int64.
_ZERO_FROM = tl.constexpr(2.0**62)
_EXPONENT_BIAS, _WIDE_MANTISSA_BITS = tl.constexpr(1023), tl.constexpr(52)


@triton.jit
def as_int64(x):
    """Return an integer, which may be a constant, as int64."""
    return tl.zeros((), tl.int64) + x


@triton.jit
def one_per_thread(start, BLOCK: tl.constexpr):
    """Return the integers from `start` on, int64[BLOCK], laid out one per thread, for scattered accesses.

    With several per thread, Triton would read them at once but rearrange them through shared memory before
    each scattered access, which has one per thread.
    """
    return tl.max_contiguous(start + tl.arange(0, BLOCK).to(tl.int64), 1)


@triton.jit
def popcount(x):
    """Count the set bits of each int32 in x."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def packed(bits):
    """Pack bits[w, 32], each 0 or 1, into int32[w]. Shifted bits are disjoint, so their sum is their OR."""
    return tl.sum(bits.to(tl.int32) << tl.arange(0, WORD_BITS)[None, :], axis=1)


@triton.jit
def unpacked(words):
    """Unpack words[w] into bits int32[w, 32], each 0 or 1."""
    return (words.to(tl.uint32, bitcast=True)[:, None] >> tl.arange(0, WORD_BITS)[None, :]).to(tl.int32) & 1


@triton.jit
def ranks(words, bases, tile):
    """Count the set bits before each of a tile's words[w], including those of earlier tiles: int64[w]."""
    counts = popcount(words)
    return tl.load(bases + tile) + tl.cumsum(counts, axis=0) - counts


@triton.jit
def atomic_max_if_larger(largest, tile_largest):
    """Raise largest[1] to tile_largest. Only tiles with a larger value execute the atomic."""
    tl.atomic_max(largest, tile_largest, mask=tile_largest > tl.load(largest), sem="relaxed")


@triton.jit
def mixed(counter, seed):
    """Return `peelsum.codec.layout.mix` of counter * MIX_STEP + seed, modulo 2**64: uint64, from int64."""
    value = counter.to(tl.uint64) * _MIX_STEP + seed.to(tl.uint64)
    value = (value ^ (value >> 30)) * _MIX_FIRST
    value = (value ^ (value >> 27)) * _MIX_SECOND
    return value ^ (value >> 31)


@triton.jit
def segment_word(magnitude):
    """Return the word of scales of a segment, from its largest magnitude, an int32."""
    field = magnitude >> _MANTISSA_BITS
    bit = tl.where(field == _NON_FINITE, _NON_FINITE_BIT, field // _SPAN)
    return tl.where(magnitude != 0, tl.full((), 1, tl.int32) << bit, 0)


@triton.jit
def block_words(magnitude, of_segment):
    """Return the words of scales of blocks, from their magnitudes and the largest one of their segment."""
    lowest = tl.maximum((of_segment >> _MANTISSA_BITS) - _DEPTH, 0)
    level = (tl.maximum(magnitude >> _MANTISSA_BITS, lowest) >> _LEVEL_BITS) % _LEVELS
    return tl.where(magnitude != 0, tl.full(level.shape, 1, tl.int32) << level, 0)


@triton.jit
def _bit_length(words):
    """Return the number of the highest set bit, counted from 1, or 0: int32 from uint32."""
    words |= words >> 1
    words |= words >> 2
    words |= words >> 4
    words |= words >> 8
    words |= words >> 16
    return popcount(words.to(tl.int32, bitcast=True))


@triton.jit
def scales_of(scales, segment, block, segments, highest, DECODED: tl.constexpr):
    """Return the scales of blocks, or 0; whether each block has a scale; and whether it is not finite.

    scales: those of all blocks; or, unless DECODED, the OR of all workers' words, which are decoded as by
    `peelsum.codec.reference.segments.decode_scales`. segment: of all these blocks.
    """
    if DECODED:
        scale = tl.load(scales + block)
    else:
        of_segment = tl.load(scales + segment).to(tl.uint32, bitcast=True)
        top = _bit_length(of_segment & _FINITE_BITS) - 1
        # The tensor is on the left: Triton 3.7.1's interpreter takes a constexpr on the left for a constant.
        level = tl.maximum(tl.minimum(top * _SPAN + (_SPAN - 1), _LARGEST_FINITE), 0) >> _LEVEL_BITS
        turn = ((level & _TOP_LEVEL) ^ _TOP_LEVEL).to(tl.uint64)
        word = tl.load(scales + segments + block).to(tl.uint32, bitcast=True)
        turned = word.to(tl.uint64) << turn
        turned = (turned | (turned >> 32)).to(tl.uint32)
        below = tl.where(word != 0, 0 - _bit_length(turned) + _LEVELS, 0)
        upper = ((level - below + 1) << _LEVEL_BITS) - 1
        scale = highest - tl.minimum(tl.maximum(upper, 0), _LARGEST_FINITE)
        is_finite = of_segment >> _NON_FINITE_BIT == 0
        scale = tl.where(is_finite, tl.where(of_segment == 0, _ZERO_SCALE, scale), _NON_FINITE_SCALE)
    # Marks are 2**20 or more; tl.where, which would use a comparison, does not compile with Triton 3.6.0.
    known = scale & ((scale - _ZERO_SCALE) >> 31)
    return known, scale < _ZERO_SCALE, scale == _NON_FINITE_SCALE


@triton.jit
def power_of_two(exponent):
    """Return 2.0**exponent as a normal float64, built from bits: Triton passes float arguments as float32."""
    return ((exponent.to(tl.int64) + _EXPONENT_BIAS) << _WIDE_MANTISSA_BITS).to(tl.float64, bitcast=True)


@triton.jit
def fixed_number(value, scale):
    """Return int32 rint(value * 2**scale) modulo 2**32 of float32 values, half to even; 0 if not finite.

    `scale` is an int32 or several. From 2**51 on, the product is an integer already: a float32 has only 24
    significant bits.
    """
    scaled = value.to(tl.float64) * power_of_two(scale)
    size = tl.abs(scaled)
    integer = tl.where(size < _ZERO_FROM, scaled, 0.0)
    rounded = tl.where(size < _INTEGERS_FROM, (scaled + _ROUNDING) - _ROUNDING, integer)
    return rounded.to(tl.int64).to(tl.int32)


@triton.jit
def float_of(number, scale, not_finite, DIVISOR: tl.constexpr):
    """Return number * 2**-scale / DIVISOR as float32, or NaN where `not_finite`; all but `number` by rows."""
    factor = power_of_two(0 - scale)[:, None]
    value = (number.to(tl.float64) * factor / DIVISOR).to(tl.float32)
    return tl.where(not_finite[:, None], float("nan"), value)
