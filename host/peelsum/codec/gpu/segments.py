"""The segments of a step on the GPU: `SegmentCodec` in Triton, one launch a stage for any number of tensors.

The host reads the words of scales, and three counts a segment. Tensors that lie end to end are not copied.

In kernels, row r holds the elements begins[r] to begins[r + 1] of all segments, up to 32. It lies in block
blocks[r], and block b in segment segments[b]. Rows from `first` on are those of the sparse vector: row
first + w is word w of its bitmap. Values are given as bit patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from peelsum.codec.arrays import Floats, Integers, Numbers, Words
from peelsum.codec.cpu.scales import read_scales
from peelsum.codec.cpu.segments import occupied
from peelsum.codec.fixed_point import NON_FINITE, fixed_point
from peelsum.codec.gpu import launch
from peelsum.codec.gpu.index import list_positions, totals
from peelsum.codec.gpu.launch import BLOCK, SCANNED_WORDS, TILE_WORDS, cut, empty
from peelsum.codec.gpu.memory import sent, stream_of
from peelsum.codec.gpu.scales import (
    NON_FINITE_SCALE,
    ZERO_SCALE,
    fixed_number,
    scales_of,
    write_floats,
    write_words,
)
from peelsum.codec.gpu.words import WORD_BITS, packed, popcount, raise_to, ranks, singly, unpacked
from peelsum.codec.scales import ZERO
from peelsum.codec.segments import ROW, Counts, Table

#: Warps of the pass over all rows: the fastest of sixteen launches on an H100.
_MEASURE_WARPS = 2
#: Warps of programs that compute numbers of 64 rows, and of 128: 8 elements a thread, for which registers
#: suffice.
_MANY_WARPS, _MOST_WARPS = 8, 16


class Rows(NamedTuple):
    """A table's rows, on a device."""

    begins: Tensor
    """int64[rows + 1]: each row's first element, and the end."""
    blocks: Tensor
    """int32[rows]: each row's block."""
    segments: Tensor
    """int32[blocks]: each block's segment."""
    number: int
    """Number of rows."""
    first: int
    """The first row of the sparse vector."""


#: A plan's table is the same object in every step. Its rows take a tenth of the memory of its elements.
_ROWS: WeakKeyDictionary[Table, dict[tuple[torch.device, int], Rows]] = WeakKeyDictionary()


