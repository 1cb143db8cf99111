"""Encode and decode the segments of a step on the host: by compiled loops, one call a phase, on all cores.

A piece is a segment, or a part of a large one, so that several cores share its elements. The compiled loops
take a table int64[pieces, len(Piece)], which says where the values, the results and the integers of
each piece lie. Loops with `first` and `last` handle these pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numba import carray  # type: ignore[attr-defined]  # documented, but not exported
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.codec.arrays import Cells, Floats, Integers, Numbers, Words
from peelsum.codec.cpu.index import (
    count_bits,
    count_blocks,
    masked_word,
    non_zero_words,
    positions,
    scatter_bits,
    write_bitmap,
)
from peelsum.codec.cpu.scales import (
    dequantize_at,
    dequantize_values,
    encode_scales,
    quantize_ahead,
    quantize_at,
    quantize_values,
    read_scales,
)
from peelsum.codec.cpu.sketch import encode_sketch
from peelsum.codec.cpu.vectors import pointer
from peelsum.codec.cpu.words import BLOCK, compiled, largest_magnitude
from peelsum.codec.fixed_point import NON_FINITE, ZERO, fixed_point
from peelsum.codec.layout import BLOCK_SIZES, SketchLayout
from peelsum.codec.segments import ROW, Counts, SegmentTable
from peelsum.codec.threads import PER_CORE, run_slices, slices

#: Elements of the largest piece: a multiple of the largest block of scales.
_PIECE = 2**21


class Piece(IntEnum):
    """The columns of the table of pieces. From FIRST_NUMBER on, the loops write them."""

    SEGMENT = 0
    """The number of its segment."""
    SPARSE = 1
    """Whether it lies in the sparse vector."""
    ELEMENTS = 2
    BLOCK_BITS = 3
    """log2 of the elements in a block of scales."""
    FIRST_BLOCK = 4
    """Its first block, and the number of its blocks."""
    BLOCKS = 5
    FIRST_ELEMENT = 6
    """Its first element, numbered over all pieces."""
    FIRST_WORD = 7
    """Of a sparse piece, its first word in the bitmap."""
    VALUES = 8
    """Address of the values, float32[ELEMENTS]."""
    OUT = 9
    """Address of the result, float32[ELEMENTS]."""
    IN_PLACE = 10
    """Whether the result is written over the values."""
    CLEAR = 11
    """Whether elements of the result that are not candidates must be set to 0."""
    FIRST_NUMBER = 12
    """Index of its first number among the dense or the sparse numbers that are sent."""
    COUNT = 13
    """How many numbers are sent."""
    LOCAL_NON_ZEROS = 14
    """How many of this worker's numbers are not 0."""
    SUM_NON_ZEROS = 15
    """How many of the dense sums are not 0."""


# Reading a member of an enum takes 0.2 us in Python 3.11: a quarter of the time of a step of small tensors.
_COLUMN = cast("type[Piece]", SimpleNamespace(**{column.name: int(column) for column in Piece}))
_NO_NUMBERS = np.empty(0, np.int32)


