"""The segments of a step on the GPU: `SegmentCodec` in Triton, one launch a phase for any number of tensors.

The host reads the words of scales, and three counts of each segment. Tensors that are contiguous with each
other are not copied.

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
from peelsum.codec.fixed_point import NON_FINITE, ZERO, fixed_point
from peelsum.codec.gpu import launch
from peelsum.codec.gpu.index import list_positions, totals
from peelsum.codec.gpu.launch import BLOCK, SCANNED_WORDS, TILE_WORDS, empty, tiles_of
from peelsum.codec.gpu.memory import copy_to_device, stream_of
from peelsum.codec.gpu.scales import (
    NON_FINITE_SCALE,
    ZERO_SCALE,
    fixed_number,
    scales_of,
    write_floats,
    write_words,
)
from peelsum.codec.gpu.words import (
    WORD_BITS,
    atomic_max_if_larger,
    one_per_thread,
    packed,
    popcount,
    ranks,
    unpacked,
)
from peelsum.codec.segments import ROW, Counts, SegmentTable

#: Warps of the pass over all rows: the fastest of sixteen launches on an H100.
_MEASURE_WARPS = 2
#: Warps of programs that compute numbers of 64 rows, and of 128: 8 elements a thread, for which registers
#: suffice.
_MANY_WARPS, _MOST_WARPS = 8, 16


class Rows(NamedTuple):
    """The rows of a table of segments, as tensors on a device."""

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
_ROWS: WeakKeyDictionary[SegmentTable, dict[tuple[torch.device, int], Rows]] = WeakKeyDictionary()


class GpuSegments:
    """Encodes the tensors of one step, and decodes their sums, by kernels: a `SegmentCodec`."""

    def __init__(
        self, table: SegmentTable, values: Sequence[Tensor], out: Sequence[Tensor | None], workers: int
    ) -> None:
        self._table, self._out = table, out
        self._device = values[0].device
        self._devices = [tensor.device for tensor in values]
        self._values, self._shared = _concatenated(values)
        self._in_place = self._shared and all(a is b for a, b in zip(values, out, strict=True))
        self._rows = _rows(table, stream_of(self._device))
        self._highest = fixed_point(0, workers).scale
        self.fields = self.scales = np.empty(0, np.int32)
        #: The scales, and where each row's numbers begin, on the device; None until they are needed there.
        self._row_numbers: tuple[Tensor, Tensor] | None = None
        #: The `totals` of the candidates' bitmap.
        self._bases = torch.zeros(1, dtype=torch.int64, device=self._device)
        #: int64[2, segments]: this worker's non-zeros, and non-zeros of dense sums.
        self._counts = torch.zeros(2, len(table), dtype=torch.int64, device=self._device)
        #: Whether this worker's dense and sparse numbers have been written, and counted.
        self._counted = [False, False]
        self.sent = np.zeros(len(table), np.int64)

    def write_scales(self, out: Tensor) -> Tensor:
        """Write the words that agree on scales, of segments and of blocks; return the bitmap of non-zeros."""
        bitmap = self._empty(self._table.words)
        rows, count = self._rows, len(self._table)
        magnitudes = torch.zeros(out.numel(), dtype=torch.int32, device=self._device)
        largest, of_blocks = magnitudes[:count], magnitudes[count:]
        launch.run(
            measure_kernel, tiles_of(rows.number, TILE_WORDS),
            self._bits, *rows[:3], largest, of_blocks, bitmap, rows.number, rows.first, TILE_WORDS,
            num_warps=_MEASURE_WARPS,
        )  # fmt: skip
        write_words(largest, of_blocks, rows.segments, out)
        return bitmap

    def read_scales(self, words: Words) -> None:
        """Set `fields` and `scales` from the OR of all workers' words."""
        self.set_scales(*read_scales(words, self._table.blocks, self._highest))

    def set_scales(self, fields: Integers, scales: Integers) -> None:
        """Set `fields` and `scales`, instead of those that `read_scales` computed."""
        self.fields, self.scales, self._row_numbers = fields, scales, None
        self._absent = (self.fields == ZERO) | (self.fields == NON_FINITE)
        self.sent = np.where(self._absent, 0, self._table.elements)

    def _scales_and_begins(self) -> tuple[Tensor, Tensor]:
        """Return the blocks' scales, and where each row's numbers begin, on the device."""
        if self._row_numbers is None:
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
                places = copy_to_device(begins, self._device)
            self._row_numbers = copy_to_device(scales, self._device), places
        return self._row_numbers

    def values_at(self, elements: Numbers) -> Floats:
        """Return this worker's values of elements, numbered over all segments. Waits for the device."""
        values: Floats = self._values[copy_to_device(elements, self._device)].cpu().numpy()
        return values

    def set_candidates(self, union: Tensor) -> tuple[int, int]:
        """Set the candidates to those of a bitmap; return how many dense and sparse integers are sent.

        Waits for the device.
        """
        dense, rows = self._table.dense, self._rows
        self._union = union
        if union.numel():
            self._bases = totals(union)
        if len(self._table) > dense:
            counts = torch.zeros(len(self._table), dtype=torch.int64, device=self._device)
            launch.run(
                count_kernel, tiles_of(rows.number - rows.first, SCANNED_WORDS),
                union, rows.blocks, rows.segments, counts, rows.number, rows.first, SCANNED_WORDS,
                num_warps=_MOST_WARPS,
            )  # fmt: skip
            self.sent[dense:] = counts.cpu().numpy()[dense:]
        return int(self.sent[:dense].sum()), int(self.sent[dense:].sum())

    def write_dense(self, out: Tensor) -> None:
        """Write the integers of the dense segments, end to end."""
        if self._counted[0]:
            self._counts[0, : self._table.dense] = 0
        self._counted[0] = True
        rows = self._rows
        launch.run(
            write_dense_kernel, tiles_of(rows.first, TILE_WORDS),
            self._bits, *rows[:3], *self._scales_and_begins(), out, self._counts[0], rows.first, TILE_WORDS,
            num_warps=_MANY_WARPS,
        )  # fmt: skip

    def gather(self, out: Tensor) -> None:
        """Write the integers of the candidates, in order."""
        if self._counted[1]:
            self._counts[0, self._table.dense :] = 0
        self._counted[1] = True
        rows, k, positions = self._rows, len(out), empty(len(out), self._union, torch.int64)
        list_positions(self._union, ROW * self._union.numel(), self._bases, positions)
        launch.run(
            gather_kernel, tiles_of(k, BLOCK),
            self._bits, *rows[:3], self._scales_and_begins()[0], positions, out, self._counts[0], k,
            rows.number, rows.first, BLOCK,
        )  # fmt: skip

    def decode(
        self, dense: Tensor, sparse: Tensor, divisor: int, overflow: tuple[Numbers, Floats] | None = None
    ) -> Sequence[Tensor]:
        """Return each segment's result, from the sums of its integers."""
        reuse = self._in_place or not self._shared
        flat = self._values if reuse else torch.empty_like(self._values)
        parts = torch.split(flat, self._table.elements.tolist())
        # Allocate before results are written over tensors: without memory, the step starts again from them.
        results = [
            out
            if out is not None
            else part
            if part.device == device
            else torch.empty_like(part, device=device)
            for part, out, device in zip(parts, self._out, self._devices, strict=True)
        ]
        places = *self._scales_and_begins(), self._union, self._bases
        corrections = (
            None if overflow is None else [copy_to_device(array, self._device) for array in overflow]
        )
        self._values = self._empty(0)  # a caller may keep results for long, and them alone
        rows = self._rows
        dense_tiles = tiles_of(rows.first, SCANNED_WORDS)
        launch.run(
            read_kernel, dense_tiles + tiles_of(rows.number - rows.first, SCANNED_WORDS),
            dense, sparse, *rows[:3], *places, divisor, flat, self._counts[1],
            rows.number, rows.first, dense_tiles, SCANNED_WORDS, num_warps=_MOST_WARPS,
        )  # fmt: skip
        pairs = [(a, b) for a, b in zip(results, parts, strict=True) if a is not b and not self._in_place]
        with torch.inference_mode():  # tensors may have been made in it, and are then read-only elsewhere
            if corrections is not None:
                flat.index_copy_(0, *corrections)
            if pairs:
                torch._foreach_copy_([result for result, _ in pairs], [part for _, part in pairs])
        return results

    def counts(self) -> Counts:
        """Return the counts of each segment's non-zeros and sent numbers. Waits for the device."""
        local, sums = self._counts.cpu().numpy()
        return Counts(local, sums, self.sent)

    def occupied(self, sparse: Tensor, selected: Numbers) -> Numbers:
        """Count the blocks of 2**b elements with a sum that is not 0, in the selected sparse segments.

        The host counts them, from copies of the bitmap and the sums.
        """
        union = self._union.cpu().numpy().view(np.uint32)
        return occupied(self._table, union, sparse.cpu().numpy(), selected)

    @property
    def _bits(self) -> Tensor:
        return self._values.view(torch.int32)

    def _empty(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int32, device=self._device)


