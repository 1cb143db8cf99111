"""Loops over all tensors of a step, one call a phase, compiled by Numba and cached on disk.

They write the words that the kernels of `peelsum.codec.cpu` write for one tensor after another
without a prediction. A table int64[tensors, len(Column)] tells where each tensor's numbers lie.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.block_scales import LEVEL_BITS, LEVELS
from peelsum.codec.cpu import frozen
from peelsum.codec.cpu_index_loops import (
    BLOCK,
    Numbers,
    Words,
    address,
    bloom_decode,
    bloom_encode,
    compiled,
    count,
    floats_at,
    index,
    index_magnitudes,
    index_magnitudes_over,
    index_over,
    magnitude,
    magnitudes,
    mixed,
    occupied_in,
    positions,
    scatter_bits,
    used_words,
)
from peelsum.codec.cpu_loops import (
    decode_octaves,
    dequantize,
    dequantize_at,
    encode_exponents,
    quantize,
    quantize_at,
)
from peelsum.codec.cpu_selection_loops import gather, scatter
from peelsum.codec.cpu_vectors import PACKS_FLOATS
from peelsum.codec.fixed_point import EXPONENT_WORDS, MANTISSA_BITS, NON_FINITE
from peelsum.codec.index import BLOCK_SIZES
from peelsum.codec.sample import SAMPLE

_Integers = NDArray[np.int32]
_Factors = NDArray[np.float64]
_Table = NDArray[np.int64]

#: In place of a field, of a tensor that is zero on every worker.
ZERO = -1
_WHOLE = 62  # log2 of a block larger than any tensor
_MANTISSA_OF_FLOAT64, _BIAS_OF_FLOAT64 = 52, 1023
_S32 = np.uint64(32)
_SAMPLED_FROM = 2**31 - 1


class Kind(IntEnum):
    """How a tensor is sent, by the loops."""

    OTHER = 0
    """Not by the loops: they only leave room for its words."""
    DENSE = 1
    BITMAP = 2
    """Compact, with a bit for each element."""
    BLOOM = 3
    """Compact, with a Bloom filter."""


class Column(IntEnum):
    """A tensor's numbers in its row of a table.

    Up to SEED and from VALUES to CLEAR they are given. The loops write the others, and the numbers of words
    of each later round.
    """

    KIND = 0
    ELEMENTS = 1
    OR_WORDS = 2
    """Words to be OR-ed in this round."""
    ADD_WORDS = 3
    """Words to be added in this round."""
    BLOCK = 4
    """Elements in a block with its own scale; 0 for one scale."""
    BLOCKS = 5
    """Number of such blocks."""
    FACTORS = 6
    """Place of the first factor; of one with one scale, else of one for each block."""
    SAMPLED = 7
    """Whether the header samples the density."""
    HASHES = 8
    """Sub-tables of the Bloom filter."""
    ROWS = 9
    """Rows of a sub-table."""
    BITMAP = 10
    """With a Bloom filter, place of this worker's bitmap, and behind it of the candidates'."""
    WANTED = 11
    """Whether `occupied` is counted."""
    SEED = 12
    """Seed of the Bloom filter or of the sample."""
    VALUES = 13
    """Address of the values, float32[ELEMENTS]."""
    OUT = 14
    """Address of the result, float32[ELEMENTS]."""
    OVER = 15
    """Whether the result is written over the values."""
    CLEAR = 16
    """Whether elements of the result outside the union must be set to 0."""
    OR_PLACE = 17
    """Place among the words to be OR-ed."""
    ADD_PLACE = 18
    """Place among the words to be added."""
    FIELD = 19
    """The agreed exponent field, which may be NON_FINITE, or ZERO."""
    PASSED = 20
    """Elements that pass the index, or non-zeros of the sample."""
    OWN = 21
    """Non-zeros of this worker's integers."""
    TOTAL = 22
    """Non-zeros of the sum's integers; of dense tensors only."""
    UNION = 23
    """Place of the candidates' bitmap, among the words that were OR-ed or among other bitmaps."""