class SegmentCodec:
    """Encodes the tensors of one step, and decodes their sums. Its methods are called in this order.

    Arrays lie in the device's memory, unless stated otherwise. Bitmaps, sums and results are those of the
    whole step. `numbers` are values in fixed point: integers. None are sent of a dense segment that is zero
    on all workers or not finite. `ReferenceSegments` and `GpuSegments` have the same methods.
    """

    fields: Integers
    """After `read_scales`, int32[segments]: an exponent field that no value of the segment exceeds on any
    worker, or `ZERO`, or `NON_FINITE`. On the host."""
    scales: Integers
    """After `read_scales`, int32[blocks]: a block's values are multiplied by 2**scale. On the host."""

    def __init__(
        self, table: SegmentTable, values: Sequence[Floats], out: Sequence[Floats | None], workers: int
    ) -> None:
        self._table, self._values, self._out = table, values, list(out)
        pieces, self._segment_of, self._offsets, self._ranges = _pieces(table)
        self._pieces = pieces = pieces.copy()
        pieces[:, _COLUMN.VALUES] = pieces[:, _COLUMN.OUT] = self._addresses(values)
        in_place = np.array([result is tensor for result, tensor in zip(out, values, strict=True)], np.int64)
        pieces[:, _COLUMN.IN_PLACE] = in_place[self._segment_of]
        self._all_in_place = bool(in_place.all())
        # A scale is this number less the exponent field.
        self._highest = fixed_point(0, workers).scale
        self.fields = self.scales = _NO_NUMBERS
        #: The candidates: their bitmap, and, after `gather`, their positions in the sparse vector.
        self._union: Words = np.empty(0, np.uint32)
        self._positions: Numbers = np.empty(0, np.int64)

    def write_scales(self, out: Words, bitmap: Words | None = None) -> Words:
        """Write the words by which workers agree on scales, uint32[table.scale_words]; return the non-zeros.

        These are a bitmap of this worker's sparse vector, uint32[table.words]. -0.0 is zero, NaN is not.
        bitmap: to which that is written, or None.
        """
        if bitmap is None:
            bitmap = buffers.empty(self._table.words, np.uint32)
        self._measure(out, bitmap, _NO_NUMBERS, _NO_NUMBERS)
        return bitmap

    def write_ahead(
        self, out: Words, bitmap: Words, scales: Integers, layout: SketchLayout, dense: Integers,
        sketch: Cells,
    ) -> None:  # fmt: skip
        """Do what `write_scales` does, and write all numbers by other scales, on the host; modulo 2**32.

        dense: for those of all dense segments, int32[elements]. sketch: for the sketch of the sparse ones,
        zero before; empty without any.
        """
        self.set_scales(np.zeros(len(self._out), np.int32), scales)
        self._measure(out, bitmap, scales, dense)
        if len(sketch):
            numbers = np.empty(self.set_candidates(bitmap)[1], np.int32)
            self.gather(numbers)
            encode_sketch(layout, self._positions, numbers, sketch)

    def _measure(self, out: Words, bitmap: Words, scales: Integers, dense: Integers) -> None:
        """Write words of scales and the bitmap; and dense numbers, if there are `scales`."""
        count = len(self._out)
        segments, blocks = out[:count], out[count:]
        # The blocks' largest magnitudes, which `encode_scales` replaces by words.
        self._each(write_magnitudes, bitmap, blocks, scales, self._highest, dense)
        encode_scales(self._table.blocks, blocks, segments, blocks)

    def _each(self, loop: Callable[..., None], *rest: Any) -> None:
        """Call loop(pieces, first, last, *rest) for all pieces; on several cores if they are large."""
        if len(self._ranges) == 1:
            loop(self._pieces, *self._ranges[0], *rest)
        else:
            run_slices(self._ranges, lambda first, last: loop(self._pieces, first, last, *rest))

    def read_scales(self, words: Words) -> None:
        """Set `fields` and `scales` from the OR of all workers' words, which is on the host."""
        self.fields, self.scales = read_scales(words, self._table.blocks, self._highest)

    def set_scales(self, fields: Integers, scales: Integers) -> None:
        """Set `fields` and `scales` to others than `read_scales` computes, on the host, without a copy."""
        self.fields, self.scales = fields, scales

    def values_at(self, elements: Numbers) -> Floats:
        """Return this worker's values of elements, numbered over all segments. All on the host."""
        values = buffers.empty(len(elements), np.float32)
        copy_at(self._pieces, _COLUMN.VALUES, elements, values, False)
        return values

    def set_candidates(self, union: Words) -> tuple[int, int]:
        """Set the candidates to those of a bitmap; return how many dense and sparse integers are sent.

        `write_dense` and `gather` write that many. It can be called again, with other candidates. Bits where
        there is no element are cleared in the bitmap: another worker's wrong words may have some.
        """
        self._union = union
        return lay_out(self._pieces, self.fields, union)

    def write_dense(self, out: Integers) -> None:
        """Write the numbers of the dense segments, end to end: rint(value * 2**scale).

        The product is computed in float64 and rounded half to even.
        """
        self._each(write_dense, self.scales, out)

    def gather(self, out: Integers) -> None:
        """Write the numbers of the candidates, in order, computed as by `write_dense`; modulo 2**32."""
        self._positions = np.empty(len(out), np.int64)
        self._each(write_sparse, self._union, self.scales, self._positions, out)

    def positions(self) -> Numbers:
        """After `gather`, return the candidates' positions in the sparse vector: int64[k]."""
        return self._positions

    def decode(
        self, dense: Integers, sparse: Integers, divisor: int, overflow: tuple[Numbers, Floats] | None = None
    ) -> Sequence[Floats]:
        """Return each segment's result, sum * 2**-scale / divisor, computed in float64.

        Elements that are not candidates are 0. A segment that is not finite on some worker is NaN.
        dense, sparse: the sums of all workers' numbers. overflow: elements, numbered over all segments, whose
        results differ from these sums, and their results; on the host.
        """
        if not self._all_in_place:
            clear = np.ones(len(self._out), np.int64)
            for s, (result, tensor) in enumerate(zip(self._out, self._values, strict=True)):
                if result is tensor:
                    clear[s] = 0
                elif result is None:
                    size = len(tensor)
                    reused = buffers.keeps(size, np.float32)
                    self._out[s] = buffers.empty(size, np.float32) if reused else np.zeros(size, np.float32)
                    clear[s] = reused
            self._pieces[:, _COLUMN.CLEAR] = clear[self._segment_of]
            self._pieces[:, _COLUMN.OUT] = self._addresses(cast("Sequence[Floats]", self._out))
        sums = dense, sparse, self._positions, float(divisor)
        self._each(write_results, self.fields, self.scales, *sums)
        if overflow is not None:
            copy_at(self._pieces, _COLUMN.OUT, *overflow, True)
        self._values = ()  # a caller may keep results for long, and them alone
        return cast("Sequence[Floats]", self._out)

    def counts(self) -> Counts:
        """Return the counts of the step's numbers, after `decode`."""
        counts = np.zeros((3, len(self._out)), np.int64)
        sum_counts(self._pieces, counts)
        return Counts(*counts)

    @property
    def sent(self) -> Numbers:
        """After `set_candidates`, int64[segments]: how many numbers of each segment are sent. On the host."""
        return self.counts().sent

    def occupied(self, sparse: Integers, selected: Numbers) -> Numbers:
        """Count the blocks of 2**b elements with a sum that is not 0: int64[segments, BLOCK_SIZES].

        The counts of dense segments are 0. selected: int64[segments], not 0 for those to be counted.
        """
        out = np.zeros((len(self._out), BLOCK_SIZES), np.int64)
        _count_blocks(self._pieces, self._union, sparse, selected, out)
        return out

    def _addresses(self, tensors: Sequence[Floats]) -> Numbers:
        """Return the address of each piece's first element in its segment's tensor."""
        addresses = np.array([address(tensor) for tensor in tensors], np.int64)
        return addresses[self._segment_of] + self._offsets