def _concatenated(values: Sequence[Tensor]) -> tuple[Tensor, bool]:
    """Return the tensors end to end as one, and whether it shares their memory.

    It does if each tensor begins in memory where the one before it ends.
    """
    first, offset = values[0], values[0].storage_offset()
    # Its identity, because another storage, of another size, may begin at the same address.
    storage = first.untyped_storage()._cdata
    for tensor in values:
        if tensor.untyped_storage()._cdata != storage or tensor.storage_offset() != offset:
            break
        offset += tensor.numel()
    else:
        return first.as_strided((offset - first.storage_offset(),), (1,)), True
    return torch.cat([tensor.to(first.device) for tensor in values]), False


def _rows(table: SegmentTable, stream: tuple[torch.device, int]) -> Rows:
    """Return a table's rows on a device, which are cached for each stream as long as the table exists."""
    cached = _ROWS.setdefault(table, {})
    if stream not in cached:
        segments = np.repeat(np.arange(len(table)), np.diff(table.blocks)).astype(np.int32)
        arrays = table.begin_of_row, table.block_of_row.astype(np.int32), segments
        begins, blocks, of_blocks = (copy_to_device(array, stream[0]) for array in arrays)
        first = int(table.rows[table.dense])
        cached[stream] = Rows(begins, blocks, of_blocks, int(table.rows[-1]), first)
    return cached[stream]


