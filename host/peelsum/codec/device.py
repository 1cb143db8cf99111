"""The interface to a device: the codec's operations, the memory of their arrays, and the choice of a device.

A device holds a step's arrays and runs the codec on them. Operations write into arrays that the caller
provides, whatever these contain. They do not check sizes and types: arrays must be C-contiguous and in native
byte order. All devices compute identical bits.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.buffers import frozen
from peelsum.codec.arrays import Floats, Integers, Numbers, Words
from peelsum.codec.cpu.index import CpuIndex, occupied
from peelsum.codec.cpu.memory import HostMemory
from peelsum.codec.cpu.scales import quantize
from peelsum.codec.cpu.segments import CpuSegments
from peelsum.codec.cpu.sketch import CpuSketch
from peelsum.codec.cpu.words import address
from peelsum.codec.errors import CodecError
from peelsum.codec.fixed_point import FixedPoint
from peelsum.codec.index import BloomLayout
from peelsum.codec.layout import SketchLayout
from peelsum.codec.reference.index import ReferenceIndex
from peelsum.codec.reference.segments import ReferenceSegments
from peelsum.codec.reference.sketch import ReferenceSketch
from peelsum.codec.segments import Segment, SegmentCodec, SegmentTable
from peelsum.extras import missing_extra_message

Implementation = Literal["cpu", "reference", "gpu"]


class CodecDevice(Protocol):
    """The codec's operations, on a step's segments and on bitmaps of n elements; and memory for their arrays.

    A bitmap of n bits is uint32[ceil(n / 32)]: element i is bit i % 32 of word i // 32, least significant bit
    first. Bits from n on are 0, except that `positions` accepts and ignores set ones. Positions, int64[k],
    are ascending and distinct. If an operation takes `first`, a multiple of 32, the bitmap begins at that
    element of a tensor; positions and layouts then refer to elements of the tensor.

    Code for several devices uses only what NumPy's arrays and torch's tensors share (slices, `len`, `any`,
    assignment), and this protocol for the rest. New arrays are uninitialized.
    """

    def segments(
        self, table: SegmentTable, values: Sequence[Any], out: Sequence[Any], workers: int, /
    ) -> SegmentCodec:
        """Return a step's `SegmentCodec`, for the segments of a table and their values, float32[n] each.

        out: for each segment, the array to which its result is written, or None for a new one.
        workers: how many workers' values are summed.
        """

    # Index

    def count(self, index: Words) -> int:
        """Return how many bits of a bitmap are set. It may be on this device, or on the host, as received."""

    def positions(self, index: Words, elements: int, first: int = 0, count: int | None = None) -> Numbers:
        """Return the elements whose bit is set in a bitmap of `elements` bits, ascending: int64[k].

        `count` is k, if it is known; without it, the GPU's kernels wait for the device to count.
        """

    def block_encode(self, index: Words, elements: int, block: int, out: Words) -> None:
        """Write the bitmap of the blocks that hold a set bit of `index`.

        `block` is the number of elements in a block, a power of 2 and at least 2; `out` has
        block_words(elements, block) words.
        """

    def block_decode(self, blocks: Words, elements: int, block: int, out: Words) -> None:
        """Write the bitmap of all elements of the blocks set in `blocks` into out[index_words(elements)]."""

    def bloom_encode(self, layout: BloomLayout, index: Words, out: Words, first: int = 0) -> None:
        """Write the Bloom filter of a bitmap into out[layout.words].

        The OR of filters is the filter of the bitmaps' OR.
        """

    def bloom_decode(
        self, layout: BloomLayout, words: Words, elements: int, out: Words, first: int = 0
    ) -> None:
        """Write the bitmap of the elements that pass the filter `words` into out[index_words(elements)].

        They are all elements encoded on any worker, and a few false positives.
        """

    def gather_bits(self, index: Words, mask: Words, out: Words) -> Any:
        """Write the bits of `index` that `mask` selects, in order, as a bitmap of k bits.

        `mask` is a bitmap of as many words as `index`, with k set bits; `out` has index_words(k) words.
        Return a scan of `mask` for `scatter_bits`, or None.
        """

    def scatter_bits(self, bits: Words, mask: Words, out: Words, scan: Any = None) -> None:
        """Write bit t of `bits` to the place of the t-th set bit of `mask`, and 0 elsewhere.

        The inverse of `gather_bits`; `out` has as many words as `mask`. `scan` is what `gather_bits` returned
        for the same mask; without it, the mask is scanned again.
        """

    # Sketch

    def sketch_encode(self, layout: SketchLayout, positions: Numbers, values: Integers, out: Words) -> None:
        """Write the sketch of values[k] at positions[k] into out[layout.cells].

        A cell is a sum modulo 2**32, so the sketch is linear in the values.
        """

    def sketch_decode(
        self, layout: SketchLayout, sketch: Words, positions: Numbers, out: Integers
    ) -> Numbers:
        """Peel: write the values of the candidates positions[k] into out[k]; return the unpeeled candidates.

        `sketch` is uint32[layout.cells]. The unpeeled candidates, the left-over, are indices into
        `positions`, int64[m], ascending: the 2-core, and all candidates of segments with more than 2**16.
        Their `out` is 0. They depend only on layout and positions, so they are the same on every worker. The
        candidates must include every element that any worker encoded.
        """

    # Memory

    @property
    def is_host(self) -> bool:
        """Whether arrays are NumPy's, in the host's memory."""

    @property
    def direct(self) -> bool:
        """Whether kernels read and write the words that are sent.

        If not, `send` copies them to the host, and `placed` copies received words to the device.
        """

    def validated(self, tensor: Any) -> Any:
        """Return a user's tensor as this device's functions take it.

        Raises CodecError if it is not a tensor, or on another device.
        """

    def usable_as_is(self, tensors: Collection[Any]) -> bool:
        """Return whether `validated` returns all of these tensors unchanged, and all are `overwritable`."""

    def overwritable(self, tensor: Any) -> bool:
        """Return whether a result can be written over a validated tensor: `flatten` does not copy it."""

    def device_context(self, tensor: Any) -> AbstractContextManager[object]:
        """Return a context in which new arrays are allocated where a validated tensor lies."""

    def memory_range(self, tensor: Any) -> tuple[int, int]:
        """Return the addresses of a validated tensor's first byte and of the one after its last."""

    def dtype(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype, e.g. "float32", the same on every device."""

    def flatten(self, tensors: Sequence[Any], into: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return validated tensors as float32[n] each, in C order, and the flat arrays for results, or None.

        A tensor that is float32 in C order is not copied. If a result is written over its tensor, both are
        the same object. The tensors of `into` are `overwritable`, or None.
        """

    def words(self, count: int) -> Words:
        """Allocate uint32[count]."""

    def integers(self, count: int) -> Integers:
        """Allocate int32[count]."""

    def as_int32(self, words: Words) -> Integers:
        """Return a view of `words` as int32[k]."""

    def to_host(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array's content as a NumPy array, words as uint32. Waits for pending writes.

        An array on the host is returned as it is.
        """

    def staging_buffer(self, count: int) -> Words:
        """Allocate uint32[count] for words to be sent: on the device if `direct`, else on the host."""

    def copy_async(self, words: Words, out: Words) -> None:
        """Start to copy `words` to `out`, an array from `traveling`; `settle` waits for the copy."""

    def synchronize(self) -> None:
        """Wait for every `send`."""

    def to_device(self, array: NDArray[Any]) -> Any:
        """Copy an array from the host to this device; return an array that is on this device as it is."""

    def concatenate(self, parts: Sequence[Integers]) -> Integers:
        """Return one or more parts end to end; on a GPU by one launch, for any number of parts."""

    def searchsorted(self, ascending: Numbers, values: Numbers) -> Numbers:
        """Return the indices of `values` in an ascending array that contains them: int64[k]."""

    # For a step that ends on the host, because the device is out of memory

    def out_of_memory(self, error: RuntimeError) -> str | None:
        """Return how much memory could not be allocated, as text; None if the error has another cause."""

    def host_copy(self, tensor: Any) -> Any:
        """Return a validated tensor's content as `HOST` takes it, without new memory of the device."""

    def as_tensor(self, values: Floats) -> Any:
        """Return a result on the host as a user gets it, an array or a tensor, in the same memory."""

    def copy_to_tensor(self, values: Floats, like: Any, out: Any) -> Any:
        """Copy a result from the host to `out`; if that is None, to new memory on the device of `like`."""


class CpuDevice(CpuIndex, CpuSketch, HostMemory):
    """The host: the codec in Numba, on NumPy arrays."""

    segments = CpuSegments


class ReferenceDevice(ReferenceIndex, ReferenceSketch, HostMemory):
    """The host, slowly: the codec in NumPy, whose bits all other devices compute."""

    segments = ReferenceSegments


#: The device of arrays in the host's memory.
HOST: CodecDevice = CpuDevice()


def device(implementation: Implementation = "cpu", *, direct: bool = False) -> CodecDevice:
    """Return the device of an implementation. "gpu" takes torch tensors, the others NumPy arrays.

    direct: whether words on a GPU are sent from its memory, as over NCCL, and not from the host's.
    Raises CodecError for an unknown name, and for "gpu" if torch, Triton or a GPU is missing.
    """
    if implementation == "cpu":
        return HOST
    if implementation == "reference":
        return ReferenceDevice()
    if implementation != "gpu":
        known = ", ".join(get_args(Implementation))
        raise CodecError(f"implementation: {implementation!r} is unknown; use one of {known}")
    try:
        import torch

        from peelsum.codec.gpu.device import GpuDevice
    except ImportError as error:
        raise CodecError(f"implementation: 'gpu': {missing_extra_message(str(error.name), 'gpu')}") from error
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise CodecError(
            "implementation: 'gpu' needs a GPU that torch can use; set TRITON_INTERPRET=1 to run it, slowly, "
            "on a CPU"
        )
    return cast(CodecDevice, GpuDevice(direct=direct))


def warm_up(implementation: Implementation = "cpu") -> None:
    """Compile every operation by running it once, so that later steps do not wait for compilation.

    Takes seconds if Numba's or Triton's cache is empty. Triton compiles the "gpu" kernels once more for sizes
    that are multiples of 16.
    """
    codec = device(implementation)
    _run_bitmaps(codec)
    if implementation == "reference":
        return
    _run_segments(codec)
    quantize(np.ones(1, np.float32), FixedPoint(0), np.empty(1, np.int32))
    occupied(np.zeros(1, np.int64))
    address(frozen(np.ones(1, np.float32)))  # of a caller's tensor
    SegmentTable([Segment(1, sparse=False)]).locate_elements(np.ones(1, np.bool))


def _run_bitmaps(codec: CodecDevice) -> None:
    """Run the operations on bitmaps and sketches once, on a single element."""
    bitmap, other, copied = (codec.to_device(np.ones(1, np.uint32)) for _ in range(3))
    sketch = codec.to_device(np.zeros(6, np.uint32))
    bloom = BloomLayout(1, 1, 0)
    codec.count(bitmap)
    where = codec.positions(bitmap, 1)
    for block in (2, 32, 64):
        codec.block_encode(bitmap, 1, block, other)
        codec.block_decode(other, 1, block, bitmap)
    codec.bloom_encode(bloom, bitmap, other)
    codec.bloom_decode(bloom, other, 1, bitmap)
    codec.gather_bits(bitmap, bitmap, other)
    codec.scatter_bits(other, bitmap, copied)
    quantized = codec.as_int32(codec.to_device(np.ones(1, np.uint32)))
    for segments in (1, 2):
        layout = SketchLayout(1, 0, segments)
        codec.sketch_encode(layout, where, quantized, sketch[: layout.cells])
        codec.sketch_decode(layout, sketch[: layout.cells], where, quantized)


def _run_segments(device: CodecDevice) -> None:
    """Run the operations of `SegmentCodec` once, with results in place and in new arrays."""
    table = SegmentTable([Segment(1, sparse=False), Segment(1, sparse=True)])
    first, second, into = (device.to_device(np.ones(1, np.float32)) for _ in range(3))
    for out in ([first, into], [first, None]):
        codec = device.segments(table, [first, second], out, 1)
        words = device.words(table.scale_words)
        bitmap = codec.write_scales(words)
        codec.read_scales(device.to_host(words))
        codec.set_scales(codec.fields, codec.scales)
        codec.values_at(np.zeros(1, np.int64))
        dense, sparse = (device.integers(count) for count in codec.set_candidates(bitmap))
        codec.write_dense(dense)
        codec.gather(sparse)
        codec.decode(dense, sparse, 1, (np.zeros(1, np.int64), np.zeros(1, np.float32)))
        codec.counts()
        codec.occupied(sparse, np.ones(2, np.int64))