@lru_cache(64)  # a plan's table is the same object in every step
def _pieces(table: SegmentTable) -> tuple[Numbers, Numbers, Numbers, list[tuple[int, int]]]:
    """Return the rows of all pieces, without addresses; each piece's segment, and its first byte there.

    Return also the ranges of pieces that different cores handle.
    """
    large = int(table.begins[-1]) >= 2 * PER_CORE
    pieces = -(-table.elements // _PIECE) if large else np.ones(len(table), np.int64)
    segment_of = np.repeat(np.arange(len(table)), pieces)
    ranks = np.arange(len(segment_of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin, block, elements = ranks * _PIECE, table.block[segment_of], table.elements[segment_of]
    rows = np.zeros((len(segment_of), len(Piece)), np.int64)
    rows[:, _COLUMN.SEGMENT], rows[:, _COLUMN.SPARSE] = segment_of, segment_of >= table.dense
    rows[:, _COLUMN.ELEMENTS] = np.minimum(elements - begin, _PIECE) if large else elements
    rows[:, _COLUMN.BLOCK_BITS] = np.log2(block).astype(np.int64)
    rows[:, _COLUMN.FIRST_BLOCK] = table.blocks[segment_of] + begin // block
    rows[:, _COLUMN.BLOCKS] = -(-rows[:, _COLUMN.ELEMENTS] // block)
    rows[:, _COLUMN.FIRST_ELEMENT] = table.begins[segment_of] + begin
    words = np.maximum(table.rows[segment_of] - table.rows[table.dense], 0) + begin // ROW
    rows[:, _COLUMN.FIRST_WORD] = np.where(segment_of >= table.dense, words, 0)
    return rows, segment_of, 4 * begin, slices(len(rows), int(table.begins[-1]))


@compiled
def array_at(address: int, count: int) -> Floats:
    """Return float32[count] over the memory at an address, which the caller keeps alive."""
    array: Floats = carray(pointer(address), (count,), np.float32)
    return array


@compiled
def address(array: NDArray[Any]) -> int:
    """Return the address of an array's first element."""
    return array.ctypes.data


@compiled
def write_magnitudes(
    table: Numbers, first: int, last: int, bitmap: Words, magnitudes: Words, scales: Integers, highest: int,
    dense: Integers,
) -> None:  # fmt: skip
    """Write each block's largest magnitude, and the bitmap of the non-zeros of sparse pieces.

    Where the result is written over the values, replace -0.0 by 0.0. If there are `scales`, write also the
    numbers of all elements of dense pieces, by these.
    """
    for p in range(first, last):
        row = table[p]
        elements, size = row[Piece.ELEMENTS], 1 << row[Piece.BLOCK_BITS]
        values = array_at(row[Piece.VALUES], elements)
        bits, words = values.view(np.uint32), _piece_words(row, bitmap)
        step, sparse, in_place, count = min(size, BLOCK), row[Piece.SPARSE], row[Piece.IN_PLACE], 0
        for batch in range(0, elements, BLOCK):
            batch_end, first_block = min(batch + BLOCK, elements), row[Piece.FIRST_BLOCK] + batch // size
            for start in range(batch, batch_end, step):
                end, at = min(start + step, elements), row[Piece.FIRST_BLOCK] + start // size
                if sparse:
                    largest = write_bitmap(bits, start, end, in_place != 0, words)
                else:
                    largest = largest_magnitude(bits[start:end])
                magnitudes[at] = largest if start % size == 0 else max(magnitudes[at], largest)
            if scales.size and not sparse:
                numbers = dense[row[Piece.FIRST_ELEMENT] + batch : row[Piece.FIRST_ELEMENT] + batch_end]
                quantize_ahead(
                    values[batch:batch_end], magnitudes[first_block:], scales[first_block:], highest,
                    row[Piece.BLOCK_BITS], numbers,
                )  # fmt: skip
                count += _count_non_zeros(numbers)
        if not sparse:
            row[Piece.LOCAL_NON_ZEROS] = count


@compiled
def lay_out(table: Numbers, fields: Integers, union: Words) -> tuple[int, int]:
    """Set where each piece's numbers lie among those that are sent; return the dense and the sparse total.

    Clear bits of the union where there is no element.
    """
    dense_end = sparse_end = 0
    for p in range(table.shape[0]):
        row = table[p]
        elements, count = row[Piece.ELEMENTS], 0
        if row[Piece.SPARSE]:
            words = _piece_words(row, union)
            words[-1] = masked_word(words, words.size - 1, elements)
            count = count_bits(words, elements)
            row[Piece.FIRST_NUMBER] = sparse_end
            sparse_end += count
        else:
            if fields[row[Piece.SEGMENT]] not in (ZERO, NON_FINITE):
                count = elements
            row[Piece.FIRST_NUMBER] = dense_end
            dense_end += count
        row[Piece.COUNT] = count
        row[Piece.SUM_NON_ZEROS] = 0
    return dense_end, sparse_end


@compiled
def copy_at(table: Numbers, column: int, elements: Numbers, floats: Floats, written: bool) -> None:
    """Copy the floats of some elements between the pieces' arrays and `floats`.

    column: VALUES or OUT, which has the arrays' addresses. elements: ascending, numbered over all pieces.
    written: whether `floats` is copied to the arrays, else from them.
    """
    begin = i = 0
    for p in range(table.shape[0]):
        end = begin + table[p, Piece.ELEMENTS]
        array = array_at(table[p, column], table[p, Piece.ELEMENTS])
        while i < elements.size and elements[i] < end:
            if written:
                array[elements[i] - begin] = floats[i]
            else:
                floats[i] = array[elements[i] - begin]
            i += 1
        begin = end


@compiled
def _piece_words(row: Numbers, bitmap: Words) -> Words:
    """Return the words of a sparse piece."""
    return bitmap[row[Piece.FIRST_WORD] : row[Piece.FIRST_WORD] + (row[Piece.ELEMENTS] + 31) // 32]


@compiled
def _piece_scales(row: Numbers, scales: Integers) -> Integers:
    """Return the scales of a piece's blocks."""
    return scales[row[Piece.FIRST_BLOCK] : row[Piece.FIRST_BLOCK] + row[Piece.BLOCKS]]


@compiled
def _piece_numbers(row: Numbers, numbers: Integers) -> Integers:
    """Return a piece's integers, of all dense or all sparse ones."""
    return numbers[row[Piece.FIRST_NUMBER] : row[Piece.FIRST_NUMBER] + row[Piece.COUNT]]


@compiled
def write_dense(table: Numbers, first: int, last: int, scales: Integers, out: Integers) -> None:
    """Quantize the values of dense pieces."""
    for p in range(first, last):
        row = table[p]
        if row[Piece.SPARSE] or not row[Piece.COUNT]:
            continue
        numbers = _piece_numbers(row, out)
        values = array_at(row[Piece.VALUES], row[Piece.ELEMENTS])
        quantize_values(values, _piece_scales(row, scales), row[Piece.BLOCK_BITS], numbers)
        row[Piece.LOCAL_NON_ZEROS] = _count_non_zeros(numbers)


@compiled
def write_sparse(
    table: Numbers, first: int, last: int, union: Words, scales: Integers, places: Numbers, out: Integers
) -> None:
    """Write the positions of the candidates of sparse pieces, and quantize their values."""
    for p in range(first, last):
        row = table[p]
        if not row[Piece.SPARSE] or not row[Piece.COUNT]:
            continue
        numbers, begin = _piece_numbers(row, out), ROW * row[Piece.FIRST_WORD]
        values, words = array_at(row[Piece.VALUES], row[Piece.ELEMENTS]), _piece_words(row, union)
        candidates = places[row[Piece.FIRST_NUMBER] : row[Piece.FIRST_NUMBER] + row[Piece.COUNT]]
        positions(words, values.size, begin, candidates)
        quantize_at(values, candidates, begin, _piece_scales(row, scales), row[Piece.BLOCK_BITS], numbers)
        row[Piece.LOCAL_NON_ZEROS] = _count_non_zeros(numbers)


@compiled
def write_results(
    table: Numbers, first: int, last: int, fields: Integers, scales: Integers, dense: Integers,
    sparse: Integers, places: Numbers, divisor: float,
) -> None:  # fmt: skip
    """Write the results of pieces from their sums: 0 if a segment is zero, and NaN if it is not finite."""
    for p in range(first, last):
        row = table[p]
        out = array_at(row[Piece.OUT], row[Piece.ELEMENTS])
        field = fields[row[Piece.SEGMENT]]
        if field in (ZERO, NON_FINITE):
            out[:] = 0.0 if field == ZERO else np.nan
            continue
        of_blocks, bits = _piece_scales(row, scales), row[Piece.BLOCK_BITS]
        if not row[Piece.SPARSE]:
            numbers = _piece_numbers(row, dense)
            dequantize_values(numbers, of_blocks, bits, divisor, out)
            row[Piece.SUM_NON_ZEROS] = _count_non_zeros(numbers)
            continue
        if row[Piece.CLEAR] != 0:
            out[:] = 0.0
        candidates = places[row[Piece.FIRST_NUMBER] : row[Piece.FIRST_NUMBER] + row[Piece.COUNT]]
        begin = ROW * row[Piece.FIRST_WORD]
        dequantize_at(_piece_numbers(row, sparse), candidates, begin, of_blocks, bits, divisor, out)


@compiled
def sum_counts(table: Numbers, counts: Numbers) -> None:
    """Add the counts of pieces to those of their segments, int64[len(Counts), segments], zero on entry."""
    for p in range(table.shape[0]):
        row = table[p]
        counts[0, row[Piece.SEGMENT]] += row[Piece.LOCAL_NON_ZEROS]
        counts[1, row[Piece.SEGMENT]] += row[Piece.SUM_NON_ZEROS]
        counts[2, row[Piece.SEGMENT]] += row[Piece.COUNT]


@compiled
def _count_blocks(table: Numbers, union: Words, sparse: Integers, selected: Numbers, out: Numbers) -> None:
    """Count the blocks of 2**b elements with a sum that is not 0 into out[segment, b], zero on entry.

    selected: int64[segments], not 0 for the segments that are counted.
    """
    counts = np.empty(out.shape[1], np.int64)
    for p in range(table.shape[0]):
        row = table[p]
        segment = row[Piece.SEGMENT]
        if not row[Piece.SPARSE] or not row[Piece.COUNT] or not selected[segment]:
            continue
        words, numbers = _piece_words(row, union), _piece_numbers(row, sparse)
        flags, bitmap = np.empty((numbers.size + 31) // 32, np.uint32), np.empty(words.size, np.uint32)
        non_zero_words(numbers.view(np.uint32), flags)
        scatter_bits(flags, words, bitmap)  # of the candidates whose sum is not 0
        count_blocks(bitmap, counts)
        for b in range(counts.size):
            out[segment, b] += counts[b]


@compiled
def _count_non_zeros(numbers: Integers) -> int:
    """Count the integers that are not 0."""
    count = 0
    for i in range(numbers.size):
        count += int(numbers[i] != 0)
    return count
