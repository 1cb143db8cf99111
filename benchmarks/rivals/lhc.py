"""Encode and decode with LHC's published layout (arXiv 2402.07529), to compare the codec with it.

LHC hashes a block of 1024 elements to three rows of one table, with a sign per row. Each row has 1024 cells,
one per lane: element l of a block is always added in lane l. So the lanes are independent of each other.

Beside the table, LHC sends an index of four bits per element, which is added over workers; more than
LARGEST_FAN_IN workers overflow it. If the switch can OR, one bit per element suffices for any number of
workers. Every pass of encoding and every peel round visits all elements.

This implementation differs from the published program in four ways:

- Values are int32 instead of floats, so that sums are exact.
- The hash is that of `peelsum.codec`.
- Peeling works in place.
- One more round sends what peeling leaves over.

It uses all cores: encoding divides the blocks among them, and peeling the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals import lhc_loops as loops
from peelsum import buffers
from peelsum.bench.codec.rows import Peeled, peel
from peelsum.bench.codec.timing import Measured, TimedDevice, require_exact
from peelsum.codec import FixedPoint
from peelsum.codec.threads import each

#: Elements per block, and cells per row.
LHC_LANES = 1024
#: The largest number of workers whose sum fits the index's four bits.
LARGEST_FAN_IN = 15
#: Cores get lanes in multiples of this, by bits of the index, so that they share no word and no cache line.
_STRIPS = {1: 32, 4: 16}
_ROWS_STEP = 1.05
#: Cells per non-zero of the paper's table, and of the others that are tried.
PUBLISHED = 2.0
SIZES = (1.5, 3.0, 4.0, 6.0, 8.0)
#: Multiples of the smallest table that recovers everything.
MULTIPLES = (1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True)
class LhcLayout:
    """A layout whose table has `rows` rows of `lanes` cells.

    For tensors of n elements, the index is uint32[index_words(n)] and the sketch is uint32[cells]. The index
    is padded to whole blocks.
    """

    rows: int
    seed: int = 0
    lanes: int = LHC_LANES
    """A power of 2, 16 to 8192; at least 32 with one bit per element."""
    index_bits: Literal[1, 4] = 4
    """Bits of the index per element: 4, to be added, or 1, to be OR-ed."""

    @property
    def cells(self) -> int:
        """Cells of the table."""
        return self.rows * self.lanes

    def index_words(self, elements: int) -> int:
        """Return the number of words of an index of `elements` elements, padded to whole blocks."""
        return -(-elements // self.lanes) * self.lanes * self.index_bits // 32

    def words(self, elements: int) -> int:
        """Return the number of words that a worker sends for `elements` elements."""
        return -(-elements * self.index_bits // 32) + self.cells

    def index(self, values: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Return the index, 1 for each non-zero; workers add it (4 bits) or OR it (1 bit)."""
        out = np.empty(self.index_words(values.size), np.uint32)
        out[self._word(values.size) :] = 0
        bits, loop = values.view(np.uint32), loops.bitmap if self.index_bits == 1 else loops.index
        each(values.size, lambda a, b: loop(bits[a:b], out[self._word(a) :]))
        return out

    def encode(
        self, values: NDArray[np.float32], fixed: FixedPoint, index: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Return the sketch and, for each cell, the number of its candidates modulo 2**8.

        The sketch is added over workers. `index` must be that of all workers already: it determines the
        candidates, so every worker counts the same.
        """
        factor = np.ldexp(1.0, fixed.scale)

        def work(begin: int, end: int) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
            sketch, counts = np.zeros(self.cells, np.uint32), np.zeros(self.cells, np.uint8)
            part = values[begin:end]
            part_index = index[self._word(begin) :]
            loops.add(*self._arguments, begin, part, factor, part_index, self.index_bits, sketch, counts)
            return sketch, counts

        (sketch, counts), *others = each(values.size, work)
        for other_sketch, other_counts in others:
            sketch += other_sketch
            counts += other_counts
        return sketch, counts

    def decode(
        self,
        sketch: NDArray[np.uint32],
        counts: NDArray[np.uint8],
        index: NDArray[np.uint32],
        fixed: FixedPoint,
        elements: int,
    ) -> tuple[NDArray[np.float32], int]:
        """Peel; return float32[elements] and the number of left-over non-zeros. Overwrites its input."""
        out = buffers.zeros(elements, np.float32)  # as for the codec's own results
        factor = np.ldexp(1.0, -fixed.scale)

        def work(begin: int, end: int) -> int:
            low, high = self._strip(begin, elements), self._strip(end, elements)
            lanes = (*self._arguments, low, high)
            return int(loops.peel(*lanes, sketch, counts, index, self.index_bits, factor, out))

        return out, sum(each(elements, work))

    def left_over(
        self, values: NDArray[np.float32], fixed: FixedPoint, index: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return the left-over elements, and this worker's integers there, to be added over workers.

        They are the elements whose bits `decode` left in `index`.
        """
        words = np.flatnonzero(index)
        shifts = np.arange(0, 32, self.index_bits, dtype=np.uint32)
        word, inside = np.nonzero(index[words, np.newaxis] >> shifts & np.uint32(2**self.index_bits - 1))
        positions = words[word] * shifts.size + inside
        scaled = np.rint(values[positions].astype(np.float64) * np.ldexp(1.0, fixed.scale))
        return positions, scaled.astype(np.int32).view(np.uint32)

    def complete(
        self,
        out: NDArray[np.float32],
        positions: NDArray[np.int64],
        total: NDArray[np.uint32],
        fixed: FixedPoint,
    ) -> None:
        """Write the sum of the left-over, `total` in integers, to its `positions` in `out`."""
        out[positions] = (total.view(np.int32) * np.ldexp(1.0, -fixed.scale)).astype(np.float32)

    def peeled(self, positions: NDArray[np.int64]) -> Peeled:
        """Return what peeling candidates at these positions would recover; needs no values."""
        places = np.empty((positions.size, 3), np.int64)
        loops.place(*self._arguments, positions, places)
        return peel(places, self.cells)

    @property
    def _arguments(self) -> tuple[int, int, np.uint64]:
        return self.lanes, self.rows, np.uint64(self.seed)

    def _word(self, element: int) -> int:
        """Return the number of the index word that holds `element`."""
        return element * self.index_bits // 32

    def _strip(self, element: int, elements: int) -> int:
        """Return the lane that lies as far along the lanes as `element` along `elements`, in whole strips."""
        strip = _STRIPS[self.index_bits]
        return self.lanes // strip * element // max(elements, 1) * strip


def smallest_lhc(
    positions: NDArray[np.int64],
    elements: int,
    *,
    lanes: int = LHC_LANES,
    index_bits: Literal[1, 4] = 4,
) -> LhcLayout | None:
    """Return the smallest layout, in steps of 5 %, that recovers all non-zeros, or None.

    The search begins with as many rows as the heaviest lane has candidates, and ends at one cell per element.
    """
    layout = LhcLayout(1, lanes=lanes, index_bits=index_bits)
    rows = max(int(np.bincount(positions % lanes, minlength=1).max()), 1)
    while (layout := replace(layout, rows=rows)).cells <= max(elements, lanes):
        if not layout.peeled(positions).left_over:
            return layout
        rows = max(rows + 1, int(rows * _ROWS_STEP))
    return None


def lhc_variants(non_zeros: int, smallest: LhcLayout | None) -> list[LhcLayout]:
    """Return the layouts to try: PUBLISHED, SIZES and MULTIPLES of the smallest, each with both indexes."""
    tables = [sized_lhc(non_zeros, cells) for cells in (PUBLISHED, *SIZES)]
    if smallest is not None:
        tables += (replace(smallest, rows=int(smallest.rows * multiple)) for multiple in MULTIPLES)
    return [replace(layout, index_bits=bits) for layout in dict.fromkeys(tables) for bits in (4, 1)]


def sized_lhc(non_zeros: int, cells_per_non_zero: float = PUBLISHED) -> LhcLayout:
    """Return LHC's layout of the published size, or of another one, with the published index."""
    return LhcLayout(max(round(non_zeros * cells_per_non_zero / LhcLayout(1).lanes), 1))


def lhc_step(
    device: TimedDevice, layout: LhcLayout, values: NDArray[np.float32], fixed: FixedPoint
) -> Measured:
    """Measure the same step with LHC's layout, which is given the scale, `fixed`.

    What peeling leaves over is sent in one more round. Raises NotExactError if an element is wrong.
    """
    clock, codec, there = device.clock, device.codec, device.place(values)
    lhc: Any = layout
    if device.name != "cpu":
        from benchmarks.rivals.lhc_gpu import DeviceLhc

        lhc = DeviceLhc(layout)
    started = clock()
    sent = codec.fetch(lhc.index(there))
    encode_s = clock() - started
    arrived = sent.copy()
    started = clock()
    summed = codec.to_device(arrived)
    sketch, counts = lhc.encode(there, fixed, summed)
    sent = codec.fetch(sketch)
    encode_s += clock() - started
    arrived = sent.copy()
    started = clock()
    decoded, unpeeled = lhc.decode(codec.to_device(arrived), counts, summed, fixed, values.size)
    codec.synchronize()
    decode_s = clock() - started
    if unpeeled:
        started = clock()
        positions, integers = lhc.left_over(there, fixed, summed)
        sent = codec.fetch(integers)
        encode_s += clock() - started
        arrived = sent.copy()
        started = clock()
        lhc.complete(decoded, positions, codec.to_device(arrived), fixed)
        codec.synchronize()
        decode_s += clock() - started
    require_exact(values, codec.to_host(decoded), fixed)
    return Measured(layout.words(values.size) + unpeeled, encode_s, decode_s, None, unpeeled)


#: Batches to try. With fewer lanes a table is smaller, until hashing costs more than it saves.
BATCHES = tuple(2**bits for bits in range(5, LHC_LANES.bit_length()))
_MOST_HASHES = 32


@dataclass(frozen=True)
class FewestWords:
    """An index of `index_words`, and the smallest table that recovers the candidates that pass it.

    LHC's program fixes what its paper leaves open: 1024 lanes, and four bits of index for each element. A
    switch that ORs lets one bit suffice, or a Bloom filter, whose false positives take cells of the table.
    """

    layout: LhcLayout
    index_words: int
    candidates: NDArray[np.int64]
    """The non-zeros, and a Bloom filter's false positives."""

    @property
    def words(self) -> int:
        """Words that a worker sends."""
        return self.index_words + self.layout.cells


def fewest_words(positions: NDArray[np.int64], elements: int) -> FewestWords | None:
    """Return the way with the fewest words for these non-zeros; None if no table recovers them."""
    return min(_ways(positions, elements), key=lambda table: table.words, default=None)


def _ways(positions: NDArray[np.int64], elements: int) -> Iterator[FewestWords]:
    """Yield each batch's table with a bitmap and, if the formula prefers it, with a Bloom filter."""
    for lanes in BATCHES:
        table = smallest_lhc(positions, elements, lanes=lanes, index_bits=1)
        if table is None:
            continue
        yield FewestWords(table, -(-elements // 32), positions)
        hashes = best_hashes(positions.size, elements, table.cells / max(positions.size, 1))
        if not hashes:
            continue
        words = filter_words(positions.size, hashes)
        candidates = passing(positions, elements, words, hashes)
        table = smallest_lhc(candidates, elements, lanes=lanes, index_bits=1)
        if table is not None:
            yield FewestWords(table, words, candidates)


def best_hashes(non_zeros: int, elements: int, cells: float) -> int:
    """Return the hash functions of the filter with the fewest words, 0 for a bitmap.

    A half-full filter of h functions has h / ln 2 bits for each non-zero, and lets another element pass with
    probability 2**-h. Such an element takes `cells` cells of 32 bits.
    """
    zeros = elements - non_zeros
    bits = [float(elements)]
    bits += [non_zeros * h / math.log(2) + 32 * cells * zeros / 2**h for h in range(1, _MOST_HASHES + 1)]
    return bits.index(min(bits))


def filter_words(non_zeros: int, hashes: int) -> int:
    """Return the words of a filter that is half full of these non-zeros."""
    return max(math.ceil(non_zeros * hashes / math.log(2) / 32), 1)


def passing(positions: NDArray[np.int64], elements: int, words: int, hashes: int) -> NDArray[np.int64]:
    """Return the elements that pass a Bloom filter of these positions, ascending."""
    bits = np.zeros(32 * words, bool)
    for number in range(hashes):
        bits[_hashed(positions, number) % bits.size] = True
    candidates = np.arange(elements)
    for number in range(hashes):
        candidates = candidates[bits[_hashed(candidates, number) % bits.size]]
    return candidates


def _hashed(positions: NDArray[np.int64], number: int) -> NDArray[np.uint64]:
    """Return a hash of each position that behaves as random (splitmix64's finalizer)."""
    salt = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
    x = positions.astype(np.uint64) + np.uint64(salt)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
