"""Triton kernels over the rows of a step's segments: one launch a stage, whatever the number of tensors.

Row r holds the elements begins[r] to begins[r + 1] of all segments, up to 32. It lies in block blocks[r], and
block b in segment segments[b]. Rows from `first` on are those of the sparse vector: row first + w is word w
of its bitmap. Values are given as bit patterns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec import block_scales
from peelsum.codec.fixed_point import MANTISSA_BITS, NON_FINITE
from peelsum.codec.gpu_index_kernels import (
    WORD_BITS,
    packed,
    popcount,
    raise_to,
    ranks,
    singly,
    unpacked,
    wide,
)
from peelsum.codec.gpu_sketch_kernels import fixed_number, power_of_two

_LEVELS = tl.constexpr(block_scales.LEVELS)
_LEVEL_BITS = tl.constexpr(block_scales.LEVEL_BITS)
_DEPTH = tl.constexpr(block_scales.DEPTH)
_SPAN = tl.constexpr(block_scales.SPAN)
_NON_FINITE_BIT = tl.constexpr(block_scales.NON_FINITE_BIT)
_NON_FINITE = tl.constexpr(NON_FINITE)
_MANTISSA_BITS = tl.constexpr(MANTISSA_BITS)
#: Stand for the scale of a block of which no dense numbers are sent: it is zero, or not finite.
ZERO_SCALE, NON_FINITE_SCALE = 2**20, 2**20 + 1
_ZERO_SCALE, _NON_FINITE_SCALE = tl.constexpr(ZERO_SCALE), tl.constexpr(NON_FINITE_SCALE)


@triton.jit
def _elements(begins, row, rows):
    """Return the elements of rows int64[r, 32], and which of them there are."""
    begin = tl.load(begins + row, mask=row < rows, other=0)
    end = tl.load(begins + row + 1, mask=row < rows, other=0)
    element = begin[:, None] + tl.arange(0, WORD_BITS)[None, :]
    return element, element < end[:, None]


@triton.jit
def _add(counts, segment, found):
    """Add found[r] to counts[segment[r]]: at once, if all rows are of one segment."""
    first, last = tl.min(segment, axis=0), tl.max(segment, axis=0)
    if first == last:
        tl.atomic_add(counts + first, tl.sum(found, axis=0).to(tl.int64), sem="relaxed")
    else:
        tl.atomic_add(counts + segment, found.to(tl.int64), mask=found != 0, sem="relaxed")


@triton.jit
def _place(blocks, segments, row, rows):
    """Return the rows' blocks and segments."""
    block = tl.load(blocks + tl.minimum(row, rows - 1))
    return block, tl.load(segments + block)


