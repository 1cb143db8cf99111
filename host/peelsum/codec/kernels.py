"""The interface that every implementation of the codec provides, and the choice between implementations.

Kernels write into arrays that the caller provides and ignore their previous content. They do not check sizes
and types: arrays must be C-contiguous and in native byte order. All implementations give identical bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import cpu, cpu_block_loops, cpu_index_loops, cpu_segments, reference
from peelsum.codec.errors import CodecError
from peelsum.codec.fixed_point import FixedPoint
from peelsum.codec.index import BloomLayout
from peelsum.codec.layout import SketchLayout
from peelsum.codec.memory import HostMemory, Memory
from peelsum.codec.reference_segments import ReferenceSegments
from peelsum.codec.segments import Segment, SegmentCodec, Table
from peelsum.extras import missing

Implementation = Literal["cpu", "reference", "gpu"]
#: Returns the codec of a step: of a table, its tensors float32[n] in the order of the segments, where their
#: results are written, or None for a new array each, and the number of workers.
SegmentCodecs = Callable[[Table, Sequence[Any], Sequence[Any], int], SegmentCodec]


class Kernels(Protocol):
    """The codec's array operations, on n elements and on k ascending, distinct positions among them.

    A bitmap of n bits is uint32[ceil(n / 32)]: element i is bit i % 32 of word i // 32, least significant bit
    first. Bits from n on are 0, except that `count` and `positions` accept and ignore set ones.

    If a kernel takes `first`, a multiple of 32, the bitmap or values begin at that element of a tensor;
    positions and layouts then refer to elements of the tensor.
    """

    # Index

    def count(self, index: NDArray[np.uint32], elements: int) -> int:
        """Count the set bits of a bitmap of `elements` bits."""

    def positions(
        self, index: NDArray[np.uint32], elements: int, first: int = 0, count: int | None = None
    ) -> NDArray[np.int64]:
        """Return the elements whose bit is set in a bitmap of `elements` bits, ascending: int64[k].

        `count` is k, if it is known; without it, the GPU's kernels wait for the device to count.
        """

    def occupied(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the blocks of 2**b elements that hold one of positions[k], for each b: int64[BLOCK_SIZES]."""

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

    # Numbers. The kernels named "gpu" lack this: `SegmentCodec` makes numbers there.

    def quantize(self, values: NDArray[np.float32], fixed: FixedPoint, out: NDArray[np.int32]) -> None:
        """Write rint(value * 2**scale) into out[n].

        `fixed` has no `octaves`. The product is computed in float64 and rounded half to even.
        The number of a value that does not fit, or is not finite, is undefined.
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

        A cell is a sum modulo 2**32, so the sketch is linear in the values.
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
        the candidates in the 2-core, and those of segments with more than 2**16. Their `out` is 0. It depends
        only on layout and positions, so it is the same on every worker. The candidates must include every
        element that any worker encoded.
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
            raise CodecError(f"implementation: 'gpu': {missing(str(error.name), 'gpu')}") from error
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


def segment_codec(implementation: Implementation = "cpu") -> SegmentCodecs:
    """Return the codec of a step's segments, with these kernels. Raises CodecError as `kernels` does."""
    kernels(implementation)
    if implementation == "gpu":
        from peelsum.codec.gpu_segments import GpuSegments

        return cast(SegmentCodecs, GpuSegments)
    return cpu_segments.CpuSegments if implementation == "cpu" else ReferenceSegments


def warm_up(implementation: Implementation = "cpu") -> None:
    """Run every kernel once, so that a later timed step does not include its compilation.

    Takes seconds if Numba's or Triton's cache is cold. Triton compiles the "gpu" kernels once more for sizes
    that are multiples of 16.
    """
    ops, room = kernels(implementation), memory(implementation)
    _run_all(ops, room)
    if implementation != "gpu":
        ops.quantize(np.ones(1, np.float32), FixedPoint(0), np.empty(1, np.int32))
    if implementation == "cpu":
        cpu_index_loops.address(cpu.frozen(np.ones(1, np.float32)))  # of a caller's tensor
    if implementation != "reference":
        _run_segments(segment_codec(implementation), room)
        _run_blocks()


def _run_all(ops: Kernels, room: Memory) -> None:
    bitmap, other, copied = (room.receive(np.ones(1, np.uint32)) for _ in range(3))
    sketch = room.receive(np.zeros(6, np.uint32))
    bloom = BloomLayout(1, 1, 0)
    where = ops.positions(bitmap, ops.count(bitmap, 1))
    ops.occupied(where)
    for block in (2, 32, 64):
        ops.block_encode(bitmap, 1, block, other)
        ops.block_decode(other, 1, block, bitmap)
    ops.bloom_encode(bloom, bitmap, other)
    ops.bloom_decode(bloom, other, 1, bitmap)
    ops.gather_bits(bitmap, bitmap, other)
    ops.scatter_bits(other, bitmap, copied)
    quantized = room.signed(room.receive(np.ones(1, np.uint32)))
    for segments in (1, 2):
        layout = SketchLayout(1, 0, segments)
        ops.sketch_encode(layout, where, quantized, sketch[: layout.cells])
        ops.sketch_decode(layout, sketch[: layout.cells], where, quantized)


def _run_blocks() -> None:
    words, firsts = cpu.frozen(np.ones(1, np.uint32)), np.array([0, 1])
    fields, flags = np.ones(1, np.int32), np.ones(1, np.bool)
    cpu_block_loops.levels_of(words, firsts, fields, fields, 1, fields)
    cpu_block_loops.expect(fields, firsts, fields)
    cpu_block_loops.judge(words, firsts, fields, fields, 1, 1, fields, fields, flags, flags)
    cpu_block_loops.learn(fields, fields, firsts)
    Table([Segment(1, sparse=False)]).located(flags)
    blocks, numbers = np.zeros((2, 1), np.int64)
    cpu_block_loops.numbers_of(np.ones(1, np.float32), blocks, fields, 1, numbers)


def _run_segments(codecs: SegmentCodecs, room: Memory) -> None:
    table = Table([Segment(1, sparse=False), Segment(1, sparse=True)])
    values, into = [room.floats(1, 1.0), room.floats(1, 1.0)], room.floats(1)
    for out in ([values[0], into], [values[0], None]):
        codec = codecs(table, values, out, 1)
        words = room.words(table.scale_words)
        bitmap = codec.write_scales(words)
        codec.read_scales(room.on_host(words))
        codec.use(codec.fields, codec.scales)
        codec.values_at(np.zeros(1, np.int64))
        dense, sparse = (room.integers(count) for count in codec.place(bitmap))
        codec.write_dense(dense)
        codec.gather(sparse)
        codec.read(dense, sparse, 1, (np.zeros(1, np.int64), np.zeros(1, np.float32)))
        codec.counts(dense, sparse, (dense, sparse))
        codec.occupied(sparse, np.ones(2, np.int64))