class GpuSegments:
    """See `SegmentCodec`."""

    def __init__(
        self, table: Table, values: Sequence[Tensor], out: Sequence[Tensor | None], workers: int
    ) -> None:
        self._table, self._out = table, out
        self._device = values[0].device
        self._devices = [one.device for one in values]
        self._values, self._lie_together = _joined(values)
        self._over = self._lie_together and all(a is b for a, b in zip(values, out, strict=True))
        self._rows = _rows(table, stream_of(self._device))
        self._highest = fixed_point(0, workers).scale
        self.fields = self.scales = np.empty(0, np.int32)
        #: The scales, and where each row's numbers begin, on the device; None until they are needed there.
        self._placed: tuple[Tensor, Tensor] | None = None
        #: The `totals` of the candidates' bitmap.
        self._bases = torch.zeros(1, dtype=torch.int64, device=self._device)
        #: int64[2, segments]: own non-zeros, and non-zeros of dense sums.
        self._counts = torch.zeros(2, len(table), dtype=torch.int64, device=self._device)
        #: Whether this worker's dense and sparse numbers have been written, and counted.
        self._wrote = [False, False]
        self.sent = np.zeros(len(table), np.int64)

    def write_scales(self, out: Tensor) -> Tensor:
        """See `SegmentCodec.write_scales`."""
        bitmap = self._empty(self._table.words)
        rows, count = self._rows, len(self._table)
        magnitudes = torch.zeros(out.numel(), dtype=torch.int32, device=self._device)
        largest, of_blocks = magnitudes[:count], magnitudes[count:]
        launch.run(
            measure_kernel, cut(rows.number, TILE_WORDS),
            self._bits, *rows[:3], largest, of_blocks, bitmap, rows.number, rows.first, TILE_WORDS,
            num_warps=_MEASURE_WARPS,
        )  # fmt: skip
        write_words(largest, of_blocks, rows.segments, out)
        return bitmap

    def read_scales(self, words: Words) -> None:
        """See `SegmentCodec.read_scales`."""
        self.use(*read_scales(words, self._table.blocks, self._highest))

    def use(self, fields: Integers, scales: Integers) -> None:
        """See `SegmentCodec.use`."""
        self.fields, self.scales, self._placed = fields, scales, None
        self._absent = (self.fields == ZERO) | (self.fields == NON_FINITE)
        self.sent = np.where(self._absent, 0, self._table.elements)

    def _there(self) -> tuple[Tensor, Tensor]:
        """Return the scales, and where each row's numbers begin, on the device."""
        if self._placed is None:
            table, absent, scales, places = self._table, self._absent, self.scales, self._rows.begins
            if absent.any():
                scales = scales.copy()
                for s in np.flatnonzero(absent):
                    scale = NON_FINITE_SCALE if self.fields[s] == NON_FINITE else ZERO_SCALE
                    scales[table.blocks[s] : table.blocks[s + 1]] = scale
            if absent[: table.dense].any():
                missing = np.where(absent, table.elements, 0)
                skipped = np.cumsum(missing) - missing
                begins = table.begin_of_row[:-1] - skipped[table.segment_of_row]
                places = sent(begins, self._device)
            self._placed = sent(scales, self._device), places
        return self._placed

    def values_at(self, elements: Numbers) -> Floats:
        """See `SegmentCodec.values_at`. Waits for the device."""
        found: Floats = self._values[sent(elements, self._device)].cpu().numpy()
        return found

    def place(self, union: Tensor) -> tuple[int, int]:
        """See `SegmentCodec.place`. Waits for the device."""
        dense, rows = self._table.dense, self._rows
        self._union = union
        if union.numel():
            self._bases = totals(union)
        if len(self._table) > dense:
            counts = torch.zeros(len(self._table), dtype=torch.int64, device=self._device)
            launch.run(
                count_kernel, cut(rows.number - rows.first, SCANNED_WORDS),
                union, rows.blocks, rows.segments, counts, rows.number, rows.first, SCANNED_WORDS,
                num_warps=_MOST_WARPS,
            )  # fmt: skip
            self.sent[dense:] = counts.cpu().numpy()[dense:]
        return int(self.sent[:dense].sum()), int(self.sent[dense:].sum())

    def write_dense(self, out: Tensor) -> None:
        """See `SegmentCodec.write_dense`."""
        if self._wrote[0]:
            self._counts[0, : self._table.dense] = 0
        self._wrote[0] = True
        rows = self._rows
        launch.run(
            write_dense_kernel, cut(rows.first, TILE_WORDS),
            self._bits, *rows[:3], *self._there(), out, self._counts[0], rows.first, TILE_WORDS,
            num_warps=_MANY_WARPS,
        )  # fmt: skip

    def gather(self, out: Tensor) -> None:
        """See `SegmentCodec.gather`."""
        if self._wrote[1]:
            self._counts[0, self._table.dense :] = 0
        self._wrote[1] = True
        rows, k, positions = self._rows, len(out), empty(len(out), self._union, torch.int64)
        list_positions(self._union, ROW * self._union.numel(), self._bases, positions)
        launch.run(
            gather_kernel, cut(k, BLOCK),
            self._bits, *rows[:3], self._there()[0], positions, out, self._counts[0], k, rows.number,
            rows.first, BLOCK,
        )  # fmt: skip

    def read(
        self, dense: Tensor, sparse: Tensor, divisor: int, wide: tuple[Numbers, Floats] | None = None
    ) -> Sequence[Tensor]:
        """See `SegmentCodec.read`."""
        ours = self._over or not self._lie_together
        flat = self._values if ours else torch.empty_like(self._values)
        parts = torch.split(flat, self._table.elements.tolist())
        # What needs memory comes before results are written over tensors: the step may start again from them.
        results = [
            out if out is not None else part if part.device == there else torch.empty_like(part, device=there)
            for part, out, there in zip(parts, self._out, self._devices, strict=True)
        ]
        place = *self._there(), self._union, self._bases
        placed = None if wide is None else [sent(one, self._device) for one in wide]
        self._values = self._empty(0)  # a caller may keep results for long, and them alone
        rows = self._rows
        dense_tiles = cut(rows.first, SCANNED_WORDS)
        launch.run(
            read_kernel, dense_tiles + cut(rows.number - rows.first, SCANNED_WORDS),
            dense, sparse, *rows[:3], *place, divisor, flat, self._counts[1],
            rows.number, rows.first, dense_tiles, SCANNED_WORDS, num_warps=_MOST_WARPS,
        )  # fmt: skip
        pairs = [(a, b) for a, b in zip(results, parts, strict=True) if a is not b and not self._over]
        with torch.inference_mode():  # tensors may have been made in it, and are then read-only elsewhere
            if placed is not None:
                flat.index_copy_(0, *placed)
            if pairs:
                torch._foreach_copy_([result for result, _ in pairs], [part for _, part in pairs])
        return results

    def counts(self, dense: Tensor, sparse: Tensor, own: tuple[Tensor, Tensor]) -> Counts:
        """See `SegmentCodec.counts`. Waits for the device."""
        mine, total = self._counts.cpu().numpy()
        return Counts(mine, total, self.sent)

    def occupied(self, sparse: Tensor, wanted: Numbers) -> Numbers:
        """See `SegmentCodec.occupied`. The host counts, from copies of the bitmap and the sums."""
        union = self._union.cpu().numpy().view(np.uint32)
        return occupied(self._table, union, sparse.cpu().numpy(), wanted)

    @property
    def _bits(self) -> Tensor:
        return self._values.view(torch.int32)

    def _empty(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int32, device=self._device)


