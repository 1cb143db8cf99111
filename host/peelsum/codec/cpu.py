"""The codec in Numba: the same bits as `peelsum.codec.reference`, on all cores, one pass over memory each.

`peelsum.codec.kernels` documents the functions. This module allocates and converts arrays; the loops are in
`cpu_index_loops`, `cpu_loops`, `cpu_peel_loops` and `cpu_selection_loops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peelsum import kept_pages
from peelsum.codec import cpu_index_loops as index_loops
from peelsum.codec import cpu_loops as loops
from peelsum.codec import cpu_peel_loops as peel_loops
from peelsum.codec import cpu_selection_loops as selection_loops
from peelsum.codec.block_scales import turn_of
from peelsum.codec.cpu_vectors import PACKS_FLOATS
from peelsum.codec.fixed_point import FixedPoint
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout, block_words
from peelsum.codec.layout import SUB_TABLES, SketchLayout
from peelsum.codec.packed import Packed, PackedPart
from peelsum.codec.selection import Selection
from peelsum.codec.threads import each, slices

#: Below this many cells, twice a cell's number plus one bit fits a uint32.
_NARROW_CELLS = 2**31
#: Peeling a candidate takes at least as long as a pass over this many elements: 13 ns or more.
_ELEMENTS_OF_A_CANDIDATE = 16
#: Up to one selected element in so many, finding their positions takes less time than reading their bitmaps.
_FEW = 256
#: Floats in the memory for a part of a tensor's non-zeros, 4 MiB.
_PACKED = 2**20
_T = TypeVar("_T", bound=np.generic)


def magnitude(values: NDArray[np.float32]) -> int:
    """See `Kernels.magnitude`."""
    bits = frozen(values.view(np.uint32))
    return int(max(each(bits.size, lambda a, b: index_loops.magnitude(bits[a:b]))))


def index(values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
    """See `Kernels.index`."""
    bits = frozen(values.view(np.uint32))
    return int(max(each(bits.size, lambda a, b: index_loops.index(bits[a:b], out[a // WORD_BITS :]))))


def index_over(values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
    """See `Kernels.index_over`."""
    bits = values.view(np.uint32)
    return int(max(each(bits.size, lambda a, b: index_loops.index_over(bits[a:b], out[a // WORD_BITS :]))))


def count(index: NDArray[np.uint32], elements: int) -> int:
    """See `Kernels.count`."""
    return int(index_loops.count(frozen(index), elements))


def counted(index: NDArray[np.uint32], elements: int) -> Callable[[], int]:
    """See `Kernels.counted`."""
    number = count(index, elements)
    return lambda: number


def positions(
    index: NDArray[np.uint32], elements: int, first: int = 0, count: int | None = None
) -> NDArray[np.int64]:
    """See `Kernels.positions`."""
    index, spans = frozen(index), slices(elements)
    if len(spans) == 1:
        out = kept_pages.empty(index_loops.count(index, elements) if count is None else count, np.int64)
        index_loops.positions(index, elements, first, out)
        return out
    counts = each(elements, lambda a, b: int(index_loops.count(_words(index, a, b), b - a)))
    out = kept_pages.empty(sum(counts), np.int64)
    parts = dict(zip(spans, np.split(out, list(accumulate(counts[:-1]))), strict=True))
    each(
        elements,
        lambda a, b: index_loops.positions(_words(index, a, b), b - a, first + a, parts[a, b]),
    )
    return out


def occupied(positions: NDArray[np.int64], total: NDArray[np.int32] | None = None) -> NDArray[np.int64]:
    """See `Kernels.occupied`."""
    positions = positions if total is None else positions[total.any(0)]
    out = np.empty(BLOCK_SIZES, np.int64)
    index_loops.occupied(frozen(positions), np.zeros(WORD_BITS + 1, np.int64), out)
    return out


def occupied_by(selection: Selection) -> NDArray[np.int64]:
    """See `Kernels.occupied_by`."""
    if selection.bitmap is None:
        return occupied(selection.positions)
    out = np.empty(BLOCK_SIZES, np.int64)
    index_loops.occupied_in(frozen(selection.bitmap), out)
    return out


def block_encode(index: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]) -> None:
    """See `Kernels.block_encode`."""
    if block < WORD_BITS:
        shift, index = block.bit_length() - 1, frozen(index)
        each(
            WORD_BITS * index.size,
            lambda a, b: index_loops.block_encode(
                _words(index, a, b), shift, out[(a >> shift) // WORD_BITS :]
            ),
        )
    elif block == WORD_BITS:
        index_loops.used_words(frozen(index), out)
    else:
        used = np.empty(block_words(elements, WORD_BITS), np.uint32)
        index_loops.used_words(frozen(index), used)
        block_encode(used, index.size, block // WORD_BITS, out)


def block_decode(blocks: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]) -> None:
    """See `Kernels.block_decode`."""
    if block < WORD_BITS:
        shift, blocks = block.bit_length() - 1, frozen(blocks)
        each(
            WORD_BITS * out.size,
            lambda a, b: index_loops.block_decode(
                blocks[(a >> shift) // WORD_BITS :], shift, _words(out, a, b)
            ),
        )
    elif block == WORD_BITS:
        index_loops.fill_words(frozen(blocks), out)
    else:
        used = np.empty(block_words(elements, WORD_BITS), np.uint32)
        block_decode(blocks, out.size, block // WORD_BITS, used)
        index_loops.fill_words(frozen(used), out)
    index_loops.clean(out, elements)


def bloom_encode(
    layout: BloomLayout, index: NDArray[np.uint32], out: NDArray[np.uint32], first: int = 0
) -> None:
    """See `Kernels.bloom_encode`."""
    index = frozen(index)

    def work(begin: int, end: int) -> NDArray[np.uint32]:
        own = np.empty_like(out) if begin else out
        own[:] = 0
        index_loops.bloom_encode(
            *_bloom(layout), (first + begin) // WORD_BITS, _words(index, begin, end), own
        )
        return own

    for own in each(WORD_BITS * index.size, work, copies_of=out.size)[1:]:
        np.bitwise_or(out, own, out=out)


def bloom_decode(
    layout: BloomLayout,
    words: NDArray[np.uint32],
    elements: int,
    out: NDArray[np.uint32],
    first: int = 0,
) -> None:
    """See `Kernels.bloom_decode`."""
    words = frozen(words)

    def work(begin: int, end: int) -> None:
        first_word, part = (first + begin) // WORD_BITS, _words(out, begin, end)
        index_loops.bloom_decode(*_bloom(layout), first_word, words, end - begin, part)

    each(elements, work)


def gather_bits(index: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    """See `Kernels.gather_bits`."""
    index_loops.gather_bits(frozen(index), frozen(mask), out)


def scatter_bits(
    bits: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32], scan: None = None
) -> None:
    """See `Kernels.scatter_bits`."""
    index_loops.scatter_bits(frozen(bits), frozen(mask), out)


def block_exponents(values: NDArray[np.float32], block: int, out: NDArray[np.uint32]) -> int:
    """See `Kernels.block_exponents`."""
    bits, piece = frozen(values.view(np.uint32)), min(block, index_loops.BLOCK)
    pieces = out if piece == block else np.zeros(out.size * (block // piece), np.uint32)
    each(bits.size, lambda a, b: index_loops.magnitudes(bits[a:b], piece, pieces[a // piece :]))
    return int(loops.encode_exponents(pieces, block // piece, out))


def index_exponents(
    values: NDArray[np.float32],
    block: int,
    index: NDArray[np.uint32],
    exponents: NDArray[np.uint32],
    *,
    over: bool = False,
    packed: Packed | None = None,
) -> int:
    """See `Kernels.index_exponents`."""
    bits, piece = values.view(np.uint32), min(block, index_loops.BLOCK)
    pieces = exponents if piece == block else np.zeros(exponents.size * (block // piece), np.uint32)
    if packed is not None and PACKS_FLOATS:
        address = index_loops.address(frozen(bits))

        def work(begin: int, end: int) -> list[PackedPart]:
            parts = []
            while begin < end:
                room = kept_pages.empty(min(_PACKED, end - begin + selection_loops.SPARE), np.float32)
                words, largest = index[begin // WORD_BITS :], pieces[begin // piece :]
                given = address + bits.itemsize * begin, end - begin, piece, over
                read, count = selection_loops.index_packed(*given, words, largest, room)
                parts.append(PackedPart(begin, begin + read, room[: count + selection_loops.SPARE]))
                begin += read
            return parts

        packed.index, packed.parts = index, [part for parts in each(bits.size, work) for part in parts]
    else:
        bits = bits if over else frozen(bits)
        run = index_loops.index_magnitudes_over if over else index_loops.index_magnitudes
        each(bits.size, lambda a, b: run(bits[a:b], piece, index[a // WORD_BITS :], pieces[a // piece :]))
    return int(loops.encode_exponents(pieces, block // piece, exponents))


def block_octaves(words: NDArray[np.uint32], exponent_field: int, out: NDArray[np.int32]) -> None:
    """See `Kernels.block_octaves`."""
    turn, spare = turn_of(exponent_field)
    loops.decode_octaves(frozen(words), np.uint32(turn), spare, out)


def quantize(values: NDArray[np.float32], fixed: FixedPoint, out: NDArray[np.int32]) -> int:
    """See `Kernels.quantize`."""
    values, scaling = frozen(values), _scaling(fixed, 1)
    return int(max(each(values.size, lambda a, b: loops.quantize(values, *scaling, out, a, b))))


def quantize_at(
    values: NDArray[np.float32], positions: NDArray[np.int64], fixed: FixedPoint, out: NDArray[np.int32]
) -> None:
    """See `Kernels.quantize_at`."""
    values, positions, scaling = frozen(values), frozen(positions), _scaling(fixed, 1)
    each(
        positions.size,
        lambda a, b: loops.quantize_at(values, positions, *scaling, out, a, b),
        values.size,
    )


def dequantize(
    quantized: NDArray[np.int32], fixed: FixedPoint, divisor: int, out: NDArray[np.float32]
) -> None:
    """See `Kernels.dequantize`."""
    quantized, scaling = frozen(quantized), _scaling(fixed, -1)
    each(out.size, lambda a, b: loops.dequantize(quantized, *scaling, float(divisor), out, a, b))


def dequantize_at(
    quantized: NDArray[np.int32],
    positions: NDArray[np.int64],
    fixed: FixedPoint,
    divisor: int,
    out: NDArray[np.float32],
) -> None:
    """See `Kernels.dequantize_at`."""
    quantized, positions, scaling = frozen(quantized), frozen(positions), _scaling(fixed, -1)
    each(
        positions.size,
        lambda a, b: loops.dequantize_at(quantized, positions, *scaling, float(divisor), out, a, b),
        out.size,
    )


def gather(
    values: NDArray[np.float32],
    selection: Selection,
    fixed: FixedPoint,
    out: NDArray[np.int32],
    packed: Packed | None = None,
) -> None:
    """See `Kernels.gather`."""
    many = len(selection) * _FEW >= values.size
    if many and packed is not None and packed.parts and selection.bitmap is not None:
        _gather_packed(packed, frozen(selection.bitmap), values.size, fixed, out)
        return
    index = _packed(selection, values.size)
    if index is None:
        quantize_at(values, selection.positions, fixed, out)
        return
    values, numbers, firsts = frozen(values), out, _firsts(index, values.size)
    factors, bits = _scaling(fixed, 1)

    def work(a: int, b: int) -> None:
        selection_loops.gather(values[a:b], _words(index, a, b), a, factors, bits, numbers, firsts[a])

    each(values.size, work)


def _gather_packed(
    packed: Packed, index: NDArray[np.uint32], elements: int, fixed: FixedPoint, out: NDArray[np.int32]
) -> None:
    parts, own, (factors, bits) = packed.parts, frozen(packed.index), _scaling(fixed, 1)

    def count_parts(first: int, last: int) -> list[int]:
        return [int(index_loops.count(_words(index, a, b), b - a)) for a, b, _ in parts[first:last]]

    def work(first: int, last: int) -> None:
        for (a, b, floats), start in list(zip(parts, starts, strict=False))[first:last]:
            words = _words(own, a, b), _words(index, a, b)
            selection_loops.gather_packed(frozen(floats), *words, b - a, a, factors, bits, out, start)

    counts = each(len(parts) - 1, count_parts, elements)
    starts = list(accumulate((count for some in counts for count in some), initial=0))
    each(len(parts), work, elements)


def scatter(
    quantized: NDArray[np.int32],
    selection: Selection,
    fixed: FixedPoint,
    divisor: int,
    out: NDArray[np.float32],
    *,
    clear: bool,
) -> None:
    """See `Kernels.scatter`."""
    index = _packed(selection, out.size, all_written=clear)
    if index is None:
        if clear:
            out[:] = 0.0
        dequantize_at(quantized, selection.positions, fixed, divisor, out)
        return
    numbers, firsts = frozen(quantized), _firsts(index, out.size)
    factors, bits = _scaling(fixed, -1)
    share = float(divisor)
    if divisor & (divisor - 1) == 0:  # a multiplication gives the same bits
        factors, share = factors / share, 1.0

    def work(a: int, b: int) -> None:
        rest = share, out[a:b], firsts[a], clear
        selection_loops.scatter(numbers, _words(index, a, b), a, factors, bits, *rest)

    each(out.size, work)


def _packed(selection: Selection, elements: int, *, all_written: bool = False) -> NDArray[np.uint32] | None:
    """Return the bitmap; None if positions serve better, as for few elements, or are needed."""
    few = len(selection) * WORD_BITS < elements and not all_written
    if selection.bitmap is None or few or not PACKS_FLOATS:
        return None
    return frozen(selection.bitmap)


def _firsts(index: NDArray[np.uint32], elements: int) -> dict[int, int]:
    """Return how many set bits lie before each slice of a bitmap, by the slice's first element."""
    begins = [begin for begin, _ in slices(elements)]
    if len(begins) == 1:
        return {0: 0}
    counts = each(elements, lambda a, b: int(index_loops.count(_words(index, a, b), b - a)))
    return dict(zip(begins, accumulate(counts, initial=0), strict=False))


