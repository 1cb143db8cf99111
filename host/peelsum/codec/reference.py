"""The codec in plain NumPy: the truth that every other implementation equals bit for bit.

Written to be read, not to be fast. What the functions mean is said once, in `peelsum.codec.kernels`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.layout import MIX_FIRST, MIX_SECOND, MIX_STEP, SUB_TABLES, SketchLayout


def magnitude(values: NDArray[np.float32]) -> int:
    """See `Kernels.magnitude`."""
    return int(_magnitudes(values).max(initial=0))


def index(values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
    """See `Kernels.index`."""
    bits = np.zeros(32 * out.size, np.bool_)
    bits[: values.size] = _magnitudes(values) != 0
    weights = np.uint32(1) << np.arange(32, dtype=np.uint32)
    out[:] = (bits.reshape(-1, 32) * weights).sum(axis=1, dtype=np.uint32)
    return magnitude(values)


def positions(index: NDArray[np.uint32], elements: int) -> NDArray[np.int64]:
    """See `Kernels.positions`."""
    bits = index[:, np.newaxis] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return np.flatnonzero(bits.reshape(-1)[:elements])


def quantize(values: NDArray[np.float32], scale: int, out: NDArray[np.int32]) -> None:
    """See `Kernels.quantize`."""
    out[:] = np.rint(values.astype(np.float64) * np.ldexp(1.0, scale)).astype(np.int32)


def quantize_at(
    values: NDArray[np.float32], positions: NDArray[np.int64], scale: int, out: NDArray[np.int32]
) -> None:
    """See `Kernels.quantize_at`."""
    quantize(values[positions], scale, out)


def dequantize(quantized: NDArray[np.int32], scale: int, divisor: int, out: NDArray[np.float32]) -> None:
    """See `Kernels.dequantize`."""
    with np.errstate(over="ignore"):
        out[:] = (quantized.astype(np.float64) * np.ldexp(1.0, -scale) / divisor).astype(np.float32)


def dequantize_at(
    quantized: NDArray[np.int32],
    positions: NDArray[np.int64],
    scale: int,
    divisor: int,
    out: NDArray[np.float32],
) -> None:
    """See `Kernels.dequantize_at`."""
    wanted = np.empty(positions.size, np.float32)
    dequantize(quantized, scale, divisor, wanted)
    out[positions] = wanted


def sketch_encode(
    layout: SketchLayout, positions: NDArray[np.int64], values: NDArray[np.int32], out: NDArray[np.uint32]
) -> None:
    """See `Kernels.sketch_encode`."""
    cells, signs = _places(layout, positions)
    out[:] = 0
    np.add.at(out, cells, signs * values.view(np.uint32)[:, np.newaxis])


def sketch_decode(
    layout: SketchLayout,
    sketch: NDArray[np.uint32],
    positions: NDArray[np.int64],
    out: NDArray[np.int32],
) -> NDArray[np.int64]:
    """See `Kernels.sketch_decode`."""
    cells, signs = _places(layout, positions)
    remaining = sketch.copy()
    load = np.zeros(layout.cells, np.uint32)
    np.add.at(load, cells, np.uint32(1))
    out[:] = 0
    left = np.arange(positions.size)
    while True:
        pure = load[cells[left]] == 1
        peelable = pure.any(axis=1)
        if not peelable.any():
            return left
        peeled, sub_table = left[peelable], pure[peelable].argmax(axis=1)
        recovered = signs[peeled, sub_table] * remaining[cells[peeled, sub_table]]
        out[peeled] = recovered.view(np.int32)
        np.subtract.at(remaining, cells[peeled], signs[peeled] * recovered[:, np.newaxis])
        np.subtract.at(load, cells[peeled], np.uint32(1))
        left = left[~peelable]


def _magnitudes(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Bit patterns without the sign: they order as |values| do, with infinity and NaN on top."""
    return values.view(np.uint32) & np.uint32(0x7FFFFFFF)


def _places(
    layout: SketchLayout, positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Cells int64[k, SUB_TABLES] and signs (1 or 2**32 - 1) uint32[k, SUB_TABLES] of elements."""
    sub_table = np.arange(SUB_TABLES)
    block, lane = np.divmod(positions[:, np.newaxis], layout.lanes)
    mixed = _mix((SUB_TABLES * block + sub_table).astype(np.uint64), layout.seed)
    row = (mixed >> np.uint64(32)) * np.uint64(layout.rows) >> np.uint64(32)
    rotation = (mixed & np.uint64(0x7FFFFFFF)) * np.uint64(layout.lanes) >> np.uint64(31)
    rotated = (lane + rotation.astype(np.int64)) % layout.lanes
    cells = (sub_table * layout.rows + row.astype(np.int64)) * layout.lanes + rotated
    negative = (mixed >> np.uint64(31) & np.uint64(1)).astype(np.bool_)
    return cells, np.where(negative, np.uint32(0xFFFFFFFF), np.uint32(1))


def _mix(counter: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """`peelsum.codec.layout.mix` of counter * MIX_STEP + seed, element by element, modulo 2**64."""
    value = counter * np.uint64(MIX_STEP) + np.uint64(seed)
    value = (value ^ value >> np.uint64(30)) * np.uint64(MIX_FIRST)
    value = (value ^ value >> np.uint64(27)) * np.uint64(MIX_SECOND)
    return value ^ value >> np.uint64(31)
