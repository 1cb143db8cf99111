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
_FIRST_GROUP = tl.constexpr(layout.FIRST_GROUP)
#: How a layout's candidates are cut into segments: not at all, by rank, or by block.
WHOLE, BY_RANK, BY_BLOCK = (tl.constexpr(number) for number in range(3))
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
def _places(block, seed, j, rows, LANES: tl.constexpr):
    """Return, per block in sub-table j, its row's first cell int64, rotation int32, and if its sign is -1."""
    value = mixed(block * _SUB_TABLES + j, seed)
    row = (((value >> 32) * rows) >> 32).to(tl.int64)
    rotation = (((value & 0x7FFFFFFF) * LANES) >> 31).to(tl.int32)
    return (row + j * wide(rows)) * LANES, rotation, ((value >> 31) & 1) != 0


@triton.jit
def cells_of(position, seed, j, rows, LANES: tl.constexpr):
    """Return the elements' cells in sub-table j, int64, and whether their signs there are negative."""
    block = position // LANES
    row, rotation, negative = _places(block, seed, j, rows, LANES)
    lane = (position - block * LANES).to(tl.int32) + rotation
    return row + tl.where(lane >= LANES, lane - LANES, lane), negative


@triton.jit
def segment_of(rank, position, share, seed, rows, LANES: tl.constexpr, SEGMENTED: tl.constexpr):
    """Return the first cell, int64, of the segment of candidates of these ranks and positions.

    `share` is the layout's if it is cut BY_RANK, and the number of its segments if it is cut BY_BLOCK.
    """
    if SEGMENTED == BY_RANK:
        return rank // share * (_SUB_TABLES * wide(rows) * LANES)
    if SEGMENTED == BY_BLOCK:
        block = position // LANES
        drawn = mixed(block // share + _FIRST_GROUP, seed)
        turn = (((drawn & 0x7FFFFFFF) * share) >> 31).to(tl.int64)
        return (block + turn) % share * (_SUB_TABLES * wide(rows) * LANES)
    return rank * 0


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
def sketch_encode_kernel(
    positions, values, out, seed, candidates, rows, share,
    LANES: tl.constexpr, SEGMENTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add values[candidates] at their positions to the sketch `out`, which must be zero."""
    t = singly(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    position = tl.load(positions + t, mask=t < candidates, other=0)
    value = tl.load(values + t, mask=t < candidates, other=0)
    segment = segment_of(t, position, share, tl.load(seed), rows, LANES, SEGMENTED)
    for j in tl.static_range(_SUB_TABLES):
        cell, negative = cells_of(position, tl.load(seed), j, rows, LANES)
        change = tl.where(negative, 0 - value, value)
        tl.atomic_add(out + segment + cell, change, mask=value != 0, sem="relaxed")
