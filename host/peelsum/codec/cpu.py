"""The codec in Numba: the same bits as `peelsum.codec.reference`, one pass over memory each.

What the functions mean is said in `peelsum.codec.kernels`. This module allocates and converts; the loops
themselves stand in `peelsum.codec.cpu_loops`. Everything past the index works on candidates only.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import cpu_loops as loops
from peelsum.codec.layout import SUB_TABLES, SketchLayout

#: Twice a cell's number fits an int32 below this.
_NARROW_CELLS = 2**30
_T = TypeVar("_T", bound=np.generic)


def magnitude(values: NDArray[np.float32]) -> int:
    """See `Kernels.magnitude`."""
    return int(loops.magnitude(_frozen(values.view(np.uint32))))


def index(values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
    """See `Kernels.index`."""
    return int(loops.index(_frozen(values.view(np.uint32)), out))


def positions(index: NDArray[np.uint32], elements: int) -> NDArray[np.int64]:
    """See `Kernels.positions`."""
    bits = _frozen(index)
    out = np.empty(loops.count(bits, elements), np.int64)
    loops.positions(bits, elements, out)
    return out


def quantize(values: NDArray[np.float32], scale: int, out: NDArray[np.int32]) -> None:
    """See `Kernels.quantize`."""
    loops.quantize(_frozen(values), np.ldexp(1.0, scale), out)


def quantize_at(
    values: NDArray[np.float32], positions: NDArray[np.int64], scale: int, out: NDArray[np.int32]
) -> None:
    """See `Kernels.quantize_at`."""
    loops.quantize_at(_frozen(values), _frozen(positions), np.ldexp(1.0, scale), out)


def dequantize(quantized: NDArray[np.int32], scale: int, divisor: int, out: NDArray[np.float32]) -> None:
    """See `Kernels.dequantize`."""
    loops.dequantize(_frozen(quantized), np.ldexp(1.0, -scale), float(divisor), out)


def dequantize_at(
    quantized: NDArray[np.int32],
    positions: NDArray[np.int64],
    scale: int,
    divisor: int,
    out: NDArray[np.float32],
) -> None:
    """See `Kernels.dequantize_at`."""
    loops.dequantize_at(_frozen(quantized), _frozen(positions), np.ldexp(1.0, -scale), float(divisor), out)


def sketch_encode(
    layout: SketchLayout, positions: NDArray[np.int64], values: NDArray[np.int32], out: NDArray[np.uint32]
) -> None:
    """See `Kernels.sketch_encode`."""
    loops.sketch_encode(
        layout.lanes,
        layout.rows,
        np.uint64(layout.seed),
        _frozen(positions),
        _frozen(values.view(np.uint32)),
        out,
    )


def sketch_decode(
    layout: SketchLayout,
    sketch: NDArray[np.uint32],
    positions: NDArray[np.int64],
    out: NDArray[np.int32],
) -> NDArray[np.int64]:
    """See `Kernels.sketch_decode`."""
    places = np.empty((positions.size, SUB_TABLES), np.int32 if layout.cells < _NARROW_CELLS else np.int64)
    cells = np.empty((layout.cells, 2), np.uint32)
    seed = np.uint64(layout.seed)
    loops.load(layout.lanes, layout.rows, seed, _frozen(positions), _frozen(sketch), places, cells)
    left, before, count = np.arange(positions.size), -1, positions.size
    out[:] = 0
    while count != before:
        before, count = count, loops.sweep(places, cells, left, count, out.view(np.uint32))
    return left[:count]


def _frozen(array: NDArray[_T]) -> NDArray[_T]:
    """A read-only view: Numba compiles one version per writability, and inputs of both kinds arrive."""
    view = array.view()
    view.flags.writeable = False
    return view
