"""Triton kernels that quantize, dequantize and encode sketches.

Sums are atomic additions modulo 2**32. Integer addition is independent of order, so every run gives the same
bits. Seed and scale change with each step; kernels read them from device memory.
`peelsum.codec.layout` defines the elements' places.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec import layout
from peelsum.codec.gpu_index_kernels import WORD_BITS, load_tile, packed, present, raise_to, singly, wide
from peelsum.codec.gpu_table_kernels import floats, ints, longs, placed, size

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
def _scale_of(element, inside, scale, octaves, block_bits, BLOCKS: tl.constexpr):
    """Return the elements' scales: scale[1], and if there are BLOCKS, the octaves of their block above it."""
    scales = tl.load(scale)
    if BLOCKS:
        scales += tl.load(octaves + (element >> block_bits), mask=inside, other=0)
    return scales


@triton.jit
def fixed_number(value, scale):
    """Return int64 rint(value * 2**scale) of float32 values, half to even; `scale` is an int32 or several.

    From 2**51 on, the product is an integer already: a float32 has only 24 significant bits.
    """
    scaled = value.to(tl.float64) * power_of_two(scale)
    rounded = tl.where(tl.abs(scaled) < _INTEGERS_FROM, (scaled + _ROUNDING) - _ROUNDING, scaled)
    return rounded.to(tl.int64)