@compiled
def lay_out(table: _Table, ends: Numbers) -> None:
    """Place all tensors' words back to back.

    ends: receives the number of words to be OR-ed, and of words to be added.
    """
    ored = added = 0
    for m in range(table.shape[0]):
        row = table[m]
        row[Column.OR_PLACE], row[Column.ADD_PLACE] = ored, added
        ored += row[Column.OR_WORDS]
        added += row[Column.ADD_WORDS]
    ends[0], ends[1] = ored, added


@compiled
def write_headers(table: _Table, bitmaps: Words, ored: Words) -> None:
    """Write each tensor's exponent, the words of its blocks, and its index or sample."""
    for m in range(table.shape[0]):
        row = table[m]
        if row[Column.KIND] == Kind.OTHER:
            continue
        elements, blocks = row[Column.ELEMENTS], row[Column.BLOCKS]
        bits = floats_at(row[Column.VALUES], elements).view(np.uint32)
        header = ored[row[Column.OR_PLACE] : row[Column.OR_PLACE] + row[Column.OR_WORDS]]
        scales, rest = header[EXPONENT_WORDS : EXPONENT_WORDS + blocks], header[EXPONENT_WORDS + blocks :]
        if row[Column.KIND] == Kind.DENSE:
            largest = _dense_magnitude(bits, row[Column.BLOCK], scales)
            if row[Column.SAMPLED]:
                _sample(bits, np.uint64(row[Column.SEED]), rest)
        elif row[Column.KIND] == Kind.BITMAP:
            largest = _sparse_magnitude(bits, row[Column.BLOCK], row[Column.OVER], rest, scales)
        else:
            own = bitmaps[row[Column.BITMAP] : row[Column.BITMAP] + (elements + 31) // 32]
            largest = _sparse_magnitude(bits, row[Column.BLOCK], row[Column.OVER], own, scales)
            rest[:] = 0
            seed = np.uint64(row[Column.SEED])
            bloom_encode(row[Column.HASHES], row[Column.ROWS], seed, 0, own, rest)
        header[:EXPONENT_WORDS] = 0
        if largest:
            field = largest >> np.uint32(MANTISSA_BITS)
            header[int(field) // 32] = np.uint32(1) << (field % np.uint32(32))


@compiled
def _dense_magnitude(bits: Words, block: int, scales: Words) -> np.uint32:
    """Return the magnitude of a dense tensor; write the words of its blocks, if it has several."""
    if not scales.size:
        return magnitude(bits)
    pieces, piece = _pieces(block, scales)
    magnitudes(bits, piece, pieces)
    return encode_exponents(pieces, block // piece, scales)


@compiled
def _sparse_magnitude(bits: Words, block: int, over: int, bitmap: Words, scales: Words) -> np.uint32:
    """Do what `_dense_magnitude` does, and write the bitmap; replace -0.0 by 0.0 if `over`."""
    if not scales.size:
        return index_over(bits, bitmap) if over else index(bits, bitmap)
    pieces, piece = _pieces(block, scales)
    if over:
        index_magnitudes_over(bits, piece, bitmap, pieces)
    else:
        index_magnitudes(bits, piece, bitmap, pieces)
    return encode_exponents(pieces, block // piece, scales)


@compiled
def _pieces(block: int, scales: Words) -> tuple[Words, int]:
    """Return room for the magnitudes of pieces of blocks, and the elements of a piece."""
    piece = min(block, BLOCK)
    if piece == block:
        return scales, piece
    return np.zeros(scales.size * (block // piece), np.uint32), piece


@compiled
def _sample(bits: Words, seed: np.uint64, out: Words) -> None:
    """Write the bitmap of the elements that `peelsum.codec.sample` draws."""
    drawn = np.empty(SAMPLE, np.uint32)
    for k in range(SAMPLE):
        drawn[k] = bits[drawn_place(k, seed, bits.size)]
    index(drawn, out)


@compiled
def drawn_place(k: int, seed: np.uint64, elements: int) -> int:
    """Return the k-th element that `peelsum.codec.sample` draws."""
    wide = (mixed(np.uint64(k), seed) >> _S32) * np.uint64(min(elements, _SAMPLED_FROM))
    return int(wide >> _S32)


@compiled
def read_headers(
    table: _Table,
    ored: Words,
    highest: int,
    bitmaps: Words,
    octaves: _Integers,
    factors: _Factors,
    inverse: _Factors,
) -> None:
    """Read the OR of all workers' headers: fields, factors, and candidates, of which those are sent.

    highest: the scale of field 0. inverse: the inverse of each factor.
    """
    for m in range(table.shape[0]):
        row = table[m]
        if row[Column.KIND] == Kind.OTHER:
            continue
        header = ored[row[Column.OR_PLACE] : row[Column.OR_PLACE] + row[Column.OR_WORDS]]
        field = row[Column.FIELD] = largest_field(header)
        row[Column.OR_WORDS] = row[Column.ADD_WORDS] = row[Column.PASSED] = 0
        if field in (ZERO, NON_FINITE):
            continue
        first, blocks = row[Column.FACTORS], row[Column.BLOCKS]
        last = first + max(blocks, 1)
        _read_octaves(header[EXPONENT_WORDS : EXPONENT_WORDS + blocks], field, octaves[first:last])
        _write_factors(octaves[first:last], highest - field, factors[first:last], inverse[first:last])
        row[Column.ADD_WORDS] = row[Column.ELEMENTS]
        if row[Column.KIND] == Kind.DENSE:
            if row[Column.SAMPLED]:
                row[Column.PASSED] = count(header[EXPONENT_WORDS + blocks :], SAMPLE)
        else:
            passed = _candidates(row, header[EXPONENT_WORDS + blocks :], bitmaps)
            row[Column.PASSED] = row[Column.ADD_WORDS] = passed


@compiled
def largest_field(words: Words) -> int:
    """Return the number of the highest bit that is set in a header's exponent, or ZERO."""
    for word in range(EXPONENT_WORDS - 1, -1, -1):
        if words[word]:
            for bit in range(31, -1, -1):
                if (words[word] >> np.uint32(bit)) & np.uint32(1):
                    return 32 * word + bit
    return ZERO


@compiled
def _read_octaves(words: Words, field: int, octaves: _Integers) -> None:
    octaves[:] = 0
    if words.size:
        turn = np.uint32((LEVELS - 1 - (field >> LEVEL_BITS)) % LEVELS)
        decode_octaves(words, turn, 1 - (field & 1), octaves)


@compiled
def _write_factors(octaves: _Integers, scale: int, factors: _Factors, inverse: _Factors) -> None:
    """Write 2**(scale + octaves) and its inverse, by their bits."""
    bits, inverse_bits = factors.view(np.int64), inverse.view(np.int64)
    for b in range(octaves.size):
        power = scale + np.int64(octaves[b])
        bits[b] = (_BIAS_OF_FLOAT64 + power) << _MANTISSA_OF_FLOAT64
        inverse_bits[b] = (_BIAS_OF_FLOAT64 - power) << _MANTISSA_OF_FLOAT64


@compiled
def _candidates(row: Numbers, words: Words, bitmaps: Words) -> int:
    """Return the number of candidates; write their bitmap if `words` are a Bloom filter."""
    elements = row[Column.ELEMENTS]
    if row[Column.KIND] == Kind.BITMAP:
        row[Column.UNION] = row[Column.OR_PLACE] + EXPONENT_WORDS + row[Column.BLOCKS]
        return count(words, elements)
    size = (elements + 31) // 32
    row[Column.UNION] = row[Column.BITMAP] + size
    union = bitmaps[row[Column.UNION] : row[Column.UNION] + size]
    seed = np.uint64(row[Column.SEED])
    bloom_decode(row[Column.HASHES], row[Column.ROWS], seed, 0, words, elements, union)
    return count(union, elements)


@compiled
def _union(row: Numbers, ored: Words, bitmaps: Words) -> Words:
    """Return the bitmap of the candidates."""
    words = ored if row[Column.KIND] == Kind.BITMAP else bitmaps
    return words[row[Column.UNION] : row[Column.UNION] + (row[Column.ELEMENTS] + 31) // 32]


@compiled
def _gather_by_positions(
    values: NDArray[np.float32],
    index: Words,
    begin: int,
    factors: _Factors,
    bits: int,
    out: _Integers,
    first: int,
) -> None:
    """Do what `gather` does, for a whole tensor."""
    found = np.empty(out.size, np.int64)
    positions(index, values.size, 0, found)
    quantize_at(values, found, factors, bits, out, 0, found.size)


@compiled
def _scatter_by_positions(
    quantized: _Integers,
    index: Words,
    begin: int,
    factors: _Factors,
    bits: int,
    divisor: float,
    out: NDArray[np.float32],
    first: int,
    clear: bool,
) -> None:
    """Do what `scatter` does, for a whole tensor."""
    if clear:
        out[:] = 0.0
    found = np.empty(quantized.size, np.int64)
    positions(index, out.size, 0, found)
    dequantize_at(quantized, found, factors, bits, divisor, out, 0, found.size)


_gather_many = gather if PACKS_FLOATS else _gather_by_positions
_scatter_many = scatter if PACKS_FLOATS else _scatter_by_positions


@compiled
def write_values(table: _Table, ored: Words, bitmaps: Words, factors: _Factors, added: _Integers) -> None:
    """Write the integers of all tensors. `ored` and `bitmaps` are those that `read_headers` took."""
    for m in range(table.shape[0]):
        row = table[m]
        sent = row[Column.ADD_WORDS]
        if row[Column.KIND] == Kind.OTHER or not sent:
            continue
        elements, blocks, bits = row[Column.ELEMENTS], row[Column.BLOCKS], _block_bits(row)
        values = floats_at(row[Column.VALUES], elements)
        own = factors[row[Column.FACTORS] : row[Column.FACTORS] + max(blocks, 1)]
        numbers = added[row[Column.ADD_PLACE] : row[Column.ADD_PLACE] + sent]
        if row[Column.KIND] == Kind.DENSE:
            quantize(values, own, bits, numbers, 0, sent)
        elif 32 * sent < elements:
            _gather_by_positions(values, _union(row, ored, bitmaps), 0, own, bits, numbers, 0)
        else:
            _gather_many(values, _union(row, ored, bitmaps), 0, own, bits, numbers, 0)
        row[Column.OWN] = _non_zeros(numbers)


@compiled
def read_values(
    table: _Table,
    total: _Integers,
    ored: Words,
    bitmaps: Words,
    inverse: _Factors,
    divisor: float,
    blocks_used: Numbers,
) -> None:
    """Write the results of all tensors: 0 without a field, and NaN if some worker's values are not finite.

    blocks_used: int64[tensors, BLOCK_SIZES], receives `occupied` of compact tensors of which it is wanted.
    """
    for m in range(table.shape[0]):
        row = table[m]
        if row[Column.KIND] == Kind.OTHER:
            continue
        elements, sent, bits = row[Column.ELEMENTS], row[Column.ADD_WORDS], _block_bits(row)
        out = floats_at(row[Column.OUT], elements)
        if row[Column.FIELD] in (ZERO, NON_FINITE):
            out[:] = 0.0 if row[Column.FIELD] == ZERO else np.nan
            continue
        own = inverse[row[Column.FACTORS] : row[Column.FACTORS] + max(row[Column.BLOCKS], 1)]
        numbers = total[row[Column.ADD_PLACE] : row[Column.ADD_PLACE] + sent]
        if row[Column.KIND] == Kind.DENSE:
            dequantize(numbers, own, bits, divisor, out, 0, sent)
            row[Column.TOTAL] = _non_zeros(numbers)
            continue
        union, clear = _union(row, ored, bitmaps), row[Column.CLEAR] != 0
        if 32 * sent < elements and not clear:
            _scatter_by_positions(numbers, union, 0, own, bits, divisor, out, 0, clear)
        else:
            _scatter_many(numbers, union, 0, own, bits, divisor, out, 0, clear)
        if row[Column.WANTED]:
            _count_occupied(row[Column.KIND] == Kind.BITMAP, union, numbers, blocks_used[m])


@compiled
def _count_occupied(known: bool, union: Words, numbers: _Integers, out: Numbers) -> None:
    """Count the blocks with a candidate whose sum is not 0, unless these are few or the union is known."""
    if known:
        occupied_in(union, out)
        return
    summed, chosen = np.empty((numbers.size + 31) // 32, np.uint32), np.empty(union.size, np.uint32)
    used_words(numbers.view(np.uint32), summed)
    if 2 * count(summed, numbers.size) > numbers.size:
        scatter_bits(summed, union, chosen)
        occupied_in(chosen, out)
    else:
        occupied_in(union, out)


@compiled
def _block_bits(row: Numbers) -> int:
    """Return log2 of the elements in a block."""
    bits = 0
    while (1 << bits) < row[Column.BLOCK]:
        bits += 1
    return bits if row[Column.BLOCKS] else _WHOLE


@compiled
def _non_zeros(numbers: _Integers) -> int:
    found = 0
    for i in range(numbers.size):
        found += int(numbers[i] != 0)
    return found


@compiled
def read_dense_headers(words: Words, firsts: Numbers, fields: _Integers, octaves: _Integers) -> None:
    """Read the OR of the headers of dense tensors: each tensor's exponent field or ZERO, and its octaves.

    Tensor m has blocks firsts[m] to firsts[m + 1]; with one block, it has no words for blocks.
    """
    at = 0
    for m in range(firsts.size - 1):
        blocks = firsts[m + 1] - firsts[m]
        blocks = blocks if blocks > 1 else 0
        header, own = words[at : at + EXPONENT_WORDS + blocks], octaves[firsts[m] : firsts[m + 1]]
        fields[m] = largest_field(header)
        own[:] = 0
        if fields[m] not in (ZERO, NON_FINITE):
            _read_octaves(header[EXPONENT_WORDS:], int(fields[m]), own)
        at += EXPONENT_WORDS + blocks


def warm_up() -> None:
    """Run every loop once, as bundles do, so that a later timed step does not include its compilation."""
    table, values = np.zeros((1, len(Column)), np.int64), np.ones(1, np.float32)
    words, numbers, places = np.zeros(EXPONENT_WORDS, np.uint32), np.zeros(1, np.int32), np.zeros(2, np.int64)
    table[0, [Column.KIND, Column.ELEMENTS, Column.OR_WORDS]] = Kind.DENSE, 1, EXPONENT_WORDS
    for own in (values, frozen(values)):
        table[0, [Column.VALUES, Column.OUT]] = address(own)
    factors, inverse = np.zeros(1), np.zeros(1)
    lay_out(table, places)
    write_headers(table, words, words)
    read_headers(table, frozen(words), 0, words, numbers, factors, inverse)
    write_values(table, frozen(words), frozen(words), factors, numbers)
    blocks_used = np.zeros((1, BLOCK_SIZES), np.int64)
    read_values(table, frozen(numbers), frozen(words), frozen(words), inverse, 1.0, blocks_used)
    read_dense_headers(frozen(words), np.array([0, 1]), numbers, numbers)
