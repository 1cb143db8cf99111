"""The segments of a step on the GPU: `SegmentCodec` in Triton, one launch a phase for any number of tensors.

Kernels go over tiles, up to 4,096 elements of one segment each: `Tiles` says where. The host reads the words
of scales, and one small record of counts. Tensors that are contiguous with each other are not copied. Values
are given as bit patterns.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from peelsum.codec.arrays import Floats, Integers, Numbers, Words
from peelsum.codec.cpu.scales import read_scales
from peelsum.codec.fixed_point import NON_FINITE, ZERO, fixed_point
from peelsum.codec.gpu import launch
from peelsum.codec.gpu.index import SCAN_WARPS, count_before, load_bits, scan_bits, write_positions
from peelsum.codec.gpu.launch import SCANNED_WORDS, empty, kernel
from peelsum.codec.gpu.memory import ALIGNED_WORDS, copy_to_device
from peelsum.codec.gpu.sketch import PeelMemory, add_to_sketch, load_candidates, peel
from peelsum.codec.gpu.words import (
    NON_FINITE_SCALE,
    WORD_BITS,
    ZERO_SCALE,
    as_int64,
    block_words,
    fixed_number,
    float_of,
    one_per_thread,
    packed,
    popcount,
    ranks,
    scales_of,
    segment_word,
    unpacked,
)
from peelsum.codec.layout import BLOCK_SIZES, MOST_CANDIDATES, SketchLayout
from peelsum.codec.segments import ROW, Counts, SegmentTable

#: Rows of a tile: those of the largest block that is counted for the choice of an index.
TILE_ROWS = SCANNED_WORDS
#: Columns of the table of tiles: the segment; the first element, and how many there are; the first block, and
#: log2 of a block's rows; the first word in the bitmap; whether the tile is its segment's first.
_SEGMENT, _ELEMENT, _COUNT, _BLOCK, _BLOCK_BITS, _WORD, _FIRST = map(tl.constexpr, range(7))
_COLUMNS = tl.constexpr(7)
#: The record, int64: how many candidates were peeled; then rows of a number for each segment. These are the
#: fields of `Counts`, and the occupied blocks of each size.
_ROWS = tl.constexpr(1)
_LOCAL, _SENT, _SUMS, _OCCUPIED = map(tl.constexpr, range(4))
_RECORD_ROWS = 3 + BLOCK_SIZES
#: Parts of a step's memory that is zero at first. The record consists of the five parts behind it.
_RECORD, _PEELED, _LOCAL_DENSE, _LOCAL_SPARSE, _CANDIDATES, _RESULTS = range(6)
_BASES, _SKIPPED, _PROGRESS, _MAGNITUDES, _PEELING = range(6, 11)
#: Rows that a program measures or adds to a sketch at once, and its warps; warps of those that write numbers.
#: The first two were fastest of sixteen launches on an H100; the last give 8 elements to a thread.
_MEASURED_ROWS, _MEASURE_WARPS, _SKETCHED_ROWS, _SKETCH_WARPS, _MOST_WARPS = 64, 2, 16, 4, 16
#: Candidates that a thread of a scan adds to a sketch's cells, times its threads.
_LOADED = 32 * SCAN_WARPS


class Tiles(NamedTuple):
    """The tiles of a table of segments: those of the dense segments, then those of the sparse ones."""

    table: Tensor
    """int64[tiles, 7] on the device."""
    dense: int
    """How many are of dense segments."""
    sparse: int
    """How many are of sparse segments."""


#: Of how many more candidates than in a table's last step there is room: this share of them, and so many.
_SPARE_SHARE, _SPARE = 4, 64


class GpuSegments:
    """Encodes the tensors of one step, and decodes their sums, by kernels: a `SegmentCodec`.

    A step in one round is written by `write_ahead` and read by `decode_ahead`, without a wait in between. The
    other methods are for steps whose sizes the host must know first.
    """

    def __init__(
        self, table: SegmentTable, values: Sequence[Tensor], out: Sequence[Tensor | None], workers: int
    ) -> None:
        self._table, self._tensors, self._out = table, values, out
        self._segments = len(table.segments)
        self._device = values[0].device
        self._values, self._shared = _concatenated(values)
        self._bits = self._values.view(torch.int32)
        self._in_place = self._shared and all(map(operator.is_, values, out))
        self._tiles = _tiles(table, self._device)
        self._highest = fixed_point(0, workers).scale
        self.fields = self.scales = np.empty(0, np.int32)
        self.sent = np.zeros(self._segments, np.int64)
        #: The scales, or the words that they are decoded from; and how many numbers are not sent before each
        #: segment: on the device, if known there.
        self._on_device: tuple[Tensor, Tensor] | None = None
        self._decoded = True
        #: The parts of `_zeros` that are not zero any more.
        self._used: set[int] = set()
        #: The layout of the sketch, and its width and segments for kernels.
        self._sketch: SketchLayout | None = None
        self._shape = 1, 1
        self._union = self._bits
        #: The candidates' positions, once they are listed.
        self._positions: Tensor | None = None
        #: The rows of the record on the host, once they are complete.
        self._record: NDArray[np.int64] | None = None
        #: What `_write_results` returned.
        self._written: tuple[Tensor, list[Any], list[tuple[Tensor, Tensor]]] | None = None

    def write_scales(self, out: Tensor, bitmap: Tensor | None = None) -> Tensor:
        """Write the words that agree on scales, of segments and of blocks; return the bitmap of non-zeros.

        bitmap: to which that is written, or None.
        """
        if bitmap is None:
            bitmap = empty(self._table.words, self._values)
        self._encode(out, bitmap, (self._values,) * 4, False, _MEASURED_ROWS, _MEASURE_WARPS)
        return bitmap

    def write_ahead(
        self, out: Tensor, bitmap: Tensor, scales: Integers, layout: SketchLayout, dense: Tensor,
        sketch: Tensor,
    ) -> None:  # fmt: skip
        """Do what `write_scales` does, and write all numbers in the same pass, by `scales` on the host.

        dense: for those of all dense segments, int32[elements]. sketch: for the sketch of the sparse ones,
        zero before; empty without any.
        """
        seed, scales_there = copy_to_device(self._device, np.array([layout.seed], np.uint64), scales)
        self._seed = seed.view(torch.int64)
        rows, warps = _MEASURED_ROWS, 2 * _MEASURE_WARPS
        if sketch.numel():
            self._sketch, self._shape = layout, (layout.width, layout.segments)
            rows, warps = _SKETCHED_ROWS, _SKETCH_WARPS
        self._ahead = scales_there, self._zeros[_SKIPPED]
        self._encode(out, bitmap, (scales_there, dense, sketch, self._seed), True, rows, warps)

    def _encode(
        self, out: Tensor, bitmap: Tensor, numbers: tuple[Tensor, ...], ahead: bool, rows: int, warps: int
    ) -> None:
        """Measure all values; if `ahead`, write numbers. numbers: scales, dense numbers, sketch, and seed."""
        tiles, segments = self._tiles, self._segments
        self._zeroed(*[_MAGNITUDES, _LOCAL_DENSE] if ahead else [_MAGNITUDES])
        programs, magnitudes = tiles.dense + tiles.sparse, self._zeros[_MAGNITUDES].view(torch.int32)
        launch.run(
            encode_kernel, programs,
            self._bits, tiles.table, magnitudes, bitmap, *numbers, self._zeros[_RECORD],
            *self._shape, segments, tiles.dense, ahead, rows, TILE_ROWS, num_warps=warps,
        )  # fmt: skip
        launch.run(words_kernel, programs, magnitudes, tiles.table, out, segments, TILE_ROWS)

    def read_scales(self, words: Words) -> None:
        """Set `fields` and `scales` from the OR of all workers' words."""
        self.set_scales(*read_scales(words, self._table.blocks, self._highest))

    def use_words(self, words: Tensor) -> None:
        """Let kernels decode the scales from words on the device: those that `read_scales` has read."""
        self._on_device, self._decoded = (words, self._skipped()), False

    def set_scales(self, fields: Integers, scales: Integers) -> None:
        """Set `fields` and `scales`, instead of those that `read_scales` computed."""
        self.fields, self.scales, self._on_device, self._decoded = fields, scales, None, True
        self._absent = (fields == ZERO) | (fields == NON_FINITE)
        self.sent = self._table.elements * ~self._absent

    def _scales(self) -> tuple[Tensor, Tensor]:
        """Return the blocks' scales, and how many numbers are not sent before each segment, on the device."""
        if self._on_device is None:
            self._on_device = self._copied_scales(), self._skipped()
        return self._on_device

    def _copied_scales(self) -> Tensor:
        """Return the scales on the device, with marks where no numbers are sent."""
        scales = self.scales
        if self._absent.any():
            marks = np.where(self.fields == NON_FINITE, NON_FINITE_SCALE, ZERO_SCALE).astype(np.int32)
            blocks = np.diff(self._table.blocks)
            scales = np.where(np.repeat(self._absent, blocks), np.repeat(marks, blocks), scales)
        return copy_to_device(self._device, scales)[0]

    def _skipped(self) -> Tensor:
        """Return how many numbers of dense segments are not sent before each segment, on the device."""
        if True not in self._absent[: self._table.dense]:
            return self._zeros[_SKIPPED]
        missing = np.where(self._absent, self._table.elements, 0)
        return copy_to_device(self._device, np.cumsum(missing) - missing)[0].view(torch.int64)

    def values_at(self, elements: Numbers) -> Floats:
        """Return this worker's values of elements, numbered over all segments. Waits for the device."""
        (at,) = copy_to_device(self._device, elements)
        values: Floats = self._values[at.view(torch.int64)].cpu().numpy()
        return values

    def set_candidates(self, union: Tensor) -> tuple[int, int]:
        """Set the candidates to those of a bitmap; return how many dense and sparse integers are sent.

        Bits beyond a segment's end are cleared in it. Waits for the device.
        """
        dense = self._table.dense
        if self._segments > dense:
            self._scan(union)
            self.sent[dense:] = self._read_record()[1][_SENT.value, dense:]
        return int(np.add.reduce(self.sent[:dense])), int(np.add.reduce(self.sent[dense:]))

    def _scan(
        self, union: Tensor, memory: PeelMemory | None = None, positions: Tensor | None = None, room: int = 0
    ) -> None:
        """Count the candidates of a bitmap; with `memory`, list up to `room` of them, and load them."""
        self._union, self._positions, tiles = union, None, self._tiles
        self._zeroed(_PROGRESS, _CANDIDATES)
        loaded = (union,) * 6 if memory is None else (positions, *memory[:4], self._seed)
        launch.run(
            candidates_kernel, tiles.sparse,
            union, tiles.table, self._zeros[_PROGRESS], self._zeros[_BASES], self._zeros[_RECORD], *loaded,
            room, *self._shape, self._segments, tiles.dense, memory is not None,
            room > MOST_CANDIDATES, _LOADED, TILE_ROWS, num_warps=SCAN_WARPS,
        )  # fmt: skip

    def write_dense(self, out: Tensor) -> None:
        """Write the integers of the dense segments, end to end."""
        self._write(out, out, out, 0, self._tiles.dense, _LOCAL_DENSE)

    def gather(self, out: Tensor) -> None:
        """Write the integers of the candidates, in order."""
        self._write(out, out, out, self._tiles.dense, self._tiles.sparse, _LOCAL_SPARSE)

    def positions(self) -> Tensor:
        """Return the candidates' positions in the sparse vector: int64[k]."""
        if self._positions is None:
            count = int(np.add.reduce(self.sent[self._table.dense :]))
            self._positions = empty(count, self._values, torch.int64)
            if count:
                scan_bits(self._union, out=self._positions)
        return self._positions

    def write_numbers(self, union: Tensor) -> Tensor:
        """Set the candidates to those of a bitmap, as `set_candidates` does, but without waiting for counts.

        Return int32 words: all numbers of dense segments; those of as many candidates as there is room for;
        and in the last words, for `read_counts`, how many candidates each segment has.
        """
        dense: int = np.add.reduce(self.sent[: self._table.dense])
        room = dense + self._table.derived.get("room", 0)
        room += -room % ALIGNED_WORDS
        words = empty(room + self._segments, union)
        if self._tiles.sparse:
            self._scan(union)
        tiles = self._tiles.dense + self._tiles.sparse
        self._write(words[:dense], words[dense:room], words[room:], 0, tiles, _LOCAL_DENSE, _LOCAL_SPARSE)
        return words

    def read_counts(self, counts: Words) -> tuple[int, int]:
        """Set `sent` from the last words of `write_numbers`, on the host; return what `set_candidates` does.

        These tensors' next numbers get room for somewhat more candidates than there are.
        """
        dense = self._table.dense
        self.sent[dense:] = counts[dense:]
        candidates = int(np.add.reduce(self.sent[dense:]))
        self._table.derived["room"] = candidates + candidates // _SPARE_SHARE + _SPARE
        return int(np.add.reduce(self.sent[:dense])), candidates

    def _write(
        self, dense: Tensor, sparse: Tensor, counts: Tensor, first: int, count: int, *counted: int
    ) -> None:
        """Write the numbers of some tiles, of no more candidates than there is room for.

        counts: for each segment's candidates, unless it is `sparse`. counted: the parts of the record.
        """
        self._zeroed(*counted)
        launch.run(
            numbers_kernel, count,
            self._bits, self._tiles.table, *self._scales(), self._union,
            self._zeros[_BASES], dense, sparse, counts, self._zeros[_RECORD], sparse.numel(), self._segments,
            first, self._tiles.dense, self._highest, self._decoded, counts is not sparse, TILE_ROWS,
            num_warps=_MOST_WARPS,
        )  # fmt: skip

    def decode_ahead(
        self, dense: Tensor, sketch: Tensor, union: Tensor, room: int, divisor: int
    ) -> tuple[Tensor, Tensor] | None:
        """Peel the sketch, and decode all, if that leaves nothing over and there are up to `room` candidates.

        Return the candidates' sums and this worker's numbers; or None, before any result is written. The
        scales must be those of `write_ahead`. Waits for the device once.
        """
        sums = local = dense[:0]
        # Where all are 0, it does not matter by which scale.
        self._on_device = self._ahead
        if NON_FINITE in self.fields:
            self._on_device = self._copied_scales(), self._ahead[1]
        if self._sketch is not None:
            sums, local = empty(2 * room, union).split_with_sizes([room, room])
            positions = empty(room, union, torch.int64)
            memory = PeelMemory.of(self._sketch, self._zeros[_PEELING], room, sums)
            self._scan(union, memory, positions, room)
            peel(self._sketch, self._seed, sketch, positions, memory, self._zeros[_RECORD])
        self._written = self._write_results(dense, sums, divisor, local)
        peeled, record = self._read_record()
        sent = record[_SENT.value, self._table.dense :]
        candidates = int(np.add.reduce(sent))
        if candidates > room or candidates != peeled:
            self._on_device = self._written = None
            return None
        self.sent[self._table.dense :], self._record = sent, record
        return sums[:candidates], local[:candidates]

    def decode(
        self, dense: Tensor, sparse: Tensor, divisor: int, overflow: tuple[Numbers, Floats] | None = None
    ) -> Sequence[Tensor]:
        """Return each segment's result, from the sums of its integers."""
        # Without memory for the corrections, the step starts again from the tensors.
        corrections = overflow and copy_to_device(self._device, *overflow)
        flat, results, copies = self._written or self._write_results(dense, sparse, divisor, sparse)
        if corrections or copies:
            with torch.inference_mode():  # tensors may have been made in it: read-only elsewhere
                if corrections:
                    elements, floats = corrections
                    flat.index_copy_(0, elements.view(torch.int64), floats.view(torch.float32))
                if copies:
                    torch._foreach_copy_([out for out, _ in copies], [part for _, part in copies])
        # A caller may keep results for long, and them alone.
        del self._values, self._bits, self._union, self._tensors, self._written
        return results

    def _write_results(
        self, dense: Tensor, sparse: Tensor, divisor: int, local: Tensor
    ) -> tuple[Tensor, list[Any], list[tuple[Tensor, Tensor]]]:
        """Write all results end to end; return them so, and each; and to which of these parts must be copied.

        Allocate before results are written over tensors: without memory, the step starts again from them.
        local: for this worker's numbers of the candidates; `sparse` if they are written already.
        """
        flat = self._values if self._in_place or not self._shared else torch.empty_like(self._values)
        results, copies = [*self._out], list[tuple[Tensor, Tensor]]()
        parts = () if self._in_place else flat.split_with_sizes(self._table.elements.tolist())
        for s, part in enumerate(parts):
            out, device = results[s], self._tensors[s].device
            if out is None:
                out = results[s] = part if device == part.device else torch.empty_like(part, device=device)
            if out is not part:
                copies.append((out, part))
        tiles = self._tiles
        launch.run(
            results_kernel, tiles.dense + tiles.sparse,
            self._bits, dense, sparse, tiles.table, *self._scales(), self._union,
            self._zeros[_BASES], flat, local, self._zeros[_RECORD], sparse.numel(), self._segments,
            tiles.dense, tiles.sparse, self._highest, divisor, self._decoded, local is not sparse, TILE_ROWS,
            num_warps=_MOST_WARPS,
        )  # fmt: skip
        return flat, results, copies

    def counts(self) -> Counts:
        """Return the counts of each segment's non-zeros and sent numbers. Waits for the device."""
        if self._record is None:
            _, self._record = self._read_record()
        return Counts(self._record[_LOCAL.value], self._record[_SUMS.value], self.sent)

    def occupied(self, sparse: Tensor, selected: Numbers) -> Numbers:
        """Count the blocks of 2**b elements with a sum that is not 0, in the selected sparse segments.

        `counts` must have been called. The counts of other segments are 0.
        """
        assert self._record is not None
        counts: Numbers = self._record[_OCCUPIED.value :].T * (selected != 0)[:, None]
        return counts

    @cached_property
    def _zeros(self) -> Sequence[Tensor]:
        """The parts of a step's memory that is zero at first: int64."""
        segments, dense, sparse = self._segments, self._table.dense, self._tiles.sparse
        magnitudes = (segments + int(self._table.blocks[-1]) + 1) // 2
        peeling = PeelMemory.zeros(self._sketch) if self._sketch else 0
        record = [_ROWS.value, dense, segments - dense, segments, (1 + BLOCK_SIZES) * segments]
        sizes = [*record, sparse + 1, segments, sparse + 1, magnitudes, peeling]
        memory = torch.zeros(sum(sizes), dtype=torch.int64, device=self._device)
        return memory.narrow(0, 0, sum(record)), *memory.split_with_sizes(sizes)

    def _zeroed(self, *parts: int) -> None:
        """Zero those parts of `_zeros` that were used before."""
        for part in parts:
            if part in self._used:
                self._zeros[part].zero_()
            self._used.add(part)

    def _read_record(self) -> tuple[int, NDArray[np.int64]]:
        """Return how many candidates were peeled, and the rows, on the host. Waits for the device."""
        record = self._zeros[_RECORD].cpu().numpy()
        return int(record[0]), record[_ROWS.value :].reshape(_RECORD_ROWS, -1)


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