@triton.jit
def quantize_kernel(
    table, launches, values, out, largest, scale, octaves, n, block_bits,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantize values[n], given as bit patterns, into out[n], and write their magnitude."""
    launch, program, _ = placed(table, launches)
    values, out, largest = ints(launch, 0, values), ints(launch, 1, out), ints(launch, 2, largest)
    scale, octaves, n = ints(launch, 3, scale), ints(launch, 4, octaves), size(launch, 5, n)
    block_bits = size(launch, 6, block_bits)
    begin = program.to(tl.int64) * BLOCK
    element = begin + tl.arange(0, BLOCK)
    bits = load_tile(values, element, begin + BLOCK, n)
    scales = _scale_of(element, element < n, scale, octaves, block_bits, BLOCKS)
    number = fixed_number(bits.to(tl.float32, bitcast=True), scales)
    tl.store(out + element, number.to(tl.int32), mask=element < n)
    raise_to(largest, tl.max(bits & 0x7FFFFFFF, axis=0))


@triton.jit
def quantize_at_kernel(
    table, launches, values, positions, count, out, scale, octaves, capacity, block_bits,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantize values[positions[count]] into out[capacity]."""
    launch, program, programs = placed(table, launches)
    values, positions, count = ints(launch, 0, values), longs(launch, 1, positions), longs(launch, 2, count)
    out, scale, octaves = ints(launch, 3, out), ints(launch, 4, scale), ints(launch, 5, octaves)
    capacity, block_bits = size(launch, 6, capacity), size(launch, 7, block_bits)
    candidates = present(count, capacity)
    for start in range(program.to(tl.int64) * BLOCK, candidates, programs * BLOCK):
        t = singly(start, BLOCK)
        position = tl.load(positions + t, mask=t < candidates, other=0)
        bits = tl.load(values + position, mask=t < candidates, other=0)
        scales = _scale_of(position, t < candidates, scale, octaves, block_bits, BLOCKS)
        number = fixed_number(bits.to(tl.float32, bitcast=True), scales)
        tl.store(out + t, number.to(tl.int32), mask=t < candidates)


@triton.jit
def _float(quantized, at, inside, scale, divisor):
    """Dequantize the numbers quantized[at] to float32, each by its own `scale`."""
    number = tl.load(quantized + at, mask=inside, other=0)
    return (number.to(tl.float64) * power_of_two(0 - scale) / wide(divisor).to(tl.float64)).to(tl.float32)


@triton.jit
def dequantize_kernel(
    table, launches, quantized, out, scale, octaves, n, divisor, block_bits,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Dequantize quantized[n] into float32 out[n]."""
    launch, program, _ = placed(table, launches)
    quantized, out, scale = ints(launch, 0, quantized), floats(launch, 1, out), ints(launch, 2, scale)
    octaves, n, divisor = ints(launch, 3, octaves), size(launch, 4, n), size(launch, 5, divisor)
    block_bits = size(launch, 6, block_bits)
    element = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < n
    scales = _scale_of(element, inside, scale, octaves, block_bits, BLOCKS)
    value = _float(quantized, element, inside, scales, divisor)
    tl.store(out + element, value, mask=inside)


@triton.jit
def dequantize_at_kernel(
    table, launches, quantized, positions, count, out, scale, octaves, capacity, divisor, block_bits,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Dequantize quantized[capacity] into float32 out[positions[count]]."""
    launch, program, programs = placed(table, launches)
    quantized, positions = ints(launch, 0, quantized), longs(launch, 1, positions)
    count = longs(launch, 2, count)
    out, scale, octaves = floats(launch, 3, out), ints(launch, 4, scale), ints(launch, 5, octaves)
    capacity, divisor = size(launch, 6, capacity), size(launch, 7, divisor)
    block_bits, candidates = size(launch, 8, block_bits), present(count, capacity)
    for start in range(program.to(tl.int64) * BLOCK, candidates, programs * BLOCK):
        t = singly(start, BLOCK)
        position = tl.load(positions + t, mask=t < candidates, other=0)
        scales = _scale_of(position, t < candidates, scale, octaves, block_bits, BLOCKS)
        value = _float(quantized, t, t < candidates, scales, divisor)
        tl.store(out + position, value, mask=t < candidates)


@triton.jit
def sketch_encode_kernel(
    table, launches, positions, count, values, out, seed, capacity, rows, share,
    LANES: tl.constexpr, SEGMENTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add values[count] at positions[count] to the sketch `out`, which must be zero."""
    launch, program, programs = placed(table, launches)
    positions, count, values = longs(launch, 0, positions), longs(launch, 1, count), ints(launch, 2, values)
    out, seed, capacity = ints(launch, 3, out), longs(launch, 4, seed), size(launch, 5, capacity)
    rows, share, candidates = size(launch, 6, rows), size(launch, 7, share), present(count, capacity)
    for start in range(program.to(tl.int64) * BLOCK, candidates, programs * BLOCK):
        t = singly(start, BLOCK)
        position = tl.load(positions + t, mask=t < candidates, other=0)
        value = tl.load(values + t, mask=t < candidates, other=0)
        segment = segment_of(t, position, share, tl.load(seed), rows, LANES, SEGMENTED)
        for j in tl.static_range(_SUB_TABLES):
            cell, negative = cells_of(position, tl.load(seed), j, rows, LANES)
            tl.atomic_add(
                out + segment + cell, tl.where(negative, 0 - value, value), mask=value != 0, sem="relaxed"
            )


@triton.jit
def _add_words(
    values, word, sketch, seed, scale, n, first, rows, share,
    LANES: tl.constexpr, ALIGNED: tl.constexpr, SEGMENTED: tl.constexpr,
):  # fmt: skip
    """Add the elements of a bitmap's words int64[w] to the sketch, unless all are zero."""
    element = word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    # One per thread, as in `singly`: 32 neighbours, one row of the tile, are added by one warp at once.
    element = tl.max_contiguous(element, (1, 1))
    bits = tl.load(values + element, mask=element < n, other=0)
    if tl.max(tl.max(bits & 0x7FFFFFFF, axis=1), axis=0) != 0:
        number = fixed_number(bits.to(tl.float32, bitcast=True), tl.load(scale)).to(tl.int32)
        begin = first + word * WORD_BITS
        if ALIGNED:
            segment = segment_of(begin, begin, share, tl.load(seed), rows, LANES, SEGMENTED)[:, None]
        else:
            place = first + element
            segment = segment_of(place, place, share, tl.load(seed), rows, LANES, SEGMENTED)
        for j in tl.static_range(_SUB_TABLES):
            if ALIGNED:
                # Lanes are a multiple of 32, so a row of the tile lies in one block and shares a hash.
                block = begin // LANES
                row, rotation, negative = _places(block, tl.load(seed), j, rows, LANES)
                lane = (begin - block * LANES).to(tl.int32) + rotation
                lane = lane[:, None] + tl.arange(0, WORD_BITS)[None, :]
                cell = row[:, None] + tl.where(lane >= LANES, lane - LANES, lane)
                negative = negative[:, None]
            else:
                cell, negative = cells_of(first + element, tl.load(seed), j, rows, LANES)
            value = tl.where(negative, 0 - number, number)
            tl.atomic_add(sketch + segment + cell, value, mask=value != 0, sem="relaxed")


@triton.jit
def index_sketch_kernel(
    table, launches, values, bitmap, sketch, largest, seed, scale, n, first, rows, share,
    LANES: tl.constexpr, ALIGNED: tl.constexpr, SEGMENTED: tl.constexpr,
    PIECE: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Write bitmap, magnitude and sketch of values[n] in one pass; sketch[cells] must be zero.

    A tile is loaded 16 bytes at a time, as for `index_kernel`. Its non-zeros are added in pieces of PIECE
    words, which are in the cache then: fewer registers for each thread leave room for more threads.
    """
    launch, program, _ = placed(table, launches)
    values, bitmap, sketch = ints(launch, 0, values), ints(launch, 1, bitmap), ints(launch, 2, sketch)
    largest, seed, scale = ints(launch, 3, largest), longs(launch, 4, seed), ints(launch, 5, scale)
    n, first = size(launch, 6, n), size(launch, 7, first)
    rows, share = size(launch, 8, rows), size(launch, 9, share)
    tile = program.to(tl.int64) * WORDS
    word = tile + tl.arange(0, WORDS)
    element = word[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    magnitudes = load_tile(values, element, (tile + WORDS) * WORD_BITS, n) & 0x7FFFFFFF
    tl.store(bitmap + word, packed(magnitudes != 0), mask=word * WORD_BITS < n)
    tile_largest = tl.max(tl.max(magnitudes, axis=1), axis=0)
    raise_to(largest, tile_largest)
    if tile_largest != 0:
        for start in range(0, WORDS, PIECE):
            _add_words(
                values, tile + start + tl.arange(0, PIECE), sketch, seed, scale, n, first, rows, share,
                LANES, ALIGNED, SEGMENTED,
            )  # fmt: skip
