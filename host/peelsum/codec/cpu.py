"""The codec in Numba: the same bits as `peelsum.codec.reference`, on all cores, one pass over memory each.

`peelsum.codec.kernels` documents the functions. This module allocates and converts arrays; the loops are in
`cpu_index_loops`, `cpu_loops` and `cpu_peel_loops`.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peelsum import kept_pages
from peelsum.codec import cpu_index_loops as index_loops
from peelsum.codec import cpu_loops as loops
from peelsum.codec import cpu_peel_loops as peel_loops
from peelsum.codec.fixed_point import FixedPoint
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout, block_words
from peelsum.codec.layout import SUB_TABLES, SketchLayout
from peelsum.codec.threads import each, slices

#: Below this many cells, twice a cell's number plus one bit fits a uint32.
_NARROW_CELLS = 2**31
#: Peeling a candidate takes at least as long as a pass over this many elements: 13 ns or more.
_ELEMENTS_OF_A_CANDIDATE = 16
_WHOLE = 62  # log2 of a block larger than any tensor
_T = TypeVar("_T", bound=np.generic)


def count(index: NDArray[np.uint32], elements: int) -> int:
    """See `Kernels.count`."""
    return int(index_loops.count(frozen(index), elements))


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


def occupied(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """See `Kernels.occupied`."""
    out = np.empty(BLOCK_SIZES, np.int64)
    index_loops.occupied(frozen(positions), np.zeros(WORD_BITS + 1, np.int64), out)
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


def quantize(values: NDArray[np.float32], fixed: FixedPoint, out: NDArray[np.int32]) -> None:
    """See `Kernels.quantize`."""
    values, factor = frozen(values), np.array([math.ldexp(1.0, fixed.scale)])
    each(values.size, lambda a, b: loops.quantize(values, factor, _WHOLE, out, a, b))


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


def _sketch(layout: SketchLayout) -> tuple[int, int, int, np.uint64]:
    return layout.lanes, layout.rows, layout.dealt_to, np.uint64(layout.seed)


def frozen(array: NDArray[_T]) -> NDArray[_T]:
    """Return a read-only view.

    Numba compiles a function once for writable and once for read-only arrays; callers pass both.
    """
    view = array.view()
    view.setflags(write=False)  # half the time of `view.flags.writeable`
    return view
