"""Loops over the segments of a step, one call a phase, compiled by Numba and cached on disk.

A table int64[pieces, len(Column)] tells where the numbers of each piece lie. A piece is a segment, or a part
of a large one, so that several cores share its elements: loops with `first` and `last` go through these
pieces. They release the GIL.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.block_scales import ZERO
from peelsum.codec.cpu_index_loops import (
    BLOCK,
    Numbers,
    Words,
    compiled,
    count,
    floats_at,
    magnitude,
    occupied_in,
    pack,
    pack_over,
    positions,
    scatter_bits,
    used_words,
)
from peelsum.codec.cpu_loops import dequantize, dequantize_at, quantize, quantize_at
from peelsum.codec.cpu_selection_loops import gather as gather_many
from peelsum.codec.cpu_selection_loops import scatter as scatter_many
from peelsum.codec.cpu_vectors import PACKS_FLOATS
from peelsum.codec.fixed_point import NON_FINITE

_Integers = NDArray[np.int32]
_Floats = NDArray[np.float32]
_Factors = NDArray[np.float64]
_Table = NDArray[np.int64]

#: Up to one candidate in so many elements, finding positions takes less time than reading all bitmaps' words.
_FEW = 32


class Column(IntEnum):
    """A piece's numbers in its row of a table. From FIRST on, the loops write them."""

    SEGMENT = 0
    """The number of its segment."""
    SPARSE = 1
    """Whether it lies in the sparse vector."""
    ELEMENTS = 2
    BITS = 3
    """log2 of the elements in a block of scales."""
    BLOCK = 4
    """Its first block, and the number of its blocks."""
    BLOCKS = 5
    WORD = 6
    """Of a sparse piece, its first word in the bitmap."""
    VALUES = 7
    """Address of the values, float32[ELEMENTS]."""
    OUT = 8
    """Address of the result, float32[ELEMENTS]."""
    OVER = 9
    """Whether the result is written over the values."""
    CLEAR = 10
    """Whether elements of the result that are not candidates must be set to 0."""
    FIRST = 11
    """Place of its first number among the dense or the sparse numbers that are sent."""
    COUNT = 12
    """How many numbers are sent."""
    OWN = 13
    """How many of this worker's numbers are not 0."""
    TOTAL = 14
    """How many of the dense sums are not 0."""


