"""The segments of a step on the host: `SegmentCodec` by compiled loops, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.buffers import frozen
from peelsum.codec import cpu_block_loops
from peelsum.codec import cpu_segment_loops as loops
from peelsum.codec.cpu_index_loops import address
from peelsum.codec.fixed_point import fixed_point
from peelsum.codec.index import BLOCK_SIZES
from peelsum.codec.segments import ROW, Counts, Floats, Integers, Table, Words
from peelsum.codec.threads import PER_CORE, each_of

_Factors = NDArray[np.float64]
#: Elements of the largest piece: a multiple of the largest block of scales.
_PIECE = 2**21
# Reading a member of an enum takes 0.2 us in Python 3.11: a quarter of the time of a step of small tensors.
_C = cast("type[loops.Column]", SimpleNamespace(**{one.name: int(one) for one in loops.Column}))


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
        self._powers: tuple[_Factors, _Factors] | None = None
        self._union: Words = np.empty(0, np.uint32)

    def write_scales(self, out: Words) -> Words:
        """See `SegmentCodec.write_scales`."""
        bitmap = buffers.empty(self._table.words, np.uint32)
        count = len(self._table)
        segments, blocks = out[:count], out[count:]
        self._each(lambda a, b: loops.measure(self._pieces, a, b, bitmap, blocks))
        cpu_block_loops.encode_scales(self._table.blocks, blocks, segments, blocks)
        return bitmap

    def read_scales(self, words: Words) -> None:
        """See `SegmentCodec.read_scales`."""
        words, count = frozen(words), len(self._table)
        given = words[:count], words[count:], self._table.blocks, self._highest
        fields, scales = np.empty(count, np.int32), buffers.empty(len(words) - count, np.int32)
        cpu_block_loops.decode_scales(*given, fields, scales)
        self.use(fields, scales)

    def use(self, fields: Integers, scales: Integers) -> None:
        """See `SegmentCodec.use`."""
        self.fields, self.scales, self._powers = fields, scales, None

    def values_at(self, elements: NDArray[np.int64]) -> Floats:
        """See `SegmentCodec.values_at`."""
        found = np.empty(len(elements), np.float32)
        loops.values_at(self._pieces, elements, found)
        return found

    def place(self, union: Words) -> tuple[int, int]:
        """See `SegmentCodec.place`."""
        ends, self._union = np.zeros(2, np.int64), frozen(union)
        loops.place(self._pieces, self.fields, self._union, ends)
        return int(ends[0]), int(ends[1])

    def write_dense(self, out: Integers) -> None:
        """See `SegmentCodec.write_dense`."""
        factors = self._factors()[0]
        self._each(lambda a, b: loops.write_dense(self._pieces, a, b, factors, out))

    def gather(self, out: Integers) -> None:
        """See `SegmentCodec.gather`."""
        factors = self._factors()[0]
        self._each(lambda a, b: loops.gather(self._pieces, a, b, self._union, factors, out))

    def read(
        self,
        dense: Integers,
        sparse: Integers,
        divisor: int,
        wide: tuple[NDArray[np.int64], Floats] | None = None,
    ) -> Sequence[Floats]:
        """See `SegmentCodec.read`."""
        if not self._over:
            self._allocate()
        rest = self.fields, self._union, self._factors()[1], frozen(dense), frozen(sparse), float(divisor)
        self._each(lambda a, b: loops.read(self._pieces, a, b, *rest))
        if wide is not None:
            loops.put(self._pieces, *wide)
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
    def sent(self) -> NDArray[np.int64]:
        """See `SegmentCodec.sent`."""
        sent: NDArray[np.int64] = self._counted()[2]
        return sent

    def _counted(self) -> NDArray[np.int64]:
        """Return the counts of the pieces, added up for each segment: int64[len(Counts), segments]."""
        counts = np.zeros((3, len(self._table)), np.int64)
        loops.add_up(self._pieces, counts)
        return counts

    def occupied(self, sparse: Integers, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `SegmentCodec.occupied`."""
        out = np.zeros((len(self._table), BLOCK_SIZES), np.int64)
        loops.occupied(self._pieces, self._union, frozen(sparse), wanted, out)
        return out

    def _factors(self) -> tuple[_Factors, _Factors]:
        """Return 2**scale and 2**-scale of the blocks."""
        if self._powers is None:
            blocks = len(self.scales)
            self._powers = buffers.empty(blocks, np.float64), buffers.empty(blocks, np.float64)
            cpu_block_loops.powers(self.scales, *self._powers)
        return self._powers

    def _each(self, work: Callable[[int, int], None]) -> None:
        each_of(len(self._pieces), int(self._table.begins[-1]), work)


@lru_cache(64)  # a plan's table is the same object in every step
def _pieces(table: Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the pieces of a table's segments, without addresses, the segment of each, and its first byte."""
    large = int(table.begins[-1]) >= 2 * PER_CORE
    per = -(-table.elements // _PIECE) if large else np.ones(len(table), np.int64)
    of = np.repeat(np.arange(len(table)), per)
    ranks = np.arange(len(of)) - np.repeat(np.cumsum(per) - per, per)
    begin = ranks * _PIECE
    rows = np.zeros((len(of), len(loops.Column)), np.int64)
    rows[:, _C.SEGMENT], rows[:, _C.SPARSE] = of, of >= table.dense
    rows[:, _C.ELEMENTS] = np.minimum(table.elements[of] - begin, _PIECE) if large else table.elements[of]
    rows[:, _C.BITS] = np.log2(table.block[of]).astype(np.int64)
    rows[:, _C.BLOCK] = table.blocks[of] + begin // table.block[of]
    rows[:, _C.BLOCKS] = -(-rows[:, _C.ELEMENTS] // table.block[of])
    words = np.maximum(table.rows[of] - table.rows[table.dense], 0) + begin // ROW
    rows[:, _C.WORD] = np.where(of >= table.dense, words, 0)
    return rows, of, 4 * begin


def occupied(table: Table, union: Words, sparse: Integers, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Do what `SegmentCodec.occupied` does, for candidates and their sums on the host."""
    pieces, ends = _pieces(table)[0].copy(), np.zeros(2, np.int64)
    loops.place(pieces, np.zeros(len(table), np.int32), frozen(union), ends)
    out = np.zeros((len(table), BLOCK_SIZES), np.int64)
    loops.occupied(pieces, frozen(union), frozen(sparse), wanted, out)
    return out
