"""The scales of blocks on the host, and the conversion of floats to integers and back, by compiled loops.

A large model has millions of blocks: each loop goes over them once. `firsts`, int64[segments + 1], holds each
segment's first block, and the end. `scales` holds the scale of each block of 2**`bits` elements.

Inner loops index by np.uint64: a signed index might count from the end, and the test for that keeps a loop
from being vectorized.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.buffers import frozen
from peelsum.codec.arrays import Floats, Integers, Numbers, Words
from peelsum.codec.cpu.words import BLOCK, compiled, largest_magnitude, popcount
from peelsum.codec.fixed_point import (
    DEPTH,
    LARGEST_FINITE,
    LEVEL_BITS,
    LEVELS,
    MANTISSA_BITS,
    NON_FINITE,
    NON_FINITE_BIT,
    SPAN,
    ZERO,
    FixedPoint,
)
from peelsum.codec.layout import WORD_BITS as ROW
from peelsum.codec.threads import each

_MANTISSA_OF_FLOAT64, _BIAS_OF_FLOAT64 = 52, 1023
_31, _32 = np.uint32(31), np.uint32(32)
_ONE_BLOCK = 62  # log2 of a block larger than any tensor
_BATCH_VALUES = 256  # values that stay in the first-level cache


def quantize(values: Floats, fixed: FixedPoint, out: Integers) -> None:
    """Write rint(value * 2**scale) into out[n], on all cores.

    `fixed` has no `octaves`. The product is computed in float64 and rounded half to even. The number of a
    value that does not fit, or is not finite, is undefined.
    """
    values, scale = frozen(values), np.array([fixed.scale], np.int32)
    each(values.size, lambda a, b: quantize_values(values[a:b], scale, _ONE_BLOCK, out[a:b]))


@compiled
def encode_scales(firsts: Numbers, magnitudes: Words, segments: Words, blocks: Words) -> None:
    """Write the words that agree on scales, of segments and of blocks, from the blocks' largest magnitudes.

    `peelsum.codec.fixed_point` says what they mean. `magnitudes` may be `blocks`.
    """
    for s in range(segments.size):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        largest = largest_magnitude(magnitudes[firsts[s] : firsts[s + 1]])
        field = np.int64(largest >> np.uint32(MANTISSA_BITS))
        bit = NON_FINITE_BIT if field == NON_FINITE else field // SPAN
        segments[s] = np.uint32(1 << bit) if largest else np.uint32(0)
        least = np.int64(field - DEPTH if field > DEPTH else 0)
        for b in range(begin, end):
            exponent = np.int64(magnitudes[b] >> np.uint32(MANTISSA_BITS))
            level = (exponent if exponent > least else least) >> LEVEL_BITS
            blocks[b] = np.uint32(1 << (level % LEVELS)) if magnitudes[b] else np.uint32(0)


@compiled
def decode_scales(
    segments: Words, blocks: Words, firsts: Numbers, highest: int, fields: Integers, scales: Integers
) -> None:
    """Write exponent fields of segments and scales of blocks, from the OR of all workers' words.

    A scale is `highest` less the exponent field. `reference.scales.decode_scales` describes these fields.
    """
    for s in range(segments.size):
        top = -1  # the largest exponent field that the segment's word allows; less than 0 for none
        for bit in range(NON_FINITE_BIT - 1, -1, -1):
            if (segments[s] >> np.uint32(bit)) & np.uint32(1):
                top = min(SPAN * bit + SPAN - 1, LARGEST_FINITE)
                break
        fields[s] = top if segments[s] else ZERO
        if segments[s] >> np.uint32(NON_FINITE_BIT):
            fields[s] = NON_FINITE
        level = max(top, 0) >> LEVEL_BITS
        turn = np.uint32((LEVELS - 1 - level) % LEVELS)
        for b in range(np.uint64(firsts[s]), np.uint64(firsts[s + 1])):
            # Turned: the segment's uppermost level is the uppermost bit. Fill all bits below the highest.
            word = np.uint32((blocks[b] << turn) | (blocks[b] >> ((_32 - turn) & _31)))
            for shift in (1, 2, 4, 8, 16):
                word = np.uint32(word | (word >> np.uint32(shift)))
            below = np.int64(LEVELS - int(popcount(word))) if word else np.int64(0)
            upper = ((level - below) << LEVEL_BITS) + (1 << LEVEL_BITS) - 1
            upper = upper if upper > 0 else np.int64(0)
            scales[b] = highest - (upper if upper < LARGEST_FINITE else np.int64(LARGEST_FINITE))


def read_scales(words: Words, firsts: Numbers, highest: int) -> tuple[Integers, Integers]:
    """Return each segment's field and each block's scale, from the OR of workers' words of scales."""
    count = len(firsts) - 1
    fields, scales = np.empty(count, np.int32), np.empty(len(words) - count, np.int32)
    decode_scales(words[:count], words[count:], firsts, highest, fields, scales)
    return fields, scales


