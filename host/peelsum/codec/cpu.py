"""The codec in Numba: the same bits as `peelsum.codec.reference`, on all cores, one pass over memory each.

This module allocates and converts arrays; the loops are in `cpu_index_loops`, `cpu_loops` and
`cpu_sketch_loops`.
"""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.buffers import frozen
from peelsum.codec import cpu_index_loops as index_loops
from peelsum.codec import cpu_loops as loops
from peelsum.codec import cpu_sketch_loops as sketch_loops
from peelsum.codec.cpu_segments import CpuSegments
from peelsum.codec.fixed_point import FixedPoint
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout, block_words
from peelsum.codec.layout import MOST_CANDIDATES, SketchLayout
from peelsum.codec.memory import HostMemory
from peelsum.codec.threads import each, slices

#: Peeling a candidate takes at least as long as a pass over this many elements: 13 ns or more.
_ELEMENTS_OF_A_CANDIDATE = 16
_NO_WORDS = np.empty(0, np.uint32)
_NO_WORDS.setflags(write=False)
_WHOLE = 62  # log2 of a block larger than any tensor


class CpuDevice(HostMemory):
    """The codec in Numba, on NumPy arrays."""

    segments = CpuSegments

    def count(self, index: NDArray[np.uint32]) -> int:
        """See `Device.count`."""
        return int(np.bitwise_count(index).sum())

    def positions(
        self, index: NDArray[np.uint32], elements: int, first: int = 0, count: int | None = None
    ) -> NDArray[np.int64]:
        """See `Device.positions`."""
        index, spans = frozen(index), slices(elements)
        if len(spans) == 1:
            out = buffers.empty(index_loops.count(index, elements) if count is None else count, np.int64)
            index_loops.positions(index, elements, first, out)
            return out
        counts = each(elements, lambda a, b: int(index_loops.count(_words(index, a, b), b - a)))
        out = buffers.empty(sum(counts), np.int64)
        parts = dict(zip(spans, np.split(out, list(accumulate(counts[:-1]))), strict=True))
        each(
            elements,
            lambda a, b: index_loops.positions(_words(index, a, b), b - a, first + a, parts[a, b]),
        )
        return out

    def block_encode(
        self, index: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]
    ) -> None:
        """See `Device.block_encode`."""
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
            self.block_encode(used, index.size, block // WORD_BITS, out)

    def block_decode(
        self, blocks: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]
    ) -> None:
        """See `Device.block_decode`."""
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
            self.block_decode(blocks, out.size, block // WORD_BITS, used)
            index_loops.fill_words(frozen(used), out)
        index_loops.clean(out, elements)

    def bloom_encode(
        self, layout: BloomLayout, index: NDArray[np.uint32], out: NDArray[np.uint32], first: int = 0
    ) -> None:
        """See `Device.bloom_encode`."""
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
        self,
        layout: BloomLayout,
        words: NDArray[np.uint32],
        elements: int,
        out: NDArray[np.uint32],
        first: int = 0,
    ) -> None:
        """See `Device.bloom_decode`."""
        words = frozen(words)

        def work(begin: int, end: int) -> None:
            first_word, part = (first + begin) // WORD_BITS, _words(out, begin, end)
            index_loops.bloom_decode(*_bloom(layout), first_word, words, end - begin, part)

        each(elements, work)

    def gather_bits(
        self, index: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32]
    ) -> None:
        """See `Device.gather_bits`."""
        index_loops.gather_bits(frozen(index), frozen(mask), out)

    def scatter_bits(
        self, bits: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32], scan: None = None
    ) -> None:
        """See `Device.scatter_bits`."""
        index_loops.scatter_bits(frozen(bits), frozen(mask), out)

    def sketch_encode(
        self,
        layout: SketchLayout,
        positions: NDArray[np.int64],
        values: NDArray[np.int32],
        out: NDArray[np.uint32],
    ) -> None:
        """See `Device.sketch_encode`."""
        out[:] = 0
        places, numbers, _, begins = _dealt(layout, frozen(positions), frozen(values.view(np.uint32)))
        sketch_loops.add(places, numbers, layout.width, layout.segments, begins, out)

    def sketch_decode(
        self,
        layout: SketchLayout,
        sketch: NDArray[np.uint32],
        positions: NDArray[np.int64],
        out: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """See `Device.sketch_decode`."""
        where, sketch, size = frozen(positions), frozen(sketch), layout.segment_cells
        places, _, owners, begins = _dealt(layout, where)
        bounds = begins.tolist()

        def work(first: int, last: int) -> int:
            cells, queue, peeled = np.empty(size, np.uint64), np.empty(size + 1, np.uint32), 0
            for s in range(first, last):
                part, own = places[bounds[s] : bounds[s + 1]], sketch[s * size : (s + 1) * size]
                if part.size <= MOST_CANDIDATES:
                    peeled += sketch_loops.peel(part, own, layout.width, cells, queue)
            return peeled

        peeled = sum(each(layout.segments, work, _ELEMENTS_OF_A_CANDIDATE * where.size))
        sketch_loops.collect(owners, begins, places, out.view(np.uint32))
        if peeled == where.size:
            return np.empty(0, np.int64)
        left = np.flatnonzero(places >= sketch_loops.WAITING)
        return left if layout.segments == 1 else np.sort(np.argsort(owners, kind="stable")[left])


def occupied(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the blocks of 2**b elements that hold one of positions[k], for each b: int64[BLOCK_SIZES].

    Positions are ascending.
    """
    out = np.empty(BLOCK_SIZES, np.int64)
    index_loops.occupied(frozen(positions), np.zeros(WORD_BITS + 1, np.int64), out)
    return out


def quantize(values: NDArray[np.float32], fixed: FixedPoint, out: NDArray[np.int32]) -> None:
    """Write rint(value * 2**scale) into out[n], on all cores.

    `fixed` has no `octaves`. The product is computed in float64 and rounded half to even. The number of a
    value that does not fit, or is not finite, is undefined.
    """
    values, factor = frozen(values), np.array([math.ldexp(1.0, fixed.scale)])
    each(values.size, lambda a, b: loops.quantize(values, factor, _WHOLE, out, a, b))


def _dealt(
    layout: SketchLayout, positions: NDArray[np.int64], values: NDArray[np.uint32] = _NO_WORDS
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint16], NDArray[np.int64]]:
    """Return the candidates' places and values by segment, their segments, and where each segment begins."""
    count, segments, seed = positions.size, layout.segments, np.uint64(layout.seed)
    owners, begins, dealt = np.empty(0, np.uint16), np.array([0, count]), np.empty(0, np.uint32)
    if segments > 1:
        owners, begins = buffers.empty(count, np.uint16), np.empty(segments + 1, np.int64)
        dealt = buffers.empty(values.size, np.uint32)
        sketch_loops.own(positions, segments, seed, owners, begins)
    places = buffers.empty(count, np.uint64)
    sketch_loops.deal(positions, values, layout.width, segments, seed, begins, places, dealt)
    return places, values if segments == 1 else frozen(dealt), owners, begins


def _words(bitmap: NDArray[np.uint32], begin: int, end: int) -> NDArray[np.uint32]:
    """Return the words that hold bits `begin` (a multiple of 32) to `end`."""
    return bitmap[begin // WORD_BITS : -(-end // WORD_BITS)]


def _bloom(layout: BloomLayout) -> tuple[int, int, np.uint64]:
    return layout.hashes, layout.rows, np.uint64(layout.seed)
