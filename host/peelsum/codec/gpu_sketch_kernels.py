"""Triton kernels that encode sketches, and functions that quantize, for other kernels.

Sums are atomic additions modulo 2**32. Integer addition is independent of order, so every run gives the same
bits. The seed changes with each step; kernels read it from device memory.
`peelsum.codec.layout` defines the elements' places.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec import layout
from peelsum.codec.gpu_index_kernels import singly, wide

_SUB_TABLES = tl.constexpr(layout.SUB_TABLES)
_MIX_STEP = tl.constexpr(layout.MIX_STEP)
_MIX_FIRST = tl.constexpr(layout.MIX_FIRST)
_MIX_SECOND = tl.constexpr(layout.MIX_SECOND)
_DRAWN_BITS = tl.constexpr(layout.DRAWN_BITS)
_DRAWN = tl.constexpr(2**layout.DRAWN_BITS - 1)
_CELL_BITS = tl.constexpr(layout.CELL_BITS)
_SEGMENT_BIT = tl.constexpr(layout.SEGMENT_BIT)
#: Adding and then subtracting this rounds a float64 below 2**51 to an integer, half to even.
_ROUNDING = tl.constexpr(1.5 * 2.0**52)
_INTEGERS_FROM = tl.constexpr(2.0**51)
_EXPONENT_BIAS = tl.constexpr(1023)
_MANTISSA_BITS = tl.constexpr(52)


@triton.jit
def mixed(counter, seed):
    """Return `peelsum.codec.layout.mix` of counter * MIX_STEP + seed, modulo 2**64: uint64, from int64."""
    value = counter.to(tl.uint64) * _MIX_STEP + seed.to(tl.uint64)
    value = (value ^ (value >> 30)) * _MIX_FIRST
    value = (value ^ (value >> 27)) * _MIX_SECOND
    return value ^ (value >> 31)


@triton.jit
def cells_of(drawn, j, width):
    """Return the cells in sub-table j of a segment, int64, of elements for which numbers were drawn by
    `mixed`, and whether their signs there are negative."""
    part = (drawn >> (_DRAWN_BITS * j)) & _DRAWN
    cell = ((part >> 1) * width) >> _CELL_BITS
    return cell.to(tl.int64) + j * wide(width), (part & 1) != 0


@triton.jit
def segment_of(drawn, segments):
    """Return the elements' segments, int64."""
    return ((drawn >> _SEGMENT_BIT) & (segments - 1)).to(tl.int64)


@triton.jit
def power_of_two(exponent):
    """Return 2.0**exponent as a normal float64, built from bits: Triton passes float arguments as float32."""
    return ((exponent.to(tl.int64) + _EXPONENT_BIAS) << _MANTISSA_BITS).to(tl.float64, bitcast=True)


@triton.jit
def fixed_number(value, scale):
    """Return int64 rint(value * 2**scale) of float32 values, half to even; `scale` is an int32 or several.

    From 2**51 on, the product is an integer already: a float32 has only 24 significant bits.
    """
    scaled = value.to(tl.float64) * power_of_two(scale)
    rounded = tl.where(tl.abs(scaled) < _INTEGERS_FROM, (scaled + _ROUNDING) - _ROUNDING, scaled)
    return rounded.to(tl.int64)


@triton.jit
def sketch_encode_kernel(positions, values, out, seed, candidates, width, segments, BLOCK: tl.constexpr):
    """Add values[candidates] at their positions to the sketch `out`, which must be zero."""
    t = singly(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    position = tl.load(positions + t, mask=t < candidates, other=0)
    value = tl.load(values + t, mask=t < candidates, other=0)
    drawn = mixed(position, tl.load(seed))
    first = segment_of(drawn, segments) * (_SUB_TABLES * wide(width))
    for j in tl.static_range(_SUB_TABLES):
        cell, negative = cells_of(drawn, j, width)
        change = tl.where(negative, 0 - value, value)
        tl.atomic_add(out + first + cell, change, mask=value != 0, sem="relaxed")