@compiled
def power_of_two(exponent: np.int64) -> np.float64:
    """Return 2.0**exponent, made from its bits."""
    return np.int64((_BIAS_OF_FLOAT64 + exponent) << _MANTISSA_OF_FLOAT64).view(np.float64)


@compiled
def locate_elements(
    flags: NDArray[np.bool_], begins: Numbers, rows: Numbers, firsts: Numbers, sizes: Numbers
) -> NDArray[np.int64]:
    """Return the rows of `ElementLocations`, int64[4, k], for the elements of flagged blocks.

    begins, rows: int64[segments + 1], of `SegmentTable`. sizes: int64[segments], elements of a block.
    """
    count = 0
    for s in range(sizes.size):
        for b in range(firsts[s], firsts[s + 1]):
            if flags[b]:
                count += min(sizes[s], begins[s + 1] - begins[s] - (b - firsts[s]) * sizes[s])
    locations, at = np.empty((4, count), np.int64), 0
    for s in range(sizes.size):
        for b in range(firsts[s], firsts[s + 1]):
            if not flags[b]:
                continue
            start = (b - firsts[s]) * sizes[s]
            for i in range(start, min(start + sizes[s], begins[s + 1] - begins[s])):
                locations[0, at], locations[1, at], locations[2, at] = begins[s] + i, s, b
                locations[3, at] = ROW * rows[s] + i
                at += 1
    return locations


@compiled
def quantize_values(values: Floats, scales: Integers, bits: int, out: Integers) -> None:
    """Write each value times 2**scale of its block, rounded to an integer."""
    size = min(1 << bits, BLOCK)
    for first in range(0, values.size, size):
        last, factor = min(first + size, values.size), power_of_two(np.int64(scales[first >> bits]))
        for i in range(np.uint64(first), np.uint64(last)):
            out[i] = np.int32(np.rint(np.float64(values[i]) * factor))


@compiled
def quantize_ahead(
    values: Floats, magnitudes: Words, scales: Integers, highest: int, bits: int, out: Integers
) -> None:
    """Do what `quantize_values` does, by predicted scales; modulo 2**32 where a block exceeds its scale."""
    size = min(1 << bits, BLOCK)
    for first in range(0, values.size, size):
        last, block = min(first + size, values.size), first >> bits
        factor = power_of_two(np.int64(scales[block]))
        if np.int64(magnitudes[block] >> np.uint32(MANTISSA_BITS)) <= highest - scales[block]:
            for i in range(np.uint64(first), np.uint64(last)):
                out[i] = np.int32(np.rint(np.float64(values[i]) * factor))
        else:
            for i in range(np.uint64(first), np.uint64(last)):
                out[i] = np.int32(np.int64(np.rint(np.float64(values[i]) * factor)))


@compiled
def quantize_at(
    values: Floats, positions: Numbers, begin: int, scales: Integers, bits: int, out: Integers
) -> None:
    """Do what `quantize_values` does, for values[positions - begin], modulo 2**32.

    A loop of its own rounds, and vectorizes.
    """
    scaled, shift = np.empty(_BATCH_VALUES, np.float64), np.uint64(bits)
    for start in range(0, positions.size, _BATCH_VALUES):
        first, count = np.uint64(start), np.uint64(min(_BATCH_VALUES, positions.size - start))
        for k in range(count):
            i = np.uint64(positions[first + k] - begin)
            scaled[k] = np.float64(values[i]) * power_of_two(np.int64(scales[i >> shift]))
        for k in range(count):
            out[first + k] = np.int32(np.int64(np.rint(scaled[k])))


@compiled
def dequantize_values(quantized: Integers, scales: Integers, bits: int, divisor: float, out: Floats) -> None:
    """Write each integer times 2**-scale of its block, divided by `divisor`, as float32."""
    size = min(1 << bits, BLOCK)
    for first in range(0, quantized.size, size):
        last, factor = min(first + size, quantized.size), power_of_two(-np.int64(scales[first >> bits]))
        for i in range(np.uint64(first), np.uint64(last)):
            out[i] = np.float32(np.float64(quantized[i]) * factor / divisor)


@compiled
def dequantize_at(
    quantized: Integers, positions: Numbers, begin: int, scales: Integers, bits: int, divisor: float,
    out: Floats,
) -> None:  # fmt: skip
    """Do what `dequantize_values` does, into out[positions - begin].

    A loop of its own divides, and vectorizes.
    """
    scaled, floats = np.empty(_BATCH_VALUES, np.float64), np.empty(_BATCH_VALUES, np.float32)
    for start in range(0, positions.size, _BATCH_VALUES):
        batch, numbers = positions[start : start + _BATCH_VALUES], quantized[start : start + _BATCH_VALUES]
        for k in range(batch.size):
            scale = np.int64(scales[np.uint64(batch[k] - begin) >> np.uint64(bits)])
            scaled[k] = np.float64(numbers[k]) * power_of_two(-scale)
        for k in range(batch.size):
            floats[k] = np.float32(scaled[k] / divisor)
        for k in range(batch.size):
            out[np.uint64(batch[k] - begin)] = floats[k]