def _joined(values: Sequence[Tensor]) -> tuple[Tensor, bool]:
    """Return tensors end to end, and whether they lie so already: then memory is shared."""
    first, place = values[0], values[0].storage_offset()
    # Its identity, because another storage, of another size, may begin at the same address.
    storage = first.untyped_storage()._cdata
    for tensor in values:
        if tensor.untyped_storage()._cdata != storage or tensor.storage_offset() != place:
            break
        place += tensor.numel()
    else:
        return first.as_strided((place - first.storage_offset(),), (1,)), True
    return torch.cat([tensor.to(first.device) for tensor in values]), False


def _rows(table: Table, stream: tuple[torch.device, int]) -> Rows:
    """Return a table's rows on a device, kept for the stream as long as there is the table."""
    kept = _ROWS.setdefault(table, {})
    if stream not in kept:
        kept[stream] = _made(table, stream[0])
    return kept[stream]


def _made(table: Table, device: torch.device) -> Rows:
    segments = np.repeat(np.arange(len(table)), np.diff(table.blocks))
    arrays = table.begin_of_row, table.block_of_row.astype(np.int32), segments.astype(np.int32)
    begins, blocks, of_blocks = (sent(one, device) for one in arrays)
    return Rows(begins, blocks, of_blocks, int(table.rows[-1]), int(table.rows[table.dense]))


@triton.jit
def _elements(begins, row, rows):
    """Return the elements of rows int64[r, 32], and which of them there are."""
    begin = tl.load(begins + row, mask=row < rows, other=0)
    end = tl.load(begins + row + 1, mask=row < rows, other=0)
    element = begin[:, None] + tl.arange(0, WORD_BITS)[None, :]
    return element, element < end[:, None]


@triton.jit
def _add(counts, segment, found):
    """Add found[r] to counts[segment[r]]: at once, if all rows are of one segment."""
    first, last = tl.min(segment, axis=0), tl.max(segment, axis=0)
    if first == last:
        tl.atomic_add(counts + first, tl.sum(found, axis=0).to(tl.int64), sem="relaxed")
    else:
        tl.atomic_add(counts + segment, found.to(tl.int64), mask=found != 0, sem="relaxed")


@triton.jit
def _place(blocks, segments, row, rows):
    """Return the rows' blocks and segments."""
    block = tl.load(blocks + tl.minimum(row, rows - 1))
    return block, tl.load(segments + block)


