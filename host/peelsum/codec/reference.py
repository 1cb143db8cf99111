"""The codec in plain NumPy: the reference that every other implementation matches bit for bit.

It is written to be read, not to be fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import block_scales
from peelsum.codec.block_scales import ZERO
from peelsum.codec.fixed_point import NON_FINITE, fixed_point
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout
from peelsum.codec.layout import (
    CELL_BITS,
    DRAWN_BITS,
    MIX_FIRST,
    MIX_SECOND,
    MIX_STEP,
    MOST_CANDIDATES,
    SEGMENT_BIT,
    SUB_TABLES,
    SketchLayout,
)
from peelsum.codec.memory import HostMemory
from peelsum.codec.segments import Counts, Floats, Integers, Table, Words


def index(values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
    """Write the bitmap of the non-zeros of values[n] into out; return the largest bit pattern of |values|.

    -0.0 is zero, NaN is not.
    """
    magnitudes = _magnitudes(values)
    out[:] = _packed(magnitudes != 0, out.size)
    return int(magnitudes.max(initial=0))


def occupied(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """See `peelsum.codec.occupied`."""
    return np.array([np.unique(positions >> bits).size for bits in range(BLOCK_SIZES)], np.int64)


def places(
    layout: SketchLayout, positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return cells int64[k, SUB_TABLES] and signs uint32[k, SUB_TABLES] (1 or 2**32 - 1)."""
    sub_table = np.arange(SUB_TABLES)
    drawn = mixed(positions.astype(np.uint64), layout.seed)[:, np.newaxis]
    part = drawn >> (DRAWN_BITS * sub_table).astype(np.uint64) & np.uint64(2**DRAWN_BITS - 1)
    cell = (part >> np.uint64(1)) * np.uint64(layout.width) >> np.uint64(CELL_BITS)
    segment = drawn >> np.uint64(SEGMENT_BIT) & np.uint64(layout.segments - 1)
    cells = (segment * np.uint64(SUB_TABLES) + sub_table.astype(np.uint64)) * np.uint64(layout.width) + cell
    negative = (part & np.uint64(1)).astype(np.bool_)
    return cells.astype(np.int64), np.where(negative, np.uint32(0xFFFFFFFF), np.uint32(1))


