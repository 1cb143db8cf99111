"""What an implementation of the codec must do, and the choice between implementations.

Kernels write into arrays that the caller provides, read nothing of what was in them, and trust sizes and
types: arrays are one-dimensional, C-contiguous, in native byte order. Implementations give identical bits.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import cpu, reference
from peelsum.codec.errors import CodecError
from peelsum.codec.layout import SketchLayout

Implementation = Literal["cpu", "reference"]


class Kernels(Protocol):
    """Array work of the codec. n elements, k positions, ascending and distinct, out of n."""

    def magnitude(self, values: NDArray[np.float32]) -> int:
        """Largest bit pattern of |value| in values[n], 0 if n is 0; from 0x7F800000 on it is not finite."""

    def index(self, values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
        """Bitmap of the non-zeros of values[n] into out[ceil(n / 32)]; returns their `magnitude`.

        Element i is bit i % 32 of word i // 32, least significant bit first. -0.0 is zero, NaN is not.
        """

    def positions(self, index: NDArray[np.uint32], elements: int) -> NDArray[np.int64]:
        """Elements whose bit is set in a bitmap of `elements` bits, ascending: int64[k]."""

    def quantize(self, values: NDArray[np.float32], scale: int, out: NDArray[np.int32]) -> None:
        """rint(value * 2**scale), in float64, half to even, into out[n]; values fit (see `scale_for`)."""

    def quantize_at(
        self, values: NDArray[np.float32], positions: NDArray[np.int64], scale: int, out: NDArray[np.int32]
    ) -> None:
        """`quantize` of values[positions] into out[k]."""

    def dequantize(
        self, quantized: NDArray[np.int32], scale: int, divisor: int, out: NDArray[np.float32]
    ) -> None:
        """float32 of quantized * 2**-scale / divisor (in float64) into out[n]; too large becomes infinite."""

    def dequantize_at(
        self,
        quantized: NDArray[np.int32],
        positions: NDArray[np.int64],
        scale: int,
        divisor: int,
        out: NDArray[np.float32],
    ) -> None:
        """`dequantize` of quantized[k] into out[positions]; the rest of out[n] stays as it is."""

    def sketch_encode(
        self,
        layout: SketchLayout,
        positions: NDArray[np.int64],
        values: NDArray[np.int32],
        out: NDArray[np.uint32],
    ) -> None:
        """The sketch of values[k] at positions[k] into out[layout.cells], modulo 2**32: linear in values."""

    def sketch_decode(
        self,
        layout: SketchLayout,
        sketch: NDArray[np.uint32],
        positions: NDArray[np.int64],
        out: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """Values of the candidates positions[k] into out[k], by peeling; returns the left-over, ascending.

        The left-over int64[m] numbers candidates (not elements) that lie in the 2-core; their `out` is 0. It
        depends on layout and positions only, so it is the same on every worker. Candidates must cover every
        element that any worker encoded.
        """


_IMPLEMENTATIONS: dict[str, Kernels] = {"cpu": cpu, "reference": reference}


def kernels(implementation: Implementation = "cpu") -> Kernels:
    """The kernels named `implementation`. Raises CodecError for a name that is none."""
    if implementation not in _IMPLEMENTATIONS:
        known = ", ".join(get_args(Implementation))
        raise CodecError(f"implementation: {implementation!r} is unknown; use one of {known}")
    return _IMPLEMENTATIONS[implementation]


def index_words(elements: int) -> int:
    """Words of a bitmap of `elements` bits."""
    return -(-elements // 32)


def warm_up(implementation: Implementation = "cpu") -> None:
    """Run every kernel once, so that none is compiled within a timed step: seconds when cold."""
    ops, values = kernels(implementation), np.ones(1, np.float32)
    bitmap, quantized, layout = np.zeros(1, np.uint32), np.zeros(1, np.int32), SketchLayout(1, 1, 0)
    sketch = np.zeros(layout.cells, np.uint32)
    ops.magnitude(values)
    ops.index(values, bitmap)
    where = ops.positions(bitmap, 1)
    ops.quantize(values, 0, quantized)
    ops.quantize_at(values, where, 0, quantized)
    ops.dequantize(quantized, 0, 1, values)
    ops.dequantize_at(quantized, where, 0, 1, values)
    ops.sketch_encode(layout, where, quantized, sketch)
    ops.sketch_decode(layout, sketch, where, quantized)
