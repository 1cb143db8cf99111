"""The interface that every implementation of the codec provides, and the choice between implementations.

Kernels write into arrays that the caller provides and ignore their previous content. They do not check sizes
and types: arrays must be C-contiguous and in native byte order. All implementations give identical bits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import cpu, cpu_bundle_loops, cpu_index_loops, reference
from peelsum.codec.errors import CodecError
from peelsum.codec.fixed_point import EXPONENT_WORDS, FixedPoint
from peelsum.codec.index import BloomLayout
from peelsum.codec.layout import SketchLayout
from peelsum.codec.memory import HostMemory, Memory
from peelsum.codec.packed import Packed
from peelsum.codec.selection import Selection
from peelsum.compiled_once import cache_of, first_alone

Implementation = Literal["cpu", "reference", "gpu"]


class Kernels(Protocol):
    """The codec's array operations, on n elements and on k ascending, distinct positions among them.

    A bitmap of n bits is uint32[ceil(n / 32)]: element i is bit i % 32 of word i // 32, least significant bit
    first. Bits from n on are 0, except that `count` and `positions` accept and ignore set ones.

    If a kernel takes `first`, a multiple of 32, the bitmap or values begin at that element of a tensor;
    positions and layouts then refer to elements of the tensor.
    """

    # Index

    def magnitude(self, values: NDArray[np.float32]) -> int:
        """Return the largest bit pattern of |value| in values[n], 0 if n is 0.

        From 0x7F800000 on, some value is not finite.
        """

    def index(self, values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
        """Write the bitmap of the non-zeros of values[n] into out; return the values' `magnitude`.

        -0.0 is zero, NaN is not.
        """

    def index_over(self, values: NDArray[np.float32], out: NDArray[np.uint32]) -> int:
        """Do what `index` does, and replace -0.0 by 0.0 in values[n], in place."""

    def count(self, index: NDArray[np.uint32], elements: int) -> int:
        """Count the set bits of a bitmap of `elements` bits."""

    def counted(self, index: NDArray[np.uint32], elements: int) -> Callable[[], int]:
        """Start to `count`; return a function that returns the number, and waits for a device until then."""

    def positions(
        self, index: NDArray[np.uint32], elements: int, first: int = 0, count: int | None = None
    ) -> NDArray[np.int64]:
        """Return the elements whose bit is set in a bitmap of `elements` bits, ascending: int64[k].

        `count` is k, if it is known; without it, the GPU's kernels wait for the device to count.
        """

    def occupied(
        self, positions: NDArray[np.int64], total: NDArray[np.int32] | None = None
    ) -> NDArray[np.int64]:
        """Count the blocks of 2**b elements that hold one of positions[k], for each b: int64[BLOCK_SIZES].

        With total[k], only positions count whose `total` is not zero.
        """

    def occupied_by(self, selection: Selection) -> NDArray[np.int64]:
        """Count the blocks of 2**b elements with a selected one, for each b: int64[BLOCK_SIZES]."""

    def block_encode(
        self, index: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]
    ) -> None:
        """Write the bitmap of the blocks that hold a set bit of `index`.

        `block` is the number of elements in a block, a power of 2 and at least 2; `out` has
        block_words(elements, block) words.
        """

    def block_decode(
        self, blocks: NDArray[np.uint32], elements: int, block: int, out: NDArray[np.uint32]
    ) -> None:
        """Write the bitmap of all elements of the blocks set in `blocks` into out[index_words(elements)]."""

    def bloom_encode(
        self, layout: BloomLayout, index: NDArray[np.uint32], out: NDArray[np.uint32], first: int = 0
    ) -> None:
        """Write the Bloom filter of a bitmap into out[layout.words].

        The OR of filters is the filter of the bitmaps' OR.
        """

    def bloom_decode(
        self,
        layout: BloomLayout,
        words: NDArray[np.uint32],
        elements: int,
        out: NDArray[np.uint32],
        first: int = 0,
    ) -> None:
        """Write the bitmap of the elements that pass the filter `words` into out[index_words(elements)].

        They are all elements encoded on any worker, and a few false positives.
        """

    def gather_bits(
        self, index: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32]
    ) -> Any:
        """Write the bits of `index` that `mask` selects, in order, as a bitmap of k bits.

        `mask` is a bitmap of as many words as `index`, with k set bits; `out` has index_words(k) words.
        Return a scan of `mask` for `scatter_bits`, or None.
        """

    def scatter_bits(
        self, bits: NDArray[np.uint32], mask: NDArray[np.uint32], out: NDArray[np.uint32], scan: Any = None
    ) -> None:
        """Write bit t of `bits` to the place of the t-th set bit of `mask`, and 0 elsewhere.

        The inverse of `gather_bits`; `out` has as many words as `mask`. `scan` is what `gather_bits` returned
        for the same mask; without it, the mask is scanned again.
        """

    # Numbers

    def block_exponents(self, values: NDArray[np.float32], block: int, out: NDArray[np.uint32]) -> int:
        """Write a word for each block of `block` elements, a power of 2 from 32 on; return the `magnitude`.

        The words are those of `block_scales.exponents_of`. `out` has ceil(n / block) words.
        """

    def index_exponents(
        self,
        values: NDArray[np.float32],
        block: int,
        index: NDArray[np.uint32],
        exponents: NDArray[np.uint32],
        *,
        over: bool = False,
        packed: Packed | None = None,
    ) -> int:
        """Do what `index`, or `index_over`, and `block_exponents` do, in one pass; return the `magnitude`.

        packed: receives the non-zeros, in the same pass, if `gather` is faster with them.
        """

    def block_octaves(self, words: NDArray[np.uint32], exponent_field: int, out: NDArray[np.int32]) -> None:
        """Write the `octaves` of a `FixedPoint` for each block, from the OR of all workers' words.

        They are those of `block_scales.octaves_of`; `out` has as many elements as `words`.
        """

    def quantize(self, values: NDArray[np.float32], fixed: FixedPoint, out: NDArray[np.int32]) -> int:
        """Write rint(value * 2**scale) into out[n]; return the values' `magnitude`.

        Element i has the scale of its block if `fixed` has `octaves`, here and below. The product is computed
        in float64 and rounded half to even. If a value does not fit or is not finite, as the magnitude shows,
        its words are undefined.
        """

    def quantize_at(
        self,
        values: NDArray[np.float32],
        positions: NDArray[np.int64],
        fixed: FixedPoint,
        out: NDArray[np.int32],
    ) -> None:
        """Apply `quantize` to values[positions], into out[k]."""

    def dequantize(
        self, quantized: NDArray[np.int32], fixed: FixedPoint, divisor: int, out: NDArray[np.float32]
    ) -> None:
        """Write number * 2**-scale / divisor into float32 out[n], computed in float64.

        The numbers are quantized[n]. A result too large for float32 becomes infinite.
        """

    def dequantize_at(
        self,
        quantized: NDArray[np.int32],
        positions: NDArray[np.int64],
        fixed: FixedPoint,
        divisor: int,
        out: NDArray[np.float32],
    ) -> None:
        """Apply `dequantize` to quantized[k], into out[positions]; keep the rest of out[n]."""

    def gather(
        self,
        values: NDArray[np.float32],
        selection: Selection,
        fixed: FixedPoint,
        out: NDArray[np.int32],
        packed: Packed | None = None,
    ) -> None:
        """Apply `quantize` to the selected elements of values[n], into out[k].

        Blocks of scales have 32 elements or more, here and in `scatter`. packed: as `index_exponents` left it
        after reading the same values. It spares another read; the non-zeros must be among those selected.
        """

    def scatter(
        self,
        quantized: NDArray[np.int32],
        selection: Selection,
        fixed: FixedPoint,
        divisor: int,
        out: NDArray[np.float32],
        *,
        clear: bool,
    ) -> None:
        """Apply `dequantize` to quantized[k], into the selected elements of out[n].

        If `clear`, all other elements become 0; if not, they must be 0.
        """

    # Sketch

    def sketch_encode(
        self,
        layout: SketchLayout,
        positions: NDArray[np.int64],
        values: NDArray[np.int32],
        out: NDArray[np.uint32],
    ) -> None:
        """Write the sketch of values[k] at positions[k] into out[layout.cells].

        If the layout has several segments and is not `dealt`, the positions must be those of all candidates,
        ascending. A cell is a sum modulo 2**32, so the sketch is linear in the values.
        """

    def index_sketch(
        self,
        layout: SketchLayout,
        values: NDArray[np.float32],
        fixed: FixedPoint,
        index: NDArray[np.uint32],
        sketch: NDArray[np.uint32],
        first: int = 0,
    ) -> int:
        """Write the bitmap and the sketch of the quantized non-zeros in one pass; return the `magnitude`.

        The outputs are those of `index` and of `sketch_encode`: sketch[layout.cells].
        `fixed` has no `octaves`, and the layout is `dealt` or has one segment. If a value does not fit
        `fixed`, as the magnitude shows, the sketch is undefined.
        """

    def sketch_decode(
        self,
        layout: SketchLayout,
        sketch: NDArray[np.uint32],
        positions: NDArray[np.int64],
        out: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """Peel: write the values of the candidates positions[k] into out[k]; return the left-over.

        `sketch` is uint32[layout.cells]. The left-over, int64[m], ascending, holds indices into `positions`:
        the candidates in the 2-core, whose `out` is 0. It depends only on layout and positions, so it is the
        same on every worker. The candidates must include every element that any worker encoded.
        """

    def peeled(
        self,
        layout: SketchLayout,
        sketch: NDArray[np.uint32],
        positions: NDArray[np.int64],
        out: NDArray[np.int32],
    ) -> Callable[[], NDArray[np.int64]]:
        """Start to do what `sketch_decode` does; return a function that returns the left-over.

        A device writes `out` in order with later kernels. The function waits until the left-over's size is
        known.
        """


_IMPLEMENTATIONS: dict[str, Kernels] = {"cpu": cpu, "reference": reference}


def kernels(implementation: Implementation = "cpu") -> Kernels:
    """Return the kernels named `implementation`. "gpu" takes torch tensors, the others NumPy arrays.

    Raises CodecError for an unknown name, and for "gpu" if torch, Triton or a GPU is missing.
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


