"""The segments of a step on the host: `SegmentCodec` by compiled loops, one call a phase, on all cores.

A table int64[pieces, len(Column)] tells where the numbers of each piece lie. A piece is a segment, or a part
of a large one, so that several cores share its elements: loops with `first` and `last` go through these
pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from types import SimpleNamespace
from typing import cast

import numpy as np

from peelsum import buffers
from peelsum.buffers import frozen
from peelsum.codec.arrays import Factors, Floats, Integers, Numbers, Words
from peelsum.codec.cpu.index import (
    occupied_in,
    pack,
    pack_over,
    positions,
    scatter_bits,
    set_bits,
    used_words,
)
from peelsum.codec.cpu.scales import (
    dequantize,
    dequantize_at,
    encode_scales,
    gather_many,
    powers,
    quantize_at,
    quantize_slice,
    read_scales,
    scatter_many,
)
from peelsum.codec.cpu.vectors import PACKS_FLOATS
from peelsum.codec.cpu.words import BLOCK, address, compiled, floats_at, magnitude
from peelsum.codec.fixed_point import NON_FINITE, fixed_point
from peelsum.codec.index import BLOCK_SIZES
from peelsum.codec.scales import ZERO
from peelsum.codec.segments import ROW, Counts, Table
from peelsum.codec.threads import PER_CORE, each_of

#: Elements of the largest piece: a multiple of the largest block of scales.
_PIECE = 2**21
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


# Reading a member of an enum takes 0.2 us in Python 3.11: a quarter of the time of a step of small tensors.
_C = cast("type[Column]", SimpleNamespace(**{one.name: int(one) for one in Column}))


class CpuSegments:
    """See `SegmentCodec`."""

    def __init__(
        self, table: Table, values: Sequence[Floats], out: Sequence[Floats | None], workers: int
    ) -> None:
        self._table, self._values, self._out = table, values, list(out)
        pieces, of, offsets = _pieces(table)
        self._pieces = pieces = pieces.copy()
        begins = np.array([address(own) for own in values], np.int64)
        pieces[:, _C.VALUES] = pieces[:, _C.OUT] = begins[of] + offsets
        self._of, self._offsets = of, offsets
        over = np.array([result is own for result, own in zip(out, values, strict=True)], np.int64)
        pieces[:, _C.OVER] = over[of]
        self._over = bool(over.all())
        # A scale is this number less the exponent field.
        self._highest = fixed_point(0, workers).scale
        self.fields = self.scales = np.empty(0, np.int32)
        #: 2**scale and 2**-scale of the blocks, while these are known.
        self._powers: tuple[Factors, Factors] | None = None
        self._union: Words = np.empty(0, np.uint32)

    def write_scales(self, out: Words) -> Words:
        """See `SegmentCodec.write_scales`."""
        bitmap = buffers.empty(self._table.words, np.uint32)
        count = len(self._table)
        segments, blocks = out[:count], out[count:]
        self._each(lambda a, b: measure(self._pieces, a, b, bitmap, blocks))
        encode_scales(self._table.blocks, blocks, segments, blocks)
        return bitmap

    def read_scales(self, words: Words) -> None:
        """See `SegmentCodec.read_scales`."""
        self.use(*read_scales(words, self._table.blocks, self._highest))

    def use(self, fields: Integers, scales: Integers) -> None:
        """See `SegmentCodec.use`."""
        self.fields, self.scales, self._powers = fields, scales, None

    def values_at(self, elements: Numbers) -> Floats:
        """See `SegmentCodec.values_at`."""
        found = buffers.empty(len(elements), np.float32)
        values_at(self._pieces, elements, found)
        return found

    def place(self, union: Words) -> tuple[int, int]:
        """See `SegmentCodec.place`."""
        ends, self._union = np.zeros(2, np.int64), frozen(union)
        place(self._pieces, self.fields, self._union, ends)
        return int(ends[0]), int(ends[1])

    def write_dense(self, out: Integers) -> None:
        """See `SegmentCodec.write_dense`."""
        factors = self._factors()[0]
        self._each(lambda a, b: write_dense(self._pieces, a, b, factors, out))

    def gather(self, out: Integers) -> None:
        """See `SegmentCodec.gather`."""
        factors = self._factors()[0]
        self._each(lambda a, b: gather(self._pieces, a, b, self._union, factors, out))

    def read(
        self, dense: Integers, sparse: Integers, divisor: int, wide: tuple[Numbers, Floats] | None = None
    ) -> Sequence[Floats]:
        """See `SegmentCodec.read`."""
        if not self._over:
            self._allocate()
        rest = self.fields, self._union, self._factors()[1], frozen(dense), frozen(sparse), float(divisor)
        self._each(lambda a, b: read(self._pieces, a, b, *rest))
        if wide is not None:
            put(self._pieces, *wide)
        self._values = ()  # a caller may keep results for long, and them alone
        return cast("Sequence[Floats]", self._out)

    def _allocate(self) -> None:
        """Place the results, new arrays if need be."""
        clear = np.ones(len(self._table), np.int64)
        for s, (result, own) in enumerate(zip(self._out, self._values, strict=True)):
            if result is own:
                clear[s] = 0
            elif result is None:
                size = len(own)
                kept = buffers.keeps(size, np.float32)
                self._out[s] = buffers.empty(size, np.float32) if kept else np.zeros(size, np.float32)
                clear[s] = kept
        self._pieces[:, _C.CLEAR] = clear[self._of]
        addresses = np.array([address(cast(Floats, own)) for own in self._out], np.int64)
        self._pieces[:, _C.OUT] = addresses[self._of] + self._offsets

    def counts(self, dense: Integers, sparse: Integers, own: tuple[Integers, Integers]) -> Counts:
        """See `SegmentCodec.counts`."""
        return Counts(*self._counted())

    @property
    def sent(self) -> Numbers:
        """See `SegmentCodec.sent`."""
        sent: Numbers = self._counted()[2]
        return sent

    def _counted(self) -> Numbers:
        """Return the counts of the pieces, added up for each segment: int64[len(Counts), segments]."""
        counts = np.zeros((3, len(self._table)), np.int64)
        add_up(self._pieces, counts)
        return counts

    def occupied(self, sparse: Integers, wanted: Numbers) -> Numbers:
        """See `SegmentCodec.occupied`."""
        out = np.zeros((len(self._table), BLOCK_SIZES), np.int64)
        _occupied(self._pieces, self._union, frozen(sparse), wanted, out)
        return out

    def _factors(self) -> tuple[Factors, Factors]:
        """Return 2**scale and 2**-scale of the blocks."""
        if self._powers is None:
            blocks = len(self.scales)
            self._powers = buffers.empty(blocks, np.float64), buffers.empty(blocks, np.float64)
            powers(self.scales, *self._powers)
        return self._powers

    def _each(self, work: Callable[[int, int], None]) -> None:
        each_of(len(self._pieces), int(self._table.begins[-1]), work)


@lru_cache(64)  # a plan's table is the same object in every step
def _pieces(table: Table) -> tuple[Numbers, Numbers, Numbers]:
    """Return the pieces of a table's segments, without addresses, the segment of each, and its first byte."""
    large = int(table.begins[-1]) >= 2 * PER_CORE
    per = -(-table.elements // _PIECE) if large else np.ones(len(table), np.int64)
    of = np.repeat(np.arange(len(table)), per)
    ranks = np.arange(len(of)) - np.repeat(np.cumsum(per) - per, per)
    begin = ranks * _PIECE
    rows = np.zeros((len(of), len(Column)), np.int64)
    rows[:, _C.SEGMENT], rows[:, _C.SPARSE] = of, of >= table.dense
    rows[:, _C.ELEMENTS] = np.minimum(table.elements[of] - begin, _PIECE) if large else table.elements[of]
    rows[:, _C.BITS] = np.log2(table.block[of]).astype(np.int64)
    rows[:, _C.BLOCK] = table.blocks[of] + begin // table.block[of]
    rows[:, _C.BLOCKS] = -(-rows[:, _C.ELEMENTS] // table.block[of])
    words = np.maximum(table.rows[of] - table.rows[table.dense], 0) + begin // ROW
    rows[:, _C.WORD] = np.where(of >= table.dense, words, 0)
    return rows, of, 4 * begin


def occupied(table: Table, union: Words, sparse: Integers, wanted: Numbers) -> Numbers:
    """Do what `SegmentCodec.occupied` does, for candidates and their sums on the host."""
    pieces, ends = _pieces(table)[0].copy(), np.zeros(2, np.int64)
    place(pieces, np.zeros(len(table), np.int32), frozen(union), ends)
    out = np.zeros((len(table), BLOCK_SIZES), np.int64)
    _occupied(pieces, frozen(union), frozen(sparse), wanted, out)
    return out


@compiled
def measure(table: Numbers, first: int, last: int, bitmap: Words, magnitudes: Words) -> None:
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
def place(table: Numbers, fields: Integers, union: Words, ends: Numbers) -> None:
    """Count the numbers of each piece and lay them end to end; write how many are dense, and sparse."""
    ends[:] = 0
    for p in range(table.shape[0]):
        row = table[p]
        kind, elements = row[Column.SPARSE], row[Column.ELEMENTS]
        row[Column.FIRST], row[Column.COUNT], row[Column.TOTAL] = ends[kind], 0, 0
        if kind:
            row[Column.COUNT] = set_bits(_words(row, union), elements)
        elif fields[row[Column.SEGMENT]] not in (ZERO, NON_FINITE):
            row[Column.COUNT] = elements
        ends[kind] += row[Column.COUNT]


@compiled
def values_at(table: Numbers, elements: Numbers, out: Floats) -> None:
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
def put(table: Numbers, elements: Numbers, results: Floats) -> None:
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
def _factors_of(row: Numbers, factors: Factors) -> Factors:
    return factors[row[Column.BLOCK] : row[Column.BLOCK] + row[Column.BLOCKS]]


@compiled
def _numbers_of(row: Numbers, numbers: Integers) -> Integers:
    return numbers[row[Column.FIRST] : row[Column.FIRST] + row[Column.COUNT]]


@compiled
def write_dense(table: Numbers, first: int, last: int, factors: Factors, out: Integers) -> None:
    """Write the numbers of dense pieces."""
    for p in range(first, last):
        row = table[p]
        if row[Column.SPARSE] or not row[Column.COUNT]:
            continue
        numbers, values = _numbers_of(row, out), floats_at(row[Column.VALUES], row[Column.ELEMENTS])
        quantize_slice(values, _factors_of(row, factors), row[Column.BITS], numbers, 0, numbers.size)
        row[Column.OWN] = _non_zeros(numbers)


@compiled
def gather(table: Numbers, first: int, last: int, union: Words, factors: Factors, out: Integers) -> None:
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
    table: Numbers,
    first: int,
    last: int,
    fields: Integers,
    union: Words,
    inverse: Factors,
    dense: Integers,
    sparse: Integers,
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
def add_up(table: Numbers, counts: Numbers) -> None:
    """Add the counts of pieces up to those of segments, as `Counts`: int64[3, segments], zero on entry."""
    for p in range(table.shape[0]):
        row = table[p]
        counts[0, row[Column.SEGMENT]] += row[Column.OWN]
        counts[1, row[Column.SEGMENT]] += row[Column.TOTAL]
        counts[2, row[Column.SEGMENT]] += row[Column.COUNT]


@compiled
def _occupied(table: Numbers, union: Words, sparse: Integers, wanted: Numbers, out: Numbers) -> None:
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
def _summed(union: Words, numbers: Integers) -> Words:
    """Return the bitmap of the candidates whose sum is not 0."""
    summed, chosen = np.empty((numbers.size + 31) // 32, np.uint32), np.empty(union.size, np.uint32)
    used_words(numbers.view(np.uint32), summed)
    scatter_bits(summed, union, chosen)
    return chosen


@compiled
def _non_zeros(numbers: Integers) -> int:
    found = 0
    for i in range(numbers.size):
        found += int(numbers[i] != 0)
    return found
