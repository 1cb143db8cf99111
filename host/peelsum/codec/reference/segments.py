"""The segments of a step in NumPy, one after the other: the reference implementation of `SegmentCodec`.

`peelsum.codec.fixed_point` says what the words mean that agree on scales.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peelsum.codec.arrays import Cells, Floats, Integers, Numbers, Words
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
    fixed_point,
)
from peelsum.codec.layout import BLOCK_SIZES, SketchLayout
from peelsum.codec.reference.index import bits_of, index, magnitudes_of, occupied
from peelsum.codec.reference.sketch import ReferenceSketch
from peelsum.codec.segments import ROW, Counts, SegmentTable


class ReferenceSegments:
    """Encodes the tensors of one step, and decodes their sums, in NumPy: a `SegmentCodec`."""

    def __init__(
        self, table: SegmentTable, values: Sequence[Floats], out: Sequence[Floats | None], workers: int
    ) -> None:
        self._table, self._out = table, out
        self._values = [values[s].copy() for s in range(len(table))]
        self._highest = fixed_point(0, workers).scale
        self.fields = self.scales = np.empty(0, np.int32)
        #: The elements of each segment whose numbers are sent.
        self._sent: list[Numbers] = []
        self._local_counts, self._sum_counts = np.zeros((2, len(table)), np.int64)

    @property
    def sent(self) -> Numbers:
        """How many numbers of each segment are sent, int64[segments]."""
        return np.array(list(map(len, self._sent)), np.int64)

    def write_scales(self, out: Words, bitmap: Words | None = None) -> Words:
        """Write the words that agree on scales, of segments and of blocks; return the bitmap of non-zeros."""
        magnitudes = [
            np.maximum.reduceat(magnitudes_of(values), np.arange(0, values.size, segment.block))
            for values, segment in zip(self._values, self._table.segments, strict=True)
        ]
        words = encode_scales(np.concatenate(magnitudes), self._table.blocks)
        out[:] = np.concatenate(words)
        if bitmap is None:
            bitmap = np.empty(self._table.words, np.uint32)
        for s in range(self._table.dense, len(self._table)):
            index(self._values[s], self._words(s, bitmap))
        return bitmap

    def write_ahead(
        self, out: Words, bitmap: Words, scales: Integers, layout: SketchLayout, dense: Integers,
        sketch: Cells,
    ) -> None:  # fmt: skip
        """Do what `write_scales` does, and write all numbers by other scales."""
        self.write_scales(out, bitmap)
        self.set_scales(np.zeros(len(self._table), np.int32), scales)
        numbers = np.empty(self.set_candidates(bitmap)[1], np.int32)
        self.write_dense(dense)
        self.gather(numbers)
        if len(sketch):
            ReferenceSketch().sketch_encode(layout, self.positions(), numbers, sketch)

    def read_scales(self, words: Words) -> None:
        """Set `fields` and `scales` from the OR of all workers' words."""
        segments, blocks = np.split(words, [len(self._table)])
        self.fields, fields = decode_scales(segments, blocks, self._table.blocks)
        self.scales = self._highest - fields

    def set_scales(self, fields: Integers, scales: Integers) -> None:
        """Set `fields` and `scales`, instead of those that `read_scales` computed."""
        self.fields, self.scales = fields, scales

    def values_at(self, elements: Numbers) -> Floats:
        """Return this worker's values of elements, which are numbered over all segments."""
        values: Floats = np.concatenate(self._values)[elements]
        return values

    def set_candidates(self, union: Words) -> tuple[int, int]:
        """Set the candidates to those of a bitmap; return how many dense and sparse integers are sent.

        `write_dense` and `gather` write that many. It can be called again, with other candidates. Bits where
        there is no element are cleared.
        """
        self._sent = []
        for s, segment in enumerate(self._table.segments):
            if segment.sparse:
                self._words(s, union)[-1] &= 0xFFFFFFFF >> -segment.elements % ROW
                self._sent.append(np.flatnonzero(bits_of(self._words(s, union), segment.elements)))
            else:
                sent = self.fields[s] not in (ZERO, NON_FINITE)
                self._sent.append(np.arange(segment.elements if sent else 0))
        dense = sum(map(len, self._sent[: self._table.dense]))
        return dense, sum(map(len, self._sent)) - dense

    def write_dense(self, out: Integers) -> None:
        """Write the integers of the dense segments, end to end."""
        self._write(range(self._table.dense), out)

    def gather(self, out: Integers) -> None:
        """Write the integers of the candidates, in order."""
        self._write(range(self._table.dense, len(self._table)), out)

    def positions(self) -> Numbers:
        """Return the candidates' positions in the sparse vector."""
        sparse = zip(ROW * self._table.first_words[:-1], self._sent[self._table.dense :], strict=True)
        return np.concatenate([np.empty(0, np.int64), *(first + sent for first, sent in sparse)])

    def decode(
        self, dense: Integers, sparse: Integers, divisor: int, overflow: tuple[Numbers, Floats] | None = None
    ) -> Sequence[Floats]:
        """Return each segment's result, from the sums of its integers."""
        numbers, results = self._split(dense, sparse), list[Floats]()
        for s, segment in enumerate(self._table.segments):
            self._sum_counts[s] = 0 if segment.sparse else np.count_nonzero(numbers[s])
            result = np.zeros(segment.elements, np.float32)
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
        for element, value in zip(*overflow, strict=True) if overflow else ():
            (s,) = self._table.segments_at(np.array([element]))
            results[s][element - self._table.begins[s]] = value
        return results

    def counts(self) -> Counts:
        """Return the counts of each segment's non-zeros and sent numbers."""
        return Counts(self._local_counts, self._sum_counts, self.sent)

    def occupied(self, sparse: Integers, selected: Numbers) -> Numbers:
        """Count the blocks of 2**b elements with a sum that is not 0, in the selected sparse segments."""
        out = np.zeros((len(self._table), BLOCK_SIZES), np.int64)
        numbers = self._split(np.zeros(0, np.int32), sparse)
        for s in range(self._table.dense, len(self._table)):
            if selected[s]:
                out[s] = occupied(self._sent[s][numbers[s] != 0])
        return out

    def _words(self, s: int, bitmap: Words) -> Words:
        """Return the words of a sparse segment in the sparse vector's bitmap."""
        first, end = self._table.first_words[s - self._table.dense :][:2]
        return bitmap[first:end]

    def _scales_of(self, s: int) -> Integers:
        """Return the scales of a segment's elements whose numbers are sent."""
        scales: Integers = self.scales[self._table.blocks[s] + self._sent[s] // self._table.block[s]]
        return scales

    def _write(self, segments: range, out: Integers) -> None:
        """Write the numbers of these segments, end to end, and count those that are not 0."""
        parts = [np.empty(0, np.int32)]
        for s in segments:
            with np.errstate(invalid="ignore", over="ignore"):
                scaled = np.ldexp(self._values[s][self._sent[s]].astype(np.float64), self._scales_of(s))
                parts.append(np.rint(scaled).astype(np.int64).astype(np.int32))
            self._local_counts[s] = np.count_nonzero(parts[-1])
        out[:] = np.concatenate(parts)

    def _split(self, dense: Integers, sparse: Integers) -> list[Integers]:
        """Return each segment's part of the numbers of the dense and the sparse vector."""
        lengths = self.sent
        if not dense.size:
            lengths[: self._table.dense] = 0
        return np.split(np.concatenate([dense, sparse]), np.cumsum(lengths)[:-1])


def encode_scales(magnitudes: Words, firsts: Numbers) -> tuple[Words, Words]:
    """Return a worker's words: uint32[segments] and uint32[blocks].

    magnitudes: each block's largest bit pattern of |g|, uint32[blocks].
    firsts: each segment's first block, and the end: int64[segments + 1]. No segment is without blocks.
    """
    largest = np.maximum.reduceat(magnitudes, firsts[:-1])
    field = (largest >> MANTISSA_BITS).astype(np.int64)
    bit = np.where(field == NON_FINITE, NON_FINITE_BIT, field // SPAN)
    segments = np.where(largest != 0, np.uint32(1) << bit.astype(np.uint32), 0).astype(np.uint32)
    least = np.repeat(np.maximum(field - DEPTH, 0), np.diff(firsts))
    levels = np.maximum((magnitudes >> MANTISSA_BITS).astype(np.int64), least) >> LEVEL_BITS
    words = np.where(magnitudes != 0, np.uint32(1) << (levels % LEVELS).astype(np.uint32), 0)
    return segments, words.astype(np.uint32)


def decode_scales(segments: Words, blocks: Words, firsts: Numbers) -> tuple[Integers, Integers]:
    """Return exponent fields int32[segments] and int32[blocks] that no worker's values exceed.

    segments, blocks: the OR of all workers' words. A segment's field is `ZERO` if all its values are zero, or
    `NON_FINITE` if some are not finite. A block of zeros has the largest field that its segment may have.
    """
    tops = np.frexp((segments & np.uint32((1 << NON_FINITE_BIT) - 1)).astype(np.float64))[1] - 1
    tops = np.minimum(SPAN * tops + SPAN - 1, LARGEST_FINITE)
    fields = np.where(segments == 0, ZERO, np.where(segments >> NON_FINITE_BIT, NON_FINITE, tops))
    top = np.repeat(np.maximum(tops, 0), np.diff(firsts)) >> LEVEL_BITS
    # Rotated left, so that the level of the segment's upper end is the uppermost bit.
    bits = ((LEVELS - 1 - top) % LEVELS).astype(np.uint64)
    words = blocks.astype(np.uint64)
    rotated = (words << bits | words >> (np.uint64(LEVELS) - bits)) & np.uint64(0xFFFFFFFF)
    below = np.where(blocks != 0, LEVELS - np.frexp(rotated.astype(np.float64))[1], 0)
    upper = ((top - below) << LEVEL_BITS) + (1 << LEVEL_BITS) - 1
    return fields.astype(np.int32), np.clip(upper, 0, LARGEST_FINITE).astype(np.int32)
