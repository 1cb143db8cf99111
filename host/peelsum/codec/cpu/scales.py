"""The scales of blocks on the host, and the conversion of floats to integers and back, by compiled loops.

A large model has millions of blocks: each loop goes over them once. `firsts`, int64[segments + 1], holds each
segment's first block, and the end. `factors` holds the power of two of each block of 2**`bits` elements.

`quantize_selected` and `dequantize_selected` convert floats that a bitmap selects, without their positions:
AVX-512 compresses and expands 16 floats at a time, so `HAS_AVX512` must be true, and a block has 32 elements
or more.

Inner loops index by np.uint64: a signed index might count from the end, and the test for that keeps a loop
from being vectorized. They take no slices of 32 elements: Numba counts the references to each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.buffers import frozen
from peelsum.codec.arrays import Factors, Floats, Integers, Numbers, Words
from peelsum.codec.cpu.index import OVERRUN, list_non_zero_words
from peelsum.codec.cpu.vectors import (
    compress_floats,
    expand_floats,
    multiply_numbers,
    prefetch_to_read,
    prefetch_to_write,
)
from peelsum.codec.cpu.words import BLOCK, compiled, largest_magnitude, leaf, popcount
from peelsum.codec.fixed_point import MANTISSA_BITS, NON_FINITE, FixedPoint
from peelsum.codec.index import WORD_BITS as ROW
from peelsum.codec.scales import DEPTH, LEVEL_BITS, LEVELS, NON_FINITE_BIT, SPAN, ZERO
from peelsum.codec.threads import each

_LARGEST_FINITE = NON_FINITE - 1
_MANTISSA_OF_FLOAT64, _BIAS_OF_FLOAT64 = 52, 1023
_ONE, _31, _32 = np.uint32(1), np.uint32(31), np.uint32(32)
_ONE_BLOCK = 62  # log2 of a block larger than any tensor
_BATCH_VALUES = 256  # values that stay in the first-level cache
_BATCH_WORDS = 128  # words of a bitmap, whose elements stay in the caches
_BATCH_FLOATS = 32 * (_BATCH_WORDS + 1)  # their elements, and room for 16 that are written or read at once
#: How many floats ahead loops prefetch, and the floats of a cache line.
_PREFETCH_DISTANCE, _LINE_FLOATS = np.uint64(2048), np.uint64(16)
_LOW, _S16 = np.uint32(0xFFFF), np.uint32(16)
_0, _16 = np.uint64(0), np.uint64(16)


def read_scales(words: Words, firsts: Numbers, highest: int) -> tuple[Integers, Integers]:
    """Return each segment's field and each block's scale, from the OR of workers' words of scales."""
    words, count = frozen(words), len(firsts) - 1
    fields, scales = buffers.empty(count, np.int32), buffers.empty(len(words) - count, np.int32)
    decode_scales(words[:count], words[count:], firsts, highest, fields, scales)
    return fields, scales


def quantize(values: Floats, fixed: FixedPoint, out: Integers) -> None:
    """Write rint(value * 2**scale) into out[n], on all cores.

    `fixed` has no `octaves`. The product is computed in float64 and rounded half to even. The number of a
    value that does not fit, or is not finite, is undefined.
    """
    values, factor = frozen(values), np.array([math.ldexp(1.0, fixed.scale)])
    each(values.size, lambda a, b: quantize_values(values[a:b], factor, _ONE_BLOCK, out[a:b]))


@compiled
def encode_scales(firsts: Numbers, magnitudes: Words, segments: Words, blocks: Words) -> None:
    """Write the words that agree on scales, of segments and of blocks, from the blocks' largest magnitudes.

    `peelsum.codec.scales` says what they mean. `magnitudes` may be `blocks`.
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
        top = _largest_exponent(segments[s])
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
            scales[b] = highest - (upper if upper < _LARGEST_FINITE else np.int64(_LARGEST_FINITE))


@compiled
def powers_of_two(scales: Integers, factors: Factors, inverse: Factors) -> None:
    """Write 2**scale and 2**-scale of each block, as float64 made from their bits."""
    bits, inverse_bits = factors.view(np.int64), inverse.view(np.int64)
    for b in range(scales.size):
        bits[b] = (_BIAS_OF_FLOAT64 + np.int64(scales[b])) << _MANTISSA_OF_FLOAT64
        inverse_bits[b] = (_BIAS_OF_FLOAT64 - np.int64(scales[b])) << _MANTISSA_OF_FLOAT64


@compiled
def _largest_exponent(word: np.uint32) -> int:
    """Return the largest exponent field that a segment's word allows, or less than 0."""
    for bit in range(NON_FINITE_BIT - 1, -1, -1):
        if (word >> np.uint32(bit)) & _ONE:
            return min(SPAN * bit + SPAN - 1, _LARGEST_FINITE)
    return -1


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
def quantize_values(values: Floats, factors: Factors, bits: int, out: Integers) -> None:
    """Write each value times its block's factor, rounded to an integer."""
    size = min(1 << bits, BLOCK)
    for first in range(0, values.size, size):
        last, factor = min(first + size, values.size), factors[first >> bits]
        for i in range(np.uint64(first), np.uint64(last)):
            out[i] = np.int32(np.rint(np.float64(values[i]) * factor))