def memory(implementation: Implementation = "cpu", *, direct: bool = False) -> Memory:
    """Return the memory in which these kernels' arrays lie. Raises CodecError as `kernels` does.

    direct: whether words on a device are sent from there, as over NCCL, and not by way of the host.
    """
    if kernels(implementation) in _IMPLEMENTATIONS.values():
        return HostMemory()
    from peelsum.codec.gpu_memory import DeviceMemory

    return cast(Memory, DeviceMemory(direct=direct))


def warm_up(implementation: Implementation = "cpu") -> None:
    """Run every kernel once, so that a later timed step does not include its compilation.

    Takes seconds if Numba's or Triton's cache is cold; of processes that start together, one compiles for
    Numba's cache and the others wait for it. Triton compiles the "gpu" kernels once more for other
    lanes, for sizes that are multiples of 16, and for the first step with several sparse tensors.
    """
    ops, room = kernels(implementation), memory(implementation)
    with first_alone(cache_of(cpu_index_loops.count), "codec") if implementation == "cpu" else nullcontext():
        _run_all(ops, room)
        if implementation == "cpu":
            cpu_bundle_loops.warm_up()
        elif implementation == "gpu":
            from peelsum.codec import gpu

            gpu.warm_up_bundles(cast(Any, room.floats(1, 1.0)))