@triton.jit
def measure_kernel(
    values, begins, blocks, segments, largest, magnitudes, bitmap, rows, first, ROWS: tl.constexpr
):
    """Raise magnitudes[blocks] and largest[segments], which must be zero; write the bitmap."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    element, inside = _elements(begins, row, rows)
    own = tl.load(values + element, mask=inside, other=0) & 0x7FFFFFFF
    most = tl.max(own, axis=1)
    block, segment = _place(blocks, segments, row, rows)
    tl.atomic_max(magnitudes + block, most, mask=most != 0, sem="relaxed")
    start, end = tl.min(segment, axis=0), tl.max(segment, axis=0)
    if start == end:
        raise_to(largest + start, tl.max(most, axis=0))
    else:
        tl.atomic_max(largest + segment, most, mask=most != 0, sem="relaxed")
    word = row - first
    tl.store(bitmap + word, packed(own != 0), mask=(row >= first) & (row < rows))


@triton.jit
def count_kernel(bitmap, blocks, segments, counts, rows, first, ROWS: tl.constexpr):
    """Add the set bits of the sparse rows' words to counts[segments]."""
    word = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    found = popcount(tl.load(bitmap + word, mask=word < rows - first, other=0))
    _, segment = _place(blocks, segments, first + word, rows)
    _add(counts, segment, found)


@triton.jit
def write_dense_kernel(values, begins, blocks, segments, scales, places, out, own, first, ROWS: tl.constexpr):
    """Write the numbers of row r from out[places[r]] on, unless it has no scale; add non-zeros to `own`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    element, inside = _elements(begins, row, first)
    block, segment = _place(blocks, segments, row, first)
    scale, sent, _ = scales_of(scales, block)
    inside &= sent[:, None]
    value = tl.load(values + element, mask=inside, other=0).to(tl.float32, bitcast=True)
    number = tl.where(inside, fixed_number(value, scale[:, None]).to(tl.int32), 0)
    at = tl.load(places + row, mask=row < first, other=0)[:, None] + tl.arange(0, WORD_BITS)[None, :]
    tl.store(out + at, number, mask=inside)
    _add(own, segment, tl.sum((number != 0).to(tl.int32), axis=1))


@triton.jit
def _candidates(bitmap, bases, tile, rows, ROWS: tl.constexpr):
    """Return a tile's words, their numbers, their bits, and the rank of each among all candidates."""
    word = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    words = tl.load(bitmap + word, mask=word < rows, other=0)
    bits = unpacked(words)
    return word, bits, ranks(words, bases, tile)[:, None] + tl.cumsum(bits, axis=1) - bits


@triton.jit
def gather_kernel(
    values,
    begins,
    blocks,
    segments,
    scales,
    positions,
    out,
    own,
    candidates,
    rows,
    first,
    BLOCK: tl.constexpr,
):
    """Write the candidates' numbers in order; add non-zeros to `own`. positions: places in the bitmap."""
    t = singly(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    inside = t < candidates
    position = tl.load(positions + t, mask=inside, other=0)
    row = first + position // WORD_BITS
    block, segment = _place(blocks, segments, row, rows)
    scale, _, _ = scales_of(scales, block)
    element = tl.load(begins + row, mask=inside, other=0) + position % WORD_BITS
    value = tl.load(values + element, mask=inside, other=0).to(tl.float32, bitcast=True)
    number = fixed_number(value, scale).to(tl.int32)
    tl.store(out + t, number, mask=inside)
    _add(own, segment, (inside & (number != 0)).to(tl.int32))


@triton.jit
def read_kernel(
    dense, sparse, begins, blocks, segments, scales, places, bitmap, bases, divisor, out, counts,
    rows, first, dense_tiles, ROWS: tl.constexpr
):  # fmt: skip
    """Write all results: 0 where nothing is sent, NaN if not finite; add dense sums' non-zeros to `counts`.

    The first programs read the dense rows. One launch writes all results: it fails before it writes any.
    """
    program = tl.program_id(0)
    if program < dense_tiles:
        row = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        element, inside = _elements(begins, row, first)
        block, segment = _place(blocks, segments, row, first)
        scale, sent, not_finite = scales_of(scales, block)
        at = tl.load(places + row, mask=row < first, other=0)[:, None] + tl.arange(0, WORD_BITS)[None, :]
        number = tl.load(dense + at, mask=inside & sent[:, None], other=0)
        _add(counts, segment, tl.sum((number != 0).to(tl.int32), axis=1))
        write_floats(number, scale, not_finite, divisor, out, element, inside)
    else:
        word, bits, rank = _candidates(bitmap, bases, program - dense_tiles, rows - first, ROWS)
        element, inside = _elements(begins, first + word, rows)
        block, _ = _place(blocks, segments, first + word, rows)
        scale, _, not_finite = scales_of(scales, block)
        number = tl.load(sparse + rank, mask=inside & (bits != 0), other=0)
        write_floats(number, scale, not_finite, divisor, out, element, inside)