def _magnitudes(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bit patterns without the sign; they order as |values| do, with infinity and NaN on top."""
    return values.view(np.uint32) & np.uint32(0x7FFFFFFF)


def _bits(bitmap: NDArray[np.uint32], elements: int) -> NDArray[np.bool_]:
    """Return the first `elements` bits of a bitmap as bool[elements]."""
    bits = bitmap[:, np.newaxis] >> np.arange(WORD_BITS, dtype=np.uint32) & np.uint32(1)
    return bits.reshape(-1)[:elements].astype(np.bool_)


def _packed(bits: NDArray[np.bool_], words: int) -> NDArray[np.uint32]:
    """Pack bool[n] into a bitmap of `words` words; missing bits are 0."""
    padded = np.zeros(WORD_BITS * words, np.bool_)
    padded[: bits.size] = bits
    weights = np.uint32(1) << np.arange(WORD_BITS, dtype=np.uint32)
    packed: NDArray[np.uint32] = (padded.reshape(-1, WORD_BITS) * weights).sum(axis=1, dtype=np.uint32)
    return packed


def _bloom_places(
    layout: BloomLayout, words: int, first: int
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return filter rows int64[words, hashes] and rotations uint32[words, hashes] of a bitmap's words."""
    sub_table = np.arange(layout.hashes)
    drawn = mixed((np.arange(words) + first // WORD_BITS).astype(np.uint64), layout.seed)[:, np.newaxis]
    start, stride = drawn & np.uint64(0xFFFFFFFF), drawn >> np.uint64(32) | np.uint64(1)
    hashed = start + sub_table.astype(np.uint64) * stride & np.uint64(0xFFFFFFFF)
    row = hashed * np.uint64(layout.rows) >> np.uint64(32)
    return sub_table * layout.rows + row.astype(np.int64), (hashed % np.uint64(WORD_BITS)).astype(np.uint32)


def _rotated(words: NDArray[np.uint32], left: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Rotate words left by 0 to 32 bits."""
    wide = words.astype(np.uint64) << left.astype(np.uint64)
    return (wide | wide >> np.uint64(32)).astype(np.uint32)


def mixed(counter: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return `peelsum.codec.layout.mix` of counter * MIX_STEP + seed, element by element, modulo 2**64."""
    value = counter * np.uint64(MIX_STEP) + np.uint64(seed)
    value = (value ^ value >> np.uint64(30)) * np.uint64(MIX_FIRST)
    value = (value ^ value >> np.uint64(27)) * np.uint64(MIX_SECOND)
    return value ^ value >> np.uint64(31)


class ReferenceSegments:
    """See `SegmentCodec`."""

    def __init__(
        self, table: Table, values: Sequence[Floats], out: Sequence[Floats | None], workers: int
    ) -> None:
        self._table, self._out = table, out
        self._values = [values[s].copy() for s in range(len(table))]
        self._highest = fixed_point(0, workers).scale
        self.fields = self.scales = np.empty(0, np.int32)
        #: The positions of each segment's numbers that are sent.
        self._sent: list[NDArray[np.int64]] = []

    @property
    def sent(self) -> NDArray[np.int64]:
        """See `SegmentCodec.sent`."""
        return np.array(list(map(len, self._sent)), np.int64)

    def write_scales(self, out: Words) -> Words:
        """See `SegmentCodec.write_scales`."""
        magnitudes = [
            np.maximum.reduceat(_magnitudes(own), np.arange(0, own.size, one.block))
            for own, one in zip(self._values, self._table.segments, strict=True)
        ]
        words = block_scales.encoded(np.concatenate(magnitudes), self._table.blocks)
        out[:] = np.concatenate(words)
        bitmap = np.zeros(self._table.words, np.uint32)
        for s in range(self._table.dense, len(self._table)):
            index(self._values[s], self._words(s, bitmap))
        return bitmap

    def read_scales(self, words: Words) -> None:
        """See `SegmentCodec.read_scales`."""
        segments, blocks = words[: len(self._table)], words[len(self._table) :]
        self.fields, fields = block_scales.decoded(segments, blocks, self._table.blocks)
        self.scales = self._highest - fields

    def use(self, fields: Integers, scales: Integers) -> None:
        """See `SegmentCodec.use`."""
        self.fields, self.scales = fields, scales

    def values_at(self, elements: NDArray[np.int64]) -> Floats:
        """See `SegmentCodec.values_at`."""
        found: Floats = np.concatenate(self._values)[elements]
        return found

    def place(self, union: Words) -> tuple[int, int]:
        """See `SegmentCodec.place`."""
        self._sent = []
        for s, one in enumerate(self._table.segments):
            if one.sparse:
                self._sent.append(np.flatnonzero(_bits(self._words(s, union), one.elements)))
            else:
                sent = self.fields[s] not in (ZERO, NON_FINITE)
                self._sent.append(np.arange(one.elements if sent else 0))
        dense = sum(map(len, self._sent[: self._table.dense]))
        return dense, sum(map(len, self._sent)) - dense

    def write_dense(self, out: Integers) -> None:
        """See `SegmentCodec.write_dense`."""
        self._write(range(self._table.dense), out)

    def gather(self, out: Integers) -> None:
        """See `SegmentCodec.gather`."""
        self._write(range(self._table.dense, len(self._table)), out)

    def read(
        self,
        dense: Integers,
        sparse: Integers,
        divisor: int,
        wide: tuple[NDArray[np.int64], Floats] | None = None,
    ) -> Sequence[Floats]:
        """See `SegmentCodec.read`."""
        numbers, results = self._split(dense, sparse), list[Floats]()
        for s, one in enumerate(self._table.segments):
            result = np.zeros(one.elements, np.float32)
            if self.fields[s] == NON_FINITE:
                result[:] = np.nan
            elif self.fields[s] != ZERO:
                sums = np.ldexp(numbers[s].astype(np.float64), -self._scales_of(s))
                with np.errstate(over="ignore"):
                    result[self._sent[s]] = (sums / divisor).astype(np.float32)
            out = self._out[s]
            if out is not None:
                out[:] = result
            results.append(result if out is None else out)
        for element, value in zip(*wide, strict=True) if wide else ():
            (s,) = self._table.segments_at(np.array([element]))
            results[s][element - self._table.begins[s]] = value
        return results

    def counts(self, dense: Integers, sparse: Integers, own: tuple[Integers, Integers]) -> Counts:
        """See `SegmentCodec.counts`."""
        mine = [np.count_nonzero(one) for one in self._split(*own)]
        total = [np.count_nonzero(one) for one in self._split(dense, sparse)]
        totals = np.array(total, np.int64)
        totals[self._table.dense :] = 0
        return Counts(np.array(mine, np.int64), totals, self.sent)

    def occupied(self, sparse: Integers, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `SegmentCodec.occupied`."""
        out = np.zeros((len(self._table), BLOCK_SIZES), np.int64)
        numbers = self._split(np.zeros(0, np.int32), sparse)
        for s in range(self._table.dense, len(self._table)):
            if wanted[s]:
                out[s] = occupied(self._sent[s][numbers[s] != 0])
        return out

    def _words(self, s: int, bitmap: Words) -> Words:
        first, end = self._table.first_words[s - self._table.dense :][:2]
        return bitmap[first:end]

    def _scales_of(self, s: int) -> Integers:
        scales: Integers = self.scales[self._table.blocks[s] + self._sent[s] // self._table.block[s]]
        return scales

    def _write(self, segments: range, out: Integers) -> None:
        parts = [np.empty(0, np.int32)]
        for s in segments:
            with np.errstate(invalid="ignore", over="ignore"):
                scaled = np.ldexp(self._values[s][self._sent[s]].astype(np.float64), self._scales_of(s))
                parts.append(np.rint(scaled).astype(np.int64).astype(np.int32))
        out[:] = np.concatenate(parts)

    def _split(self, dense: Integers, sparse: Integers) -> list[Integers]:
        """Return each segment's numbers, of those of the dense and the sparse vector."""
        lengths = np.array([0 if not dense.size and s < self._table.dense else len(one)
                            for s, one in enumerate(self._sent)])  # fmt: skip
        return np.split(np.concatenate([dense, sparse]), np.cumsum(lengths)[:-1])


class ReferenceDevice(HostMemory):
    """The codec in NumPy: what every other device does, bit for bit."""

    segments = ReferenceSegments

    def count(self, index: NDArray[np.uint32]) -> int:
        """See `Device.count`."""
        return int(np.bitwise_count(index).sum())

    def positions(
        self, index: NDArray[np.uint32], elements: int, first: int = 0, count: int | None = None
    ) -> NDArray[np.int64]:
        """See `Device.positions`."""
        return np.flatnonzero(_bits(index, elements)) + first

    def block_encode(
        self, index: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]
    ) -> None:
        """See `Device.block_encode`."""
        bits = np.zeros(-(-elements // block) * block, np.bool_)
        bits[:elements] = _bits(index, elements)
        out[:] = _packed(np.logical_or.reduce(bits.reshape(-1, block), axis=1), out.size)

    def block_decode(
        self, blocks: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]
    ) -> None:
        """See `Device.block_decode`."""
        bits = np.repeat(_bits(blocks, -(-elements // block)), block)
        out[:] = _packed(bits[:elements], out.size)

    def bloom_encode(
        self, layout: BloomLayout, index: NDArray[np.uint32], out: NDArray[np.uint32], first: int = 0
    ) -> None:
        """See `Device.bloom_encode`."""
        rows, rotations = _bloom_places(layout, index.size, first)
        out[:] = 0
        np.bitwise_or.at(out, rows, _rotated(index[:, np.newaxis], rotations))

    def bloom_decode(
        self,
        layout: BloomLayout,
        words: NDArray[np.uint32],
        elements: int,
        out: NDArray[np.uint32],
        first: int = 0,
    ) -> None:
        """See `Device.bloom_decode`."""
        rows, rotations = _bloom_places(layout, out.size, first)
        passed = np.bitwise_and.reduce(_rotated(words[rows], WORD_BITS - rotations), axis=1)
        out[:] = _packed(_bits(passed, elements), out.size)

    def gather_bits(
        self, index: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32]
    ) -> None:
        """See `Device.gather_bits`."""
        elements = WORD_BITS * mask.size
        out[:] = _packed(_bits(index, elements)[_bits(mask, elements)], out.size)

    def scatter_bits(
        self, bits: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32], scan: None = None
    ) -> None:
        """See `Device.scatter_bits`."""
        spread = _bits(mask, WORD_BITS * mask.size).copy()
        spread[spread] = _bits(bits, int(np.count_nonzero(spread)))
        out[:] = _packed(spread, out.size)

    def sketch_encode(
        self,
        layout: SketchLayout,
        positions: NDArray[np.int64],
        values: NDArray[np.int32],
        out: NDArray[np.uint32],
    ) -> None:
        """See `Device.sketch_encode`."""
        cells, signs = places(layout, positions)
        out[:] = 0
        np.add.at(out, cells, signs * values.view(np.uint32)[:, np.newaxis])

    def sketch_decode(
        self,
        layout: SketchLayout,
        sketch: NDArray[np.uint32],
        positions: NDArray[np.int64],
        out: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """See `Device.sketch_decode`."""
        cells, signs = places(layout, positions)
        remaining = sketch.copy()
        numbers = out.view(np.uint32)
        load = np.zeros(layout.cells, np.uint32)
        np.add.at(load, cells, np.uint32(1))
        out[:] = 0
        segments = cells[:, 0] // layout.segment_cells
        crowded = np.bincount(segments, minlength=layout.segments)[segments] > MOST_CANDIDATES
        left, unpeeled = np.flatnonzero(~crowded), np.flatnonzero(crowded)
        while True:
            pure = load[cells[left]] == 1
            peelable = pure.any(axis=1)
            if not peelable.any():
                return np.sort(np.concatenate([left, unpeeled]))
            peeled, sub_table = left[peelable], pure[peelable].argmax(axis=1)
            numbers[peeled] = signs[peeled, sub_table] * remaining[cells[peeled, sub_table]]
            np.subtract.at(remaining, cells[peeled], signs[peeled] * numbers[peeled, np.newaxis])
            np.subtract.at(load, cells[peeled], np.uint32(1))
            left = left[~peelable]
