"""The codec in plain NumPy: the reference that every other implementation matches bit for bit.

It is written to be read, not to be fast. `peelsum.codec.kernels` documents the functions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.fixed_point import FixedPoint
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


def index(values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
    """Write the bitmap of the non-zeros of values[n] into out; return the largest bit pattern of |values|.

    -0.0 is zero, NaN is not.
    """
    magnitudes = _magnitudes(values)
    out[:] = _packed(magnitudes != 0, out.size)
    return int(magnitudes.max(initial=0))


def count(index: NDArray[np.uint32], elements: int) -> int:
    """See `Kernels.count`."""
    return int(np.count_nonzero(_bits(index, elements)))


def positions(
    index: NDArray[np.uint32], elements: int, first: int = 0, count: int | None = None
) -> NDArray[np.int64]:
    """See `Kernels.positions`."""
    return np.flatnonzero(_bits(index, elements)) + first


def occupied(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """See `Kernels.occupied`."""
    return np.array([np.unique(positions >> bits).size for bits in range(BLOCK_SIZES)], np.int64)


def block_encode(index: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]) -> None:
    """See `Kernels.block_encode`."""
    bits = np.zeros(-(-elements // block) * block, np.bool_)
    bits[:elements] = _bits(index, elements)
    out[:] = _packed(np.logical_or.reduce(bits.reshape(-1, block), axis=1), out.size)


def block_decode(blocks: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]) -> None:
    """See `Kernels.block_decode`."""
    bits = np.repeat(_bits(blocks, -(-elements // block)), block)
    out[:] = _packed(bits[:elements], out.size)


def bloom_encode(
    layout: BloomLayout, index: NDArray[np.uint32], out: NDArray[np.uint32], first: int = 0
) -> None:
    """See `Kernels.bloom_encode`."""
    rows, rotations = _bloom_places(layout, index.size, first)
    out[:] = 0
    np.bitwise_or.at(out, rows, _rotated(index[:, np.newaxis], rotations))


def bloom_decode(
    layout: BloomLayout,
    words: NDArray[np.uint32],
    elements: int,
    out: NDArray[np.uint32],
    first: int = 0,
) -> None:
    """See `Kernels.bloom_decode`."""
    rows, rotations = _bloom_places(layout, out.size, first)
    passed = np.bitwise_and.reduce(_rotated(words[rows], WORD_BITS - rotations), axis=1)
    out[:] = _packed(_bits(passed, elements), out.size)


def gather_bits(index: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    """See `Kernels.gather_bits`."""
    elements = WORD_BITS * mask.size
    out[:] = _packed(_bits(index, elements)[_bits(mask, elements)], out.size)


def scatter_bits(
    bits: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32], scan: None = None
) -> None:
    """See `Kernels.scatter_bits`."""
    spread = _bits(mask, WORD_BITS * mask.size).copy()
    spread[spread] = _bits(bits, int(np.count_nonzero(spread)))
    out[:] = _packed(spread, out.size)


def quantize(values: NDArray[np.float32], fixed: FixedPoint, out: NDArray[np.int32]) -> None:
    """See `Kernels.quantize`."""
    with np.errstate(invalid="ignore", over="ignore"):
        out[:] = np.rint(np.ldexp(values.astype(np.float64), fixed.scale)).astype(np.int64).astype(np.int32)


def sketch_encode(
    layout: SketchLayout, positions: NDArray[np.int64], values: NDArray[np.int32], out: NDArray[np.uint32]
) -> None:
    """See `Kernels.sketch_encode`."""
    cells, signs = places(layout, positions)
    out[:] = 0
    np.add.at(out, cells, signs * values.view(np.uint32)[:, np.newaxis])


def sketch_decode(
    layout: SketchLayout,
    sketch: NDArray[np.uint32],
    positions: NDArray[np.int64],
    out: NDArray[np.int32],
) -> NDArray[np.int64]:
    """See `Kernels.sketch_decode`."""
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