def _run_all(ops: Kernels, room: Memory) -> None:
    values = room.floats(1, 1.0)
    bitmap, other, copied = (room.receive(np.zeros(1, np.uint32)) for _ in range(3))
    sketch = room.receive(np.zeros(6, np.uint32))
    layout, bloom = SketchLayout(1, 1, 0), BloomLayout(1, 1, 0)
    dealt = SketchLayout(1, 1, 0, 2, dealt=True)
    room.write_exponent(ops.magnitude(values), room.words(EXPONENT_WORDS))
    ops.index(values, bitmap)
    ops.index_over(values, bitmap)
    where = ops.positions(bitmap, ops.count(bitmap, 1))
    selection = Selection(1, lambda: where, bitmap)
    ops.occupied(where)
    ops.occupied_by(selection)
    for block in (2, 32, 64):
        ops.block_encode(bitmap, 1, block, other)
        ops.block_decode(other, 1, block, bitmap)
    ops.bloom_encode(bloom, bitmap, other)
    ops.bloom_decode(bloom, other, 1, bitmap)
    ops.gather_bits(bitmap, bitmap, other)
    ops.scatter_bits(other, bitmap, copied)
    ops.block_exponents(values, 32, other)
    packed = Packed()
    for over in (False, True):
        ops.index_exponents(values, 32, bitmap, other, over=over)
        ops.index_exponents(values, 32, bitmap, other, over=over, packed=packed)
    octaves, quantized = room.integers(1), room.integers(1)
    ops.block_octaves(other, 127, octaves)
    for fixed in (FixedPoint(0, octaves, 32), FixedPoint(0)):
        ops.quantize(values, fixed, quantized)
        ops.quantize_at(values, where, fixed, quantized)
        ops.dequantize(quantized, fixed, 1, values)
        ops.dequantize_at(quantized, where, fixed, 1, values)
        ops.gather(values, selection, fixed, quantized)
        ops.gather(values, selection, fixed, quantized, packed)
        ops.scatter(quantized, selection, fixed, 1, values, clear=True)
        if fixed.octaves is None:
            ops.index_sketch(layout, values, fixed, bitmap, sketch[:3])
        ops.sketch_encode(layout, where, quantized, sketch[:3])
        ops.sketch_decode(layout, sketch[:3], where, quantized)
        ops.sketch_decode(dealt, sketch, where, quantized)