@compiled
def measure(table: _Table, first: int, last: int, bitmap: Words, magnitudes: Words) -> None:
    """Write the magnitude of each block, and the bitmap of sparse pieces; replace -0.0 by 0.0 if OVER."""
    for p in range(first, last):
        row = table[p]
        elements, size = row[Column.ELEMENTS], 1 << row[Column.BITS]
        bits = floats_at(row[Column.VALUES], elements).view(np.uint32)
        own = bitmap[row[Column.WORD] : row[Column.WORD] + (elements + 31) // 32]
        step, sparse, over = min(size, BLOCK), row[Column.SPARSE], row[Column.OVER]
        for start in range(0, elements, step):
            end, at = min(start + step, elements), row[Column.BLOCK] + start // size
            if not sparse:
                largest = magnitude(bits[start:end])
            elif over:
                largest = pack_over(bits, start, end, own)
            else:
                largest = pack(bits, start, end, own)
            magnitudes[at] = largest if start % size == 0 else max(magnitudes[at], largest)


@compiled
def place(table: _Table, fields: _Integers, union: Words, ends: Numbers) -> None:
    """Count the numbers of each piece and lay them end to end; write how many are dense, and sparse."""
    ends[:] = 0
    for p in range(table.shape[0]):
        row = table[p]
        kind, elements = row[Column.SPARSE], row[Column.ELEMENTS]
        row[Column.FIRST], row[Column.COUNT], row[Column.TOTAL] = ends[kind], 0, 0
        if kind:
            row[Column.COUNT] = count(_words(row, union), elements)
        elif fields[row[Column.SEGMENT]] not in (ZERO, NON_FINITE):
            row[Column.COUNT] = elements
        ends[kind] += row[Column.COUNT]


@compiled
def values_at(table: _Table, elements: Numbers, out: _Floats) -> None:
    """Write the values of ascending elements, counted from the first piece on."""
    begin = i = 0
    for p in range(table.shape[0]):
        end = begin + table[p, Column.ELEMENTS]
        values = floats_at(table[p, Column.VALUES], table[p, Column.ELEMENTS])
        while i < elements.size and elements[i] < end:
            out[i] = values[elements[i] - begin]
            i += 1
        begin = end


@compiled
def put(table: _Table, elements: Numbers, results: _Floats) -> None:
    """Write other results of ascending elements, counted from the first piece on."""
    begin = i = 0
    for p in range(table.shape[0]):
        end = begin + table[p, Column.ELEMENTS]
        out = floats_at(table[p, Column.OUT], table[p, Column.ELEMENTS])
        while i < elements.size and elements[i] < end:
            out[elements[i] - begin] = results[i]
            i += 1
        begin = end


@compiled
def _words(row: Numbers, bitmap: Words) -> Words:
    """Return the words of a sparse piece."""
    return bitmap[row[Column.WORD] : row[Column.WORD] + (row[Column.ELEMENTS] + 31) // 32]


@compiled
def _factors_of(row: Numbers, factors: _Factors) -> _Factors:
    return factors[row[Column.BLOCK] : row[Column.BLOCK] + row[Column.BLOCKS]]


@compiled
def _numbers_of(row: Numbers, numbers: _Integers) -> _Integers:
    return numbers[row[Column.FIRST] : row[Column.FIRST] + row[Column.COUNT]]


@compiled
def write_dense(table: _Table, first: int, last: int, factors: _Factors, out: _Integers) -> None:
    """Write the numbers of dense pieces."""
    for p in range(first, last):
        row = table[p]
        if row[Column.SPARSE] or not row[Column.COUNT]:
            continue
        numbers, values = _numbers_of(row, out), floats_at(row[Column.VALUES], row[Column.ELEMENTS])
        quantize(values, _factors_of(row, factors), row[Column.BITS], numbers, 0, numbers.size)
        row[Column.OWN] = _non_zeros(numbers)


@compiled
def gather(table: _Table, first: int, last: int, union: Words, factors: _Factors, out: _Integers) -> None:
    """Write the numbers of the candidates of sparse pieces."""
    for p in range(first, last):
        row = table[p]
        if not row[Column.SPARSE] or not row[Column.COUNT]:
            continue
        numbers, own, bits = _numbers_of(row, out), _factors_of(row, factors), row[Column.BITS]
        values, words = floats_at(row[Column.VALUES], row[Column.ELEMENTS]), _words(row, union)
        if PACKS_FLOATS and _FEW * numbers.size >= values.size:
            gather_many(values, words, 0, own, bits, numbers, 0)
        else:
            found = np.empty(numbers.size, np.int64)
            positions(words, values.size, 0, found)
            quantize_at(values, found, own, bits, numbers, 0, found.size)
        row[Column.OWN] = _non_zeros(numbers)


@compiled
def read(
    table: _Table,
    first: int,
    last: int,
    fields: _Integers,
    union: Words,
    inverse: _Factors,
    dense: _Integers,
    sparse: _Integers,
    divisor: float,
) -> None:
    """Write the results of pieces: 0 if a segment is zero, and NaN if it is not finite."""
    for p in range(first, last):
        row = table[p]
        out, field = floats_at(row[Column.OUT], row[Column.ELEMENTS]), fields[row[Column.SEGMENT]]
        if field in (ZERO, NON_FINITE):
            out[:] = 0.0 if field == ZERO else np.nan
            continue
        own, bits = _factors_of(row, inverse), row[Column.BITS]
        if not row[Column.SPARSE]:
            numbers = _numbers_of(row, dense)
            dequantize(numbers, own, bits, divisor, out, 0, numbers.size)
            row[Column.TOTAL] = _non_zeros(numbers)
            continue
        numbers, words, clear = _numbers_of(row, sparse), _words(row, union), row[Column.CLEAR] != 0
        if PACKS_FLOATS and (clear or _FEW * numbers.size >= out.size):
            scatter_many(numbers, words, 0, own, bits, divisor, out, 0, clear)
        else:
            if clear:
                out[:] = 0.0
            found = np.empty(numbers.size, np.int64)
            positions(words, out.size, 0, found)
            dequantize_at(numbers, found, own, bits, divisor, out, 0, found.size)


@compiled
def add_up(table: _Table, counts: NDArray[np.int64]) -> None:
    """Add the counts of pieces up to those of segments, as `Counts`: int64[3, segments], zero on entry."""
    for p in range(table.shape[0]):
        row = table[p]
        counts[0, row[Column.SEGMENT]] += row[Column.OWN]
        counts[1, row[Column.SEGMENT]] += row[Column.TOTAL]
        counts[2, row[Column.SEGMENT]] += row[Column.COUNT]


@compiled
def occupied(table: _Table, union: Words, sparse: _Integers, wanted: Numbers, out: _Table) -> None:
    """Add the blocks of 2**b elements whose sum is not all 0 to out[segment, b], for `wanted` segments.

    `out` is zero on entry.
    """
    counts = np.empty(out.shape[1], np.int64)
    for p in range(table.shape[0]):
        row = table[p]
        if not row[Column.SPARSE] or not row[Column.COUNT] or not wanted[row[Column.SEGMENT]]:
            continue
        occupied_in(_summed(_words(row, union), _numbers_of(row, sparse)), counts)
        own = out[row[Column.SEGMENT]]
        for b in range(counts.size):
            own[b] += counts[b]


@compiled
def _summed(union: Words, numbers: _Integers) -> Words:
    """Return the bitmap of the candidates whose sum is not 0."""
    summed, chosen = np.empty((numbers.size + 31) // 32, np.uint32), np.empty(union.size, np.uint32)
    used_words(numbers.view(np.uint32), summed)
    scatter_bits(summed, union, chosen)
    return chosen


@compiled
def _non_zeros(numbers: _Integers) -> int:
    found = 0
    for i in range(numbers.size):
        found += int(numbers[i] != 0)
    return found