def _tiles(table: SegmentTable, device: torch.device) -> Tiles:
    """Return a table's tiles on a device. They are cached: a plan's table is the same in every step.

    A stream waits only for copies that it makes itself, so each has tiles of its own.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key, cached = (device, stream), table.derived
    if key not in cached:
        size = ROW * TILE_ROWS
        counts = -(-table.elements // size)
        segment = np.repeat(np.arange(len(table)), counts)
        begin = size * (np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts))
        rows = np.empty((len(segment), _COLUMNS.value), np.int64)
        rows[:, _SEGMENT.value], rows[:, _FIRST.value] = segment, begin == 0
        rows[:, _ELEMENT.value] = table.begins[segment] + begin
        rows[:, _COUNT.value] = np.minimum(table.elements[segment] - begin, size)
        rows[:, _BLOCK.value] = table.blocks[segment] + begin // table.block[segment]
        rows[:, _BLOCK_BITS.value] = np.log2(table.block[segment] // ROW)
        rows[:, _WORD.value] = table.rows[segment] - table.rows[table.dense] + begin // ROW
        dense = int(counts[: table.dense].sum())
        (on_device,) = copy_to_device(device, rows.reshape(-1))
        cached[key] = Tiles(on_device.view(torch.int64), dense, len(segment) - dense)
    tiles: Tiles = cached[key]
    return tiles


@triton.jit
def _place(tiles, tile):
    """Return of a tile the segment, first element, number of elements, first block, its log2, first word."""
    row = tiles + as_int64(tile) * _COLUMNS
    segment, element, count = tl.load(row + _SEGMENT), tl.load(row + _ELEMENT), tl.load(row + _COUNT)
    bits = tl.load(row + _BLOCK_BITS).to(tl.int32)
    return segment, element, count, tl.load(row + _BLOCK), bits, tl.load(row + _WORD)


@triton.jit
def _non_zeros(numbers):
    """Count the numbers of a tile that are not 0."""
    return tl.sum(tl.sum((numbers != 0).to(tl.int32), axis=1), axis=0)


@triton.jit
def _add(counts, count):
    """Add a number, if it is not 0, to counts[0]."""
    tl.atomic_add(counts, count.to(tl.int64), mask=count != 0, sem="relaxed")


@kernel
def encode_kernel(
    values, tiles, magnitudes, bitmap, scales, dense, sketch, seed, record, width, sketch_segments, segments,
    dense_tiles, AHEAD: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write the largest magnitude of each segment and each block, and the bitmap of the sparse segments.

    magnitudes[segments + blocks] must be zero. AHEAD: also write the numbers of dense segments by `scales`,
    count those that are not 0, and add the numbers of sparse ones to `sketch`.
    """
    tile = tl.program_id(0)
    segment, element, count, first_block, bits, word = _place(tiles, tile)
    largest, local = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    for start in range(0, (count + WORD_BITS - 1) // WORD_BITS, ROWS):
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
        inside, block = at < count, first_block + (row >> bits)
        value = tl.load(values + element + at, mask=inside, other=0)
        magnitude = value & 0x7FFFFFFF
        of_row = tl.max(magnitude, axis=1)
        tl.atomic_max(magnitudes + segments + block, of_row, mask=of_row != 0, sem="relaxed")
        largest = tl.maximum(largest, tl.max(of_row, axis=0))
        if tile >= dense_tiles:
            tl.store(bitmap + word + row, packed(magnitude != 0), mask=row * WORD_BITS < count)
        if AHEAD:
            scale = tl.load(scales + block, mask=row * WORD_BITS < count, other=0)
            number = fixed_number(value.to(tl.float32, bitcast=True), scale[:, None])
            number = tl.where(inside, number, 0)
            if tile < dense_tiles:
                tl.store(dense + element + at, number, mask=inside)
                local += _non_zeros(number)
            else:
                position = word * WORD_BITS + at
                add_to_sketch(sketch, tl.load(seed), position, number, width, sketch_segments)
    # Only tiles with a larger value execute the atomic.
    of_segment = magnitudes + segment
    tl.atomic_max(of_segment, largest, mask=largest > tl.load(of_segment), sem="relaxed")
    if AHEAD:
        _add(record + _ROWS + segment, local)


@kernel
def words_kernel(magnitudes, tiles, out, segments, TILE: tl.constexpr):
    """Write the words that agree on scales, of segments and blocks, from what `encode_kernel` wrote."""
    tile = tl.program_id(0)
    segment, _, count, first_block, bits, _ = _place(tiles, tile)
    of_segment = tl.load(magnitudes + segment)
    block = tl.arange(0, TILE)
    inside = (block << bits) * WORD_BITS < count
    place = segments + first_block + block
    magnitude = tl.load(magnitudes + place, mask=inside, other=0)
    tl.store(out + place, block_words(magnitude, of_segment), mask=inside)
    is_first = tl.load(tiles + as_int64(tile) * _COLUMNS + _FIRST) != 0
    tl.store(out + segment, segment_word(of_segment), mask=is_first)


@kernel
def candidates_kernel(
    bitmap, tiles, progress, bases, record, positions, state, held, waiting, numbers, seed, room, width,
    sketch_segments, segments, dense_tiles, LOADED: tl.constexpr, COUNTED: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr
):  # fmt: skip
    """Count the candidates before each tile of the bitmap, and those of each segment; clear other bits.

    LOADED: list the candidates up to `room`, and load them as `load_kernel` does.
    """
    tile = tl.atomic_add(progress, 1, sem="relaxed").to(tl.int64)
    segment, _, count, _, _, first = _place(tiles, dense_tiles + tile)
    at = tl.arange(0, TILE)
    words = load_bits(bitmap + first, at.to(tl.int64), count)
    tl.store(bitmap + first + at, words, mask=at * WORD_BITS < count)
    total = tl.sum(popcount(words), axis=0).to(tl.int64)
    before = count_before(progress, tile, total)
    tl.store(bases + tile, before)
    tl.store(bases + tile + 1, before + total, mask=tile == tl.num_programs(0) - 1)
    _add(record + _ROWS + _SENT * segments + segment, total)
    if LOADED:
        write_positions(words, before, positions, first * WORD_BITS, room)
        tl.debug_barrier()  # other threads of this program have written them
        end = tl.minimum(before + total, room)
        for start in range(before, end, BLOCK):
            t = one_per_thread(start, BLOCK)
            inside = t < end
            position = tl.load(positions + t, mask=inside, other=0)
            load_candidates(
                t, inside, position, state, held, waiting, numbers, tl.load(seed), width, sketch_segments,
                COUNTED, BLOCK,
            )  # fmt: skip


@triton.jit
def _candidates(bitmap, bases, first_word, count, tile, TILE: tl.constexpr):
    """Return a tile's candidates, 0 or 1 for each element, and the rank of each among all."""
    at = tl.arange(0, TILE)
    words = tl.load(bitmap + first_word + at, mask=at * WORD_BITS < count, other=0)
    bits = unpacked(words)
    return bits, ranks(words, bases, tile)[:, None] + tl.cumsum(bits, axis=1) - bits


@kernel
def numbers_kernel(
    values, tiles, scales, skipped, bitmap, bases, dense, sparse, counts, record, room, segments, first_tile,
    dense_tiles, highest, DECODED: tl.constexpr, COUNTED: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write the numbers of tiles, of up to `room` candidates; count each segment's non-zeros.

    skipped[segments]: how many elements of earlier dense segments have no numbers. COUNTED: also write how
    many candidates there are, counts[segments].
    """
    tile = first_tile + tl.program_id(0)
    segment, element, count, first_block, bits, word = _place(tiles, tile)
    row = tl.arange(0, TILE)
    at = row[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    block = tl.where(row * WORD_BITS < count, first_block + (row >> bits), first_block)
    scale, has_scale, _ = scales_of(scales, segment, block, segments, highest, DECODED)
    if tile < dense_tiles:
        chosen, out = (at < count) & has_scale[:, None], dense
        place = element - tl.load(skipped + segment) + at
    else:
        candidates, place = _candidates(bitmap, bases, word, count, tile - dense_tiles, TILE)
        chosen, out = (candidates != 0) & (place < room), sparse
    value = tl.load(values + element + at, mask=chosen, other=0).to(tl.float32, bitcast=True)
    number = tl.where(chosen, fixed_number(value, scale[:, None]), 0)
    tl.store(out + place, number, mask=chosen)
    _add(record + _ROWS + segment, _non_zeros(number))
    if COUNTED:
        is_first = tl.load(tiles + as_int64(tile) * _COLUMNS + _FIRST) != 0
        candidates_sent = tl.load(record + _ROWS + _SENT * segments + segment)
        tl.store(counts + segment, candidates_sent.to(tl.int32), mask=is_first)


@triton.jit
def _count_occupied(counts, stride, words, TILE: tl.constexpr):
    """Add how many blocks of 2**b elements hold a set bit of words[TILE] to counts[b * stride]."""
    held = words.to(tl.uint32, bitcast=True)
    for b in tl.static_range(6):
        if b > 0:
            held |= held >> (1 << (b - 1))
        occupied = (held & (0xFFFFFFFF // ((1 << (1 << b)) - 1))).to(tl.int32, bitcast=True)
        _add(counts + b * stride, tl.sum(popcount(occupied), axis=0))
    rows = (words != 0).to(tl.int32)
    for b in tl.static_range(6, 13):
        rows = tl.max(tl.reshape(rows, [TILE >> (b - 5), 2]), axis=1)
        _add(counts + b * stride, tl.sum(rows, axis=0))


@kernel
def results_kernel(
    values, dense, sparse, tiles, scales, skipped, bitmap, bases, out, local, record, room, segments,
    dense_tiles, sparse_tiles, highest, DIVISOR: tl.constexpr, DECODED: tl.constexpr, AHEAD: tl.constexpr,
    TILE: tl.constexpr
):  # fmt: skip
    """Write all results: 0 where nothing is sent, NaN if not finite; count sums that are not 0.

    A single launch writes all results, so if it fails, none is written. AHEAD: write nothing unless all
    candidates fit into `room` and were peeled; write and count this worker's numbers of the candidates.
    """
    tile = tl.program_id(0)
    segment, element, count, first_block, bits, word = _place(tiles, tile)
    row = tl.arange(0, TILE)
    at = row[:, None] * WORD_BITS + tl.arange(0, WORD_BITS)[None, :]
    if AHEAD:
        candidates = tl.load(bases + sparse_tiles)
        count = tl.where((candidates <= room) & (candidates == tl.load(record)), count, 0)
    inside = at < count
    block = tl.where(row * WORD_BITS < count, first_block + (row >> bits), first_block)
    scale, has_scale, not_finite = scales_of(scales, segment, block, segments, highest, DECODED)
    if tile < dense_tiles:
        place = element - tl.load(skipped + segment) + at
        number = tl.load(dense + place, mask=inside & has_scale[:, None], other=0)
        _add(record + _ROWS + _SUMS * segments + segment, _non_zeros(number))
    else:
        chosen, place = _candidates(bitmap, bases, word, count, tile - dense_tiles, TILE)
        number = tl.load(sparse + place, mask=chosen != 0, other=0)
        occupied = packed(number != 0)
        _count_occupied(record + _ROWS + _OCCUPIED * segments + segment, segments, occupied, TILE)
        if AHEAD:
            value = tl.load(values + element + at, mask=chosen != 0, other=0).to(tl.float32, bitcast=True)
            local_number = tl.where(chosen != 0, fixed_number(value, scale[:, None]), 0)
            tl.store(local + place, local_number, mask=chosen != 0)
            _add(record + _ROWS + segment, _non_zeros(local_number))
            tl.debug_barrier()  # all values are read before others' results replace them
    tl.store(out + element + at, float_of(number, scale, not_finite, DIVISOR), mask=inside)