def sketch_encode(
    layout: SketchLayout, positions: NDArray[np.int64], values: NDArray[np.int32], out: NDArray[np.uint32]
) -> None:
    """See `Kernels.sketch_encode`."""
    where, words, size = frozen(positions), frozen(values.view(np.uint32)), layout.segment_cells

    def work(first: int, last: int) -> None:
        for s, (a, b) in list(enumerate(layout.slices(where.size)))[first:last]:
            own = out[s * size : (s + 1) * size]
            own[:] = 0  # brings it into the cache
            loops.sketch_encode(*_sketch(layout), where[a:b], words[a:b], own)

    if layout.dealt:
        out[:] = 0
        loops.sketch_encode(*_sketch(layout), where, words, out)
        return
    each(layout.segments, work, _ELEMENTS_OF_A_CANDIDATE * where.size)


def index_sketch(
    layout: SketchLayout,
    values: NDArray[np.float32],
    fixed: FixedPoint,
    index: NDArray[np.uint32],
    sketch: NDArray[np.uint32],
    first: int = 0,
) -> int:
    """See `Kernels.index_sketch`."""
    values, factor = frozen(values), np.ldexp(1.0, fixed.scale)

    def work(begin: int, end: int) -> tuple[int, NDArray[np.uint32]]:
        own, bits = np.empty_like(sketch) if begin else sketch, index[begin // WORD_BITS :]
        own[:] = 0
        largest = loops.index_sketch(*_sketch(layout), first + begin, values[begin:end], factor, bits, own)
        return int(largest), own

    largest, sketches = zip(*each(values.size, work, copies_of=sketch.size), strict=True)
    for own in sketches[1:]:
        np.add(sketch, own, out=sketch)
    return int(max(largest))


def sketch_decode(
    layout: SketchLayout,
    sketch: NDArray[np.uint32],
    positions: NDArray[np.int64],
    out: NDArray[np.int32],
) -> NDArray[np.int64]:
    """See `Kernels.sketch_decode`."""
    where, numbers = frozen(positions), out.view(np.uint32)
    if not layout.dealt:
        return _peeled(layout, sketch, where, layout.slices(where.size), numbers)
    begins, by_segment = np.empty(layout.segments + 1, np.int64), np.empty(where.size, np.int64)
    dealing = layout.lanes, layout.dealt_to, np.uint64(layout.seed)
    peel_loops.deal(*dealing, where, begins, by_segment)
    values = np.empty_like(numbers)
    left = _peeled(layout, sketch, frozen(by_segment), list(pairwise(begins.tolist())), values)
    peel_loops.collect(*dealing, where, begins, values, numbers)
    return np.searchsorted(where, np.sort(by_segment[left])).astype(np.int64)


def peeled(
    layout: SketchLayout,
    sketch: NDArray[np.uint32],
    positions: NDArray[np.int64],
    out: NDArray[np.int32],
) -> Callable[[], NDArray[np.int64]]:
    """See `Kernels.peeled`."""
    left = sketch_decode(layout, sketch, positions, out)
    return lambda: left


def _peeled(
    layout: SketchLayout,
    sketch: NDArray[np.uint32],
    positions: NDArray[np.int64],
    slices: list[tuple[int, int]],
    out: NDArray[np.uint32],
) -> NDArray[np.int64]:
    """Peel segments whose candidates are these slices of positions[k]; return the left-over."""
    size = layout.segment_cells
    most = max(b - a for a, b in slices)
    sketch = frozen(sketch)

    def work(first: int, last: int) -> list[NDArray[np.int64]]:
        room, left = _Peeling(layout, most), []
        for s, (a, b) in list(enumerate(slices))[first:last]:
            cells = sketch[s * size : (s + 1) * size]
            left.append(a + room.peeled(layout, cells, positions[a:b], out[a:b]))
        return left

    parts = each(layout.segments, work, _ELEMENTS_OF_A_CANDIDATE * positions.size)
    return np.concatenate([left for part in parts for left in part])


class _Peeling:
    """Memory for peeling segments of up to `candidates` candidates, one after the other."""

    def __init__(self, layout: SketchLayout, candidates: int) -> None:
        narrow = max(layout.segment_cells, SUB_TABLES * candidates // 2) < _NARROW_CELLS
        sizes = SUB_TABLES * candidates, candidates
        self._places, self._left = (
            np.empty(size, np.uint32) if narrow else np.empty(size, np.uint64) for size in sizes
        )
        self._cells = np.empty(layout.segment_cells, np.uint64)

    def peeled(
        self,
        layout: SketchLayout,
        sketch: NDArray[np.uint32],
        positions: NDArray[np.int64],
        out: NDArray[np.uint32],
    ) -> NDArray[np.int64]:
        """Peel one segment, sketch[n] into out[k]; return the left-over of its candidates."""
        places, cells, left = self._places[: SUB_TABLES * positions.size], self._cells, self._left
        peel_loops.load(
            layout.lanes, layout.rows, np.uint64(layout.seed), positions, sketch, places, cells, left
        )
        before, count = -1, positions.size
        while count != before:
            before, count = count, peel_loops.sweep(places, cells, left, count, out)
        out[left[:count]] = 0
        return left[:count].astype(np.int64)


def _words(bitmap: NDArray[np.uint32], begin: int, end: int) -> NDArray[np.uint32]:
    """Return the words that hold bits `begin` (a multiple of 32) to `end`."""
    return bitmap[begin // WORD_BITS : -(-end // WORD_BITS)]


def _bloom(layout: BloomLayout) -> tuple[int, int, np.uint64]:
    return layout.hashes, layout.rows, np.uint64(layout.seed)


def _scaling(fixed: FixedPoint, sign: int) -> tuple[NDArray[np.float64], int]:
    """Return each block's factor 2**(sign * scale), and log2 of the block's size."""
    if fixed.octaves is None:
        return np.array([math.ldexp(1.0, sign * fixed.scale)]), fixed.block_bits
    return np.ldexp(1.0, sign * (fixed.scale + fixed.octaves)), fixed.block_bits


def _sketch(layout: SketchLayout) -> tuple[int, int, int, np.uint64]:
    return layout.lanes, layout.rows, layout.dealt_to, np.uint64(layout.seed)


def frozen(array: NDArray[_T]) -> NDArray[_T]:
    """Return a read-only view.

    Numba compiles a function once for writable and once for read-only arrays; callers pass both.
    """
    view = array.view()
    view.setflags(write=False)  # half the time of `view.flags.writeable`
    return view
