"""The segments of a step in NumPy: `SegmentCodec`, one segment after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peelsum.codec.arrays import Floats, Integers, Numbers, Words
from peelsum.codec.fixed_point import NON_FINITE, fixed_point
from peelsum.codec.index import BLOCK_SIZES
from peelsum.codec.reference.index import bits_of, index, magnitudes_of, occupied
from peelsum.codec.reference.scales import decoded, encoded
from peelsum.codec.scales import ZERO
from peelsum.codec.segments import Counts, Table


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
        self._sent: list[Numbers] = []

    @property
    def sent(self) -> Numbers:
        """See `SegmentCodec.sent`."""
        return np.array(list(map(len, self._sent)), np.int64)

    def write_scales(self, out: Words) -> Words:
        """See `SegmentCodec.write_scales`."""
        magnitudes = [
            np.maximum.reduceat(magnitudes_of(own), np.arange(0, own.size, one.block))
            for own, one in zip(self._values, self._table.segments, strict=True)
        ]
        words = encoded(np.concatenate(magnitudes), self._table.blocks)
        out[:] = np.concatenate(words)
        bitmap = np.zeros(self._table.words, np.uint32)
        for s in range(self._table.dense, len(self._table)):
            index(self._values[s], self._words(s, bitmap))
        return bitmap

    def read_scales(self, words: Words) -> None:
        """See `SegmentCodec.read_scales`."""
        segments, blocks = np.split(words, [len(self._table)])
        self.fields, fields = decoded(segments, blocks, self._table.blocks)
        self.scales = self._highest - fields

    def use(self, fields: Integers, scales: Integers) -> None:
        """See `SegmentCodec.use`."""
        self.fields, self.scales = fields, scales

    def values_at(self, elements: Numbers) -> Floats:
        """See `SegmentCodec.values_at`."""
        found: Floats = np.concatenate(self._values)[elements]
        return found

    def place(self, union: Words) -> tuple[int, int]:
        """See `SegmentCodec.place`."""
        self._sent = []
        for s, one in enumerate(self._table.segments):
            if one.sparse:
                self._sent.append(np.flatnonzero(bits_of(self._words(s, union), one.elements)))
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
        self, dense: Integers, sparse: Integers, divisor: int, wide: tuple[Numbers, Floats] | None = None
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

    def occupied(self, sparse: Integers, wanted: Numbers) -> Numbers:
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