@triton.jit
def _elements(begins, row, rows):
    """Return the elements of rows, int64[r, 32], and which of these exist: a row may have fewer."""
    begin = tl.load(begins + row, mask=row < rows, other=0)
    end = tl.load(begins + row + 1, mask=row < rows, other=0)
    element = begin[:, None] + tl.arange(0, WORD_BITS)[None, :]
    return element, element < end[:, None]


@triton.jit
def _add_counts(counts, segment, count):
    """Add count[r] to counts[segment[r]]: by one atomic operation, if all rows are of one segment."""
    first, last = tl.min(segment, axis=0), tl.max(segment, axis=0)
    if first == last:
        tl.atomic_add(counts + first, tl.sum(count, axis=0).to(tl.int64), sem="relaxed")
    else:
        tl.atomic_add(counts + segment, count.to(tl.int64), mask=count != 0, sem="relaxed")


@triton.jit
def _block_and_segment(blocks, segments, row, rows):
    """Return the rows' blocks and segments."""
    block = tl.load(blocks + tl.minimum(row, rows - 1))
    return block, tl.load(segments + block)


@triton.jit
def measure_kernel(
    values, begins, blocks, segments, largest, magnitudes, bitmap, rows, first, ROWS: tl.constexpr
):
    """Write the largest magnitude of each block and of each segment, and the bitmap of the sparse rows.

    magnitudes[blocks] and largest[segments] must be zero.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    element, inside = _elements(begins, row, rows)
    magnitude = tl.load(values + element, mask=inside, other=0) & 0x7FFFFFFF
    of_row = tl.max(magnitude, axis=1)
    block, segment = _block_and_segment(blocks, segments, row, rows)
    tl.atomic_max(magnitudes + block, of_row, mask=of_row != 0, sem="relaxed")
    start, end = tl.min(segment, axis=0), tl.max(segment, axis=0)
    if start == end:
        atomic_max_if_larger(largest + start, tl.max(of_row, axis=0))
    else:
        tl.atomic_max(largest + segment, of_row, mask=of_row != 0, sem="relaxed")
    word = row - first
    tl.store(bitmap + word, packed(magnitude != 0), mask=(row >= first) & (row < rows))


@triton.jit
def count_kernel(bitmap, blocks, segments, counts, rows, first, ROWS: tl.constexpr):
    """Add the set bits of the sparse rows' words to counts[segments]."""
    word = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    count = popcount(tl.load(bitmap + word, mask=word < rows - first, other=0))
    _, segment = _block_and_segment(blocks, segments, first + word, rows)
    _add_counts(counts, segment, count)