@triton.jit
def measure_kernel(
    values, begins, blocks, segments, largest, magnitudes, bitmap, rows, first, ROWS: tl.constexpr
):
    """Raise magnitudes[blocks] and largest[segments], which must be zero; write the bitmap."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    element, inside = _elements(begins, row, rows)
    own = tl.load(values + element, mask=inside, other=0) & 0x7FFFFFFF
    most = tl.max(own, axis=1)
    block, segment = _place(blocks, segments, row, rows)
    tl.atomic_max(magnitudes + block, most, mask=most != 0, sem="relaxed")
    start, end = tl.min(segment, axis=0), tl.max(segment, axis=0)
    if start == end:
        raise_to(largest + start, tl.max(most, axis=0))
    else:
        tl.atomic_max(largest + segment, most, mask=most != 0, sem="relaxed")
    word = row - first
    tl.store(bitmap + word, packed(own != 0), mask=(row >= first) & (row < rows))


@triton.jit
def segments_kernel(largest, out, count, BLOCK: tl.constexpr):
    """Write the segments' words of scales, from their largest magnitudes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    most = tl.load(largest + at, mask=at < count, other=0)
    field = most >> _MANTISSA_BITS
    bit = tl.where(field == _NON_FINITE, _NON_FINITE_BIT, field // _SPAN)
    words = tl.where(most != 0, tl.full(bit.shape, 1, tl.int32) << bit, 0)
    tl.store(out + at, words, mask=at < count)


@triton.jit
def blocks_kernel(magnitudes, largest, segments, out, count, BLOCK: tl.constexpr):
    """Write the blocks' words of scales, from their magnitudes and those of their segments."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    most = tl.load(magnitudes + at, mask=at < count, other=0)
    whole = tl.load(largest + tl.load(segments + at, mask=at < count, other=0))
    least = tl.maximum((whole >> _MANTISSA_BITS) - _DEPTH, 0)
    level = (tl.maximum(most >> _MANTISSA_BITS, least) >> _LEVEL_BITS) % _LEVELS
    words = tl.where(most != 0, tl.full(level.shape, 1, tl.int32) << level, 0)
    tl.store(out + at, words, mask=at < count)


@triton.jit
def count_kernel(bitmap, blocks, segments, counts, rows, first, ROWS: tl.constexpr):
    """Add the set bits of the sparse rows' words to counts[segments]."""
    word = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    found = popcount(tl.load(bitmap + word, mask=word < rows - first, other=0))
    _, segment = _place(blocks, segments, first + word, rows)
    _add(counts, segment, found)


@triton.jit
def _scales(scales, block):
    """Return blocks' scales, 0 if there is none; whether they have one; and whether they are not finite."""
    scale = tl.load(scales + block)
    return tl.where(scale < _ZERO_SCALE, scale, 0), scale < _ZERO_SCALE, scale == _NON_FINITE_SCALE


@triton.jit
def write_dense_kernel(values, begins, blocks, segments, scales, places, out, own, first, ROWS: tl.constexpr):
    """Write the numbers of row r from out[places[r]] on, unless it has no scale; add non-zeros to `own`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    element, inside = _elements(begins, row, first)
    block, segment = _place(blocks, segments, row, first)
    scale, sent, _ = _scales(scales, block)
    inside &= sent[:, None]
    value = tl.load(values + element, mask=inside, other=0).to(tl.float32, bitcast=True)
    number = tl.where(inside, fixed_number(value, scale[:, None]).to(tl.int32), 0)
    at = tl.load(places + row, mask=row < first, other=0)[:, None] + tl.arange(0, WORD_BITS)[None, :]
    tl.store(out + at, number, mask=inside)
    _add(own, segment, tl.sum((number != 0).to(tl.int32), axis=1))


@triton.jit
def _candidates(bitmap, bases, tile, rows, ROWS: tl.constexpr):
    """Return a tile's words, their numbers, their bits, and the rank of each among all candidates."""
    word = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    words = tl.load(bitmap + word, mask=word < rows, other=0)
    bits = unpacked(words)
    return word, bits, ranks(words, bases, tile)[:, None] + tl.cumsum(bits, axis=1) - bits


@triton.jit
def gather_kernel(
    values,
    begins,
    blocks,
    segments,
    scales,
    positions,
    out,
    own,
    candidates,
    rows,
    first,
    BLOCK: tl.constexpr,
):
    """Write the candidates' numbers in order; add non-zeros to `own`. positions: places in the bitmap."""
    t = singly(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    inside = t < candidates
    position = tl.load(positions + t, mask=inside, other=0)
    row = first + position // WORD_BITS
    block, segment = _place(blocks, segments, row, rows)
    scale, _, _ = _scales(scales, block)
    element = tl.load(begins + row, mask=inside, other=0) + position % WORD_BITS
    value = tl.load(values + element, mask=inside, other=0).to(tl.float32, bitcast=True)
    number = fixed_number(value, scale).to(tl.int32)
    tl.store(out + t, number, mask=inside)
    _add(own, segment, (inside & (number != 0)).to(tl.int32))


@triton.jit
def read_kernel(
    dense, sparse, begins, blocks, segments, scales, places, bitmap, bases, divisor, out, counts,
    rows, first, dense_tiles, ROWS: tl.constexpr,
):  # fmt: skip
    """Write all results: 0 where nothing is sent, NaN if not finite; add dense sums' non-zeros to `counts`.

    The first programs read the dense rows. One launch writes all results: it fails before it writes any.
    """
    program = tl.program_id(0)
    if program < dense_tiles:
        row = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        element, inside = _elements(begins, row, first)
        block, segment = _place(blocks, segments, row, first)
        scale, sent, not_finite = _scales(scales, block)
        at = tl.load(places + row, mask=row < first, other=0)[:, None] + tl.arange(0, WORD_BITS)[None, :]
        number = tl.load(dense + at, mask=inside & sent[:, None], other=0)
        _add(counts, segment, tl.sum((number != 0).to(tl.int32), axis=1))
        _write(number, scale, not_finite, divisor, out, element, inside)
    else:
        word, bits, rank = _candidates(bitmap, bases, program - dense_tiles, rows - first, ROWS)
        element, inside = _elements(begins, first + word, rows)
        block, _ = _place(blocks, segments, first + word, rows)
        scale, _, not_finite = _scales(scales, block)
        number = tl.load(sparse + rank, mask=inside & (bits != 0), other=0)
        _write(number, scale, not_finite, divisor, out, element, inside)


@triton.jit
def _write(number, scale, not_finite, divisor, out, element, inside):
    factor = power_of_two(0 - scale)[:, None]
    value = (number.to(tl.float64) * factor / wide(divisor).to(tl.float64)).to(tl.float32)
    tl.store(out + element, tl.where(not_finite[:, None], float("nan"), value), mask=inside)