@compiled
def quantize_at(values: Floats, positions: Numbers, factors: Factors, bits: int, out: Integers) -> None:
    """Do what `quantize_values` does, for values[positions]. A loop of its own rounds, and vectorizes."""
    scaled, shift = np.empty(_BATCH_VALUES, np.float64), np.uint64(bits)
    for start in range(0, positions.size, _BATCH_VALUES):
        first, count = np.uint64(start), np.uint64(min(_BATCH_VALUES, positions.size - start))
        for k in range(count):
            i = np.uint64(positions[first + k])
            scaled[k] = np.float64(values[i]) * factors[i >> shift]
        for k in range(count):
            out[first + k] = np.int32(np.rint(scaled[k]))


@compiled
def dequantize_values(quantized: Integers, factors: Factors, bits: int, divisor: float, out: Floats) -> None:
    """Write each integer times its block's factor, divided by `divisor`, as float32."""
    size = min(1 << bits, BLOCK)
    for first in range(0, quantized.size, size):
        last, factor = min(first + size, quantized.size), factors[first >> bits]
        for i in range(np.uint64(first), np.uint64(last)):
            out[i] = np.float32(np.float64(quantized[i]) * factor / divisor)


@compiled
def dequantize_at(
    quantized: Integers, positions: Numbers, factors: Factors, bits: int, divisor: float, out: Floats
) -> None:
    """Do what `dequantize_values` does, into out[positions]. A loop of its own divides, and vectorizes."""
    scaled, floats = np.empty(_BATCH_VALUES, np.float64), np.empty(_BATCH_VALUES, np.float32)
    for start in range(0, positions.size, _BATCH_VALUES):
        batch, numbers = positions[start : start + _BATCH_VALUES], quantized[start : start + _BATCH_VALUES]
        for k in range(batch.size):
            factor = factors[np.uint64(batch[k]) >> np.uint64(bits)]
            scaled[k] = np.float64(numbers[k]) * factor
        for k in range(batch.size):
            floats[k] = np.float32(scaled[k] / divisor)
        for k in range(batch.size):
            out[np.uint64(batch[k])] = floats[k]


@leaf
def _compress_word(
    values: Floats, at: np.uint64, word: np.uint32, out: Floats, count: np.uint64
) -> np.uint64:
    """Write those of values[at : at + 32] that a bitmap's word selects to out[count:]; return their end.

    16 floats after the end may be overwritten.
    """
    lower, upper = np.uint32(word & _LOW), np.uint32(word >> _S16)
    compress_floats(values, at, lower, out, count)
    count += np.uint64(popcount(lower))
    compress_floats(values, at + _16, upper, out, count)
    return np.uint64(count + np.uint64(popcount(upper)))


@compiled
def quantize_selected(values: Floats, index: Words, factors: Factors, bits: int, out: Integers) -> None:
    """Do what `quantize_values` does, for the values that the bitmap `index` selects, in order."""
    room, k = np.empty(_BATCH_WORDS + OVERRUN, np.int64), _0
    floats, scaled = np.empty(_BATCH_FLOATS, np.float32), np.empty(_BATCH_FLOATS, np.float64)
    whole = values.size // 32
    for start in range(0, whole, _BATCH_WORDS):
        words = index[start : min(start + _BATCH_WORDS, whole)]
        used = room[: list_non_zero_words(words, room)]
        count = _compress_words(values[32 * start :], words, used, floats)
        _scale(floats, count, words, 32 * start, factors, bits, scaled)
        for i in range(count):
            out[k + i] = np.int32(np.rint(scaled[i]))
        k += count
    for i in range(32 * whole, values.size):
        if (index[whole] >> np.uint32(i % 32)) & _ONE:
            factor = factors[(32 * whole) >> bits]
            out[k] = np.int32(np.rint(np.float64(values[i]) * factor))
            k += np.uint64(1)