@triton.jit
def write_dense_kernel(
    values, begins, blocks, segments, scales, places, out, local_counts, first, ROWS: tl.constexpr
):
    """Write the numbers of each row r with a scale to out[places[r]:]; count each segment's non-zeros."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    element, inside = _elements(begins, row, first)
    block, segment = _block_and_segment(blocks, segments, row, first)
    scale, has_scale, _ = scales_of(scales, block)
    inside &= has_scale[:, None]
    value = tl.load(values + element, mask=inside, other=0).to(tl.float32, bitcast=True)
    number = tl.where(inside, fixed_number(value, scale[:, None]).to(tl.int32), 0)
    at = tl.load(places + row, mask=row < first, other=0)[:, None] + tl.arange(0, WORD_BITS)[None, :]
    tl.store(out + at, number, mask=inside)
    _add_counts(local_counts, segment, tl.sum((number != 0).to(tl.int32), axis=1))


@triton.jit
def _candidates(bitmap, bases, tile, rows, ROWS: tl.constexpr):
    """Return the positions of a tile's words, their bits, and the rank of each bit among all candidates."""
    word = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    words = tl.load(bitmap + word, mask=word < rows, other=0)
    bits = unpacked(words)
    return word, bits, ranks(words, bases, tile)[:, None] + tl.cumsum(bits, axis=1) - bits


@triton.jit
def gather_kernel(
    values, begins, blocks, segments, scales, positions, out, local_counts, candidates, rows, first,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Write the candidates' numbers in order; count the non-zeros of each segment.

    positions: of the candidates in the sparse vector's bitmap.
    """
    t = one_per_thread(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    inside = t < candidates
    position = tl.load(positions + t, mask=inside, other=0)
    row = first + position // WORD_BITS
    block, segment = _block_and_segment(blocks, segments, row, rows)
    scale, _, _ = scales_of(scales, block)
    element = tl.load(begins + row, mask=inside, other=0) + position % WORD_BITS
    value = tl.load(values + element, mask=inside, other=0).to(tl.float32, bitcast=True)
    number = fixed_number(value, scale).to(tl.int32)
    tl.store(out + t, number, mask=inside)
    _add_counts(local_counts, segment, (inside & (number != 0)).to(tl.int32))


@triton.jit
def read_kernel(
    dense, sparse, begins, blocks, segments, scales, places, bitmap, bases, divisor, out, counts,
    rows, first, dense_tiles, ROWS: tl.constexpr
):  # fmt: skip
    """Write all results: 0 where nothing is sent, NaN if not finite; count the non-zeros of dense sums.

    The first programs read the dense rows. A single launch writes all results, so if it fails, none is
    written.
    """
    program = tl.program_id(0)
    if program < dense_tiles:
        row = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        element, inside = _elements(begins, row, first)
        block, segment = _block_and_segment(blocks, segments, row, first)
        scale, has_scale, not_finite = scales_of(scales, block)
        at = tl.load(places + row, mask=row < first, other=0)[:, None] + tl.arange(0, WORD_BITS)[None, :]
        number = tl.load(dense + at, mask=inside & has_scale[:, None], other=0)
        _add_counts(counts, segment, tl.sum((number != 0).to(tl.int32), axis=1))
        write_floats(number, scale, not_finite, divisor, out, element, inside)
    else:
        word, bits, rank = _candidates(bitmap, bases, program - dense_tiles, rows - first, ROWS)
        element, inside = _elements(begins, first + word, rows)
        block, _ = _block_and_segment(blocks, segments, first + word, rows)
        scale, _, not_finite = scales_of(scales, block)
        number = tl.load(sparse + rank, mask=inside & (bits != 0), other=0)
        write_floats(number, scale, not_finite, divisor, out, element, inside)
