"""What an implementation of the codec must do, and the choice between implementations.

Kernels write into arrays that the caller provides, read nothing of what was in them, and trust sizes and
types: arrays are C-contiguous, in native byte order. Implementations give identical bits.
"""

from __future__ import annotations

from typing import Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import cpu, reference
from peelsum.codec.errors import CodecError
from peelsum.codec.fixed_point import FixedPoint
from peelsum.codec.index import BloomLayout
from peelsum.codec.layout import SketchLayout
from peelsum.codec.memory import HostMemory, Memory

Implementation = Literal["cpu", "reference", "gpu"]


class Kernels(Protocol):
    """Array work of the codec. n elements; k positions, ascending and distinct, out of n.

    A bitmap of n bits is uint32[ceil(n / 32)]: element i is bit i % 32 of word i // 32, least significant bit
    first. Bitmaps have no bits from n on; those that `count` and `positions` read may.

    Where a kernel takes `first`, a multiple of 32, the bitmap or values begin at that element of a tensor;
    positions and layouts then speak of elements of the tensor.
    """

    # Index

    def magnitude(self, values: NDArray[np.float32]) -> int:
        """Largest bit pattern of |value| in values[n], 0 if n is 0; from 0x7F800000 on it is not finite."""

    def index(self, values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
        """Bitmap of the non-zeros of values[n] into out; returns their `magnitude`.

        -0.0 is zero, NaN is not.
        """

    def count(self, index: NDArray[np.uint32], elements: int) -> int:
        """How many bits are set in a bitmap of `elements` bits."""

    def positions(self, index: NDArray[np.uint32], elements: int, first: int = 0) -> NDArray[np.int64]:
        """Elements whose bit is set in a bitmap of `elements` bits, ascending: int64[k]."""

    def occupied(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many blocks of 2**b elements hold one of positions[k], for each b: int64[BLOCK_SIZES]."""

    def block_encode(
        self, index: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]
    ) -> None:
        """Bitmap of the blocks of `block` elements, a power of 2 from 2 on, that hold a bit of `index`.

        Into out[block_words(elements, block)].
        """

    def block_decode(
        self, blocks: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]
    ) -> None:
        """Bitmap of all elements of the blocks set in `blocks`, into out[index_words(elements)]."""

    def bloom_encode(
        self, layout: BloomLayout, index: NDArray[np.uint32], out: NDArray[np.uint32], first: int = 0
    ) -> None:
        """Bloom filter of a bitmap, into out[layout.words]; OR-homomorphic."""

    def bloom_decode(
        self,
        layout: BloomLayout,
        words: NDArray[np.uint32],
        elements: int,
        out: NDArray[np.uint32],
        first: int = 0,
    ) -> None:
        """Bitmap of the elements that the filter `words` lets pass, into out[index_words(elements)].

        These are all elements encoded on any worker, and a few false positives.
        """

    def gather_bits(
        self, index: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32]
    ) -> None:
        """The bits of `index` where `mask`, a bitmap of as many words, has its k bits.

        In order, as a bitmap of k bits, into out[index_words(k)].
        """

    def scatter_bits(
        self, bits: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32]
    ) -> None:
        """The inverse of `gather_bits`: bit t of `bits` to where `mask` has its t-th bit, the others 0.

        Into as many words as `mask` has.
        """

    # Numbers

    def quantize(self, values: NDArray[np.float32], fixed: FixedPoint, out: NDArray[np.int32]) -> int:
        """rint(value * 2**scale), in float64, half to even, into out[limbs, n]; returns the `magnitude`.

        Values that do not fit, or are not finite, give any words; the magnitude tells.
        """

    def quantize_at(
        self,
        values: NDArray[np.float32],
        positions: NDArray[np.int64],
        fixed: FixedPoint,
        out: NDArray[np.int32],
    ) -> None:
        """`quantize` of values[positions] into out[limbs, k]."""

    def dequantize(
        self, quantized: NDArray[np.int32], fixed: FixedPoint, divisor: int, out: NDArray[np.float32]
    ) -> None:
        """float32 of number * 2**-scale / divisor, in float64, into out[n]; too large becomes infinite.

        Numbers are quantized[limbs, n]: upper limb * 2**low_bits + lower limb as uint32, in int64.
        """

    def dequantize_at(
        self,
        quantized: NDArray[np.int32],
        positions: NDArray[np.int64],
        fixed: FixedPoint,
        divisor: int,
        out: NDArray[np.float32],
    ) -> None:
        """`dequantize` of quantized[limbs, k] into out[positions]; the rest of out[n] stays as it is."""

    # Sketch

    def sketch_encode(
        self,
        layout: SketchLayout,
        positions: NDArray[np.int64],
        values: NDArray[np.int32],
        out: NDArray[np.uint32],
    ) -> None:
        """The sketch of values[k] at positions[k] into out[layout.cells], modulo 2**32: linear in values."""

    def index_sketch(
        self,
        layout: SketchLayout,
        values: NDArray[np.float32],
        fixed: FixedPoint,
        index: NDArray[np.uint32],
        sketch: NDArray[np.uint32],
        first: int = 0,
    ) -> int:
        """`index`, and the sketch of the non-zeros' `quantize` into sketch[limbs, layout.cells], in one pass.

        Returns the `magnitude`: if values did not fit `fixed`, the sketch is any words.
        """

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
    """The kernels named `implementation`; "gpu" takes torch tensors where the others take arrays.

    Raises CodecError for a name that is none, and for "gpu" where there is no torch, triton or GPU.
    """
    if implementation == "gpu":
        try:
            from peelsum.codec import gpu
        except ImportError as error:
            raise CodecError(
                f"implementation: 'gpu' needs {error.name}; pip install 'peelsum[gpu]'"
            ) from error
        gpu.require_device()
        return cast(Kernels, gpu)
    if implementation not in _IMPLEMENTATIONS:
        known = ", ".join(get_args(Implementation))
        raise CodecError(f"implementation: {implementation!r} is unknown; use one of {known}")
    return _IMPLEMENTATIONS[implementation]


def memory(implementation: Implementation = "cpu") -> Memory:
    """The memory of these kernels' arrays. Raises CodecError as `kernels` does."""
    if kernels(implementation) in _IMPLEMENTATIONS.values():
        return HostMemory()
    from peelsum.codec.gpu_memory import DeviceMemory

    return cast(Memory, DeviceMemory())


def warm_up(implementation: Implementation = "cpu") -> None:
    """Run every kernel once, so that none is compiled within a timed step: seconds when cold.

    Those of "gpu" are compiled once more for other lanes and for sizes that are multiples of 16.
    """
    ops, room = kernels(implementation), memory(implementation)
    values = room.floats(1, 1.0)
    bitmap, other, copied = (room.receive(np.zeros(1, np.uint32)) for _ in range(3))
    sketch = room.receive(np.zeros(6, np.uint32)).reshape(2, 3)
    layout, bloom = SketchLayout(1, 1, 0), BloomLayout(1, 1, 0)
    ops.magnitude(values)
    ops.index(values, bitmap)
    where = ops.positions(bitmap, ops.count(bitmap, 1))
    ops.occupied(where)
    for block in (2, 32, 64):
        ops.block_encode(bitmap, 1, block, other)
        ops.block_decode(other, 1, block, bitmap)
    ops.bloom_encode(bloom, bitmap, other)
    ops.bloom_decode(bloom, other, 1, bitmap)
    ops.gather_bits(bitmap, bitmap, other)
    ops.scatter_bits(other, bitmap, copied)
    for fixed in (FixedPoint(0), FixedPoint(0, 31)):
        quantized = room.integers(fixed.limbs, 1)
        ops.quantize(values, fixed, quantized)
        ops.quantize_at(values, where, fixed, quantized)
        ops.dequantize(quantized, fixed, 1, values)
        ops.dequantize_at(quantized, where, fixed, 1, values)
        ops.index_sketch(layout, values, fixed, bitmap, sketch[: fixed.limbs])
        ops.sketch_encode(layout, where, quantized[0], sketch[0])
        ops.sketch_decode(layout, sketch[0], where, quantized[0])