@leaf
def _compress_words(values: Floats, words: Words, used: Numbers, out: Floats) -> np.uint64:
    """Write the values that a bitmap's words select, end to end; return how many there are.

    used: the positions of the words that are not zero.
    """
    count = _0
    for number in used:
        at = np.uint64(32 * number)
        prefetch_to_read(values, at + _PREFETCH_DISTANCE)
        prefetch_to_read(values, at + _PREFETCH_DISTANCE + _LINE_FLOATS)
        count = _compress_word(values, at, np.uint32(words[np.uint64(number)]), out, count)
    return count


@leaf
def _scale(
    numbers: NDArray[Any],
    count: np.uint64,
    words: Words,
    begin: int,
    factors: Factors,
    bits: int,
    out: Factors,
) -> None:
    """Multiply the numbers of the elements that a bitmap's words select by their blocks' factors.

    count: how many these are. begin: the element of the words' first bit.
    """
    if factors.size == 1:
        for i in range(_0, count, _16):
            multiply_numbers(numbers, np.uint64(i), factors[0], out)
        return
    at, size = _0, (1 << bits) // 32
    for first in range(0, words.size, size):
        factor, end = factors[(begin + 32 * first) >> bits], at
        for w in range(np.uint64(first), np.uint64(min(first + size, words.size))):
            end += np.uint64(popcount(words[w]))
        for i in range(at, end, _16):
            multiply_numbers(numbers, np.uint64(i), factor, out)
        at = end


@compiled
def dequantize_selected(
    quantized: Integers, index: Words, factors: Factors, bits: int, divisor: float, out: Floats, clear: bool
) -> None:
    """Do what `dequantize_values` does, into the elements that the bitmap `index` selects, in order.

    clear: set the other elements to 0; if false, they must be 0 already.
    """
    room, integers = np.empty(_BATCH_WORDS + OVERRUN, np.int64), np.empty(_BATCH_FLOATS, np.int32)
    floats, scaled = np.empty(_BATCH_FLOATS, np.float32), np.empty(_BATCH_FLOATS, np.float64)
    whole, k = out.size // 32, _0
    for start in range(0, whole, _BATCH_WORDS):
        words, count = index[start : min(start + _BATCH_WORDS, whole)], _0
        for w in range(words.size):
            count += np.uint64(popcount(words[w]))
        for i in range(count):
            integers[i] = quantized[k + i]
        _scale(integers, count, words, 32 * start, factors, bits, scaled)
        _divide(scaled, count, divisor, floats)
        if clear:
            out[32 * start : 32 * (start + words.size)] = 0.0
        _expand_words(floats, words, room[: list_non_zero_words(words, room)], out[32 * start :])
        k += count
    for i in range(32 * whole, out.size):
        if (index[whole] >> np.uint32(i % 32)) & _ONE:
            factor = factors[(32 * whole) >> bits]
            out[i] = np.float32(np.float64(quantized[k]) * factor / divisor)
            k += np.uint64(1)
        elif clear:
            out[i] = 0.0


@leaf
def _divide(scaled: Factors, count: np.uint64, divisor: float, out: Floats) -> None:
    """Write scaled[:count] / divisor as float32."""
    if divisor == 1.0:
        for i in range(count):
            out[i] = np.float32(scaled[i])
    else:
        for i in range(count):
            out[i] = np.float32(scaled[i] / divisor)


@leaf
def _expand_words(floats: Floats, words: Words, used: Numbers, out: Floats) -> None:
    """Write floats, in order, to the elements that a bitmap's words select: the inverse of `_compress_words`.

    used: the positions of the words that are not zero; their other elements become 0.
    """
    count = _0
    for number in used:
        word, at = np.uint32(words[np.uint64(number)]), np.uint64(32 * number)
        lower = np.uint32(word & _LOW)
        prefetch_to_write(out, at + _PREFETCH_DISTANCE)
        prefetch_to_write(out, at + _PREFETCH_DISTANCE + _LINE_FLOATS)
        expand_floats(floats, count, lower, out, at)
        count += np.uint64(popcount(lower))
        expand_floats(floats, count, np.uint32(word >> _S16), out, at + _16)
        count += np.uint64(popcount(np.uint32(word >> _S16)))
