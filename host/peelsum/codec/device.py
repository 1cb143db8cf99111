"""The interface to a device: the codec's operations, the memory of their arrays, and the choice of a device.

A device holds a step's arrays and runs the codec on them. Operations write into arrays that the caller
provides, whatever these contain. They do not check sizes and types: arrays must be C-contiguous and in native
byte order. All devices compute identical bits.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.buffers import frozen
from peelsum.codec.arrays import BFloat16, CodecError, Floats, Integers, Numbers, Words, to_float32
from peelsum.codec.cpu.index import CpuIndex, occupied
from peelsum.codec.cpu.scales import quantize
from peelsum.codec.cpu.segments import SegmentCodec, address
from peelsum.codec.cpu.sketch import CpuSketch
from peelsum.codec.fixed_point import FixedPoint
from peelsum.codec.layout import BloomLayout, SketchLayout
from peelsum.codec.reference.index import ReferenceIndex
from peelsum.codec.reference.segments import ReferenceSegments
from peelsum.codec.reference.sketch import ReferenceSketch
from peelsum.codec.segments import Segment, SegmentTable
from peelsum.extras import missing_extra_message

Implementation = Literal["cpu", "reference", "gpu"]
_FLOAT32 = np.dtype(np.float32)
_NO_CONTEXT = nullcontext()


class CodecDevice(CpuIndex, CpuSketch):
    """The codec's operations, on a step's segments and on bitmaps of n elements; and memory for their arrays.

    This is the device of the host: the codec in Numba, on NumPy arrays. Other devices have the same methods.

    A bitmap of n bits is uint32[ceil(n / 32)]: element i is bit i % 32 of word i // 32, least significant bit
    first. Bits from n on are 0, except that `positions` accepts and ignores set ones. Positions, int64[k],
    are ascending and distinct. If an operation takes `first`, a multiple of 32, the bitmap begins at that
    element of a tensor; positions and layouts then refer to elements of the tensor.

    Code for several devices uses only what NumPy's arrays and torch's tensors share (slices, `len`, `any`,
    assignment), and this class for the rest. New arrays are uninitialized.
    """

    #: segments(table, values, out, workers): makes a step's codec, for the segments of a table and their
    #: values, float32[n] each. out: for each segment, the array to which its result is written, or None for a
    #: new one. workers: how many workers' values are summed.
    segments: type[SegmentCodec] = SegmentCodec
    #: Whether arrays are NumPy's, in the host's memory.
    is_host = True
    #: Whether kernels read and write the words that are sent. If not, `fetch` copies them to the host,
    #: and `to_device` copies received words to the device.
    direct = True
    #: Whether `segments` decodes a step in one round without waiting for sizes: it has `decode_ahead`.
    ahead = False

    # Memory

    def validated(self, tensor: Any) -> Any:
        """Return a user's tensor as this device's functions take it: an array, or BFloat16.

        Raises CodecError if it is not a tensor, or on another device.
        """
        if isinstance(tensor, BFloat16):
            return tensor
        try:
            return np.asarray(tensor)
        except (TypeError, ValueError, RuntimeError) as error:  # e.g. of a torch tensor on a device
            reason = str(error).partition("\n")[0]
            raise CodecError(
                f"tensor: NumPy does not take it ({reason}); give an array of float32 or float16, or the "
                "bits of bfloat16 in peelsum.codec.BFloat16"
            ) from error

    def usable_as_is(self, tensors: Collection[Any]) -> bool:
        """Return whether `validated` returns all of these tensors unchanged, and all are `overwritable`."""
        if set(map(type, tensors)) != {np.ndarray}:
            return False
        # The sets are made without a call for each tensor.
        flags = {(tensor.dtype, tensor.flags.c_contiguous, tensor.flags.writeable) for tensor in tensors}
        return flags == {(_FLOAT32, True, True)}

    def overwritable(self, tensor: Any) -> bool:
        """Return whether a result can be written over a validated tensor: `flatten` does not copy it."""
        if not isinstance(tensor, np.ndarray) or tensor.dtype != np.float32:
            return False
        return tensor.flags.c_contiguous and tensor.flags.writeable

    def device_context(self, tensor: Any) -> AbstractContextManager[object]:
        """Return a context in which new arrays are allocated where a validated tensor lies."""
        return _NO_CONTEXT

    def memory_range(self, tensor: Any) -> tuple[int, int]:
        """Return the addresses of a validated tensor's first byte and of the one after its last."""
        return byte_bounds(tensor.bits if isinstance(tensor, BFloat16) else tensor)

    def dtype(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype, e.g. "float32", the same on every device."""
        return "float32" if tensor.dtype == np.float32 else str(tensor.dtype)  # NumPy takes 5 us for the text

    def flatten(self, tensors: Sequence[Any], into: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return validated tensors as float32[n] each, in C order, and the flat arrays for results, or None.

        A tensor that is float32 in C order is not copied. If a result is written over its tensor, both are
        the same object. The tensors of `into` are `overwritable`, or None.
        """
        values = [
            (tensor if tensor.ndim == 1 else tensor.reshape(-1))
            if type(tensor) is np.ndarray and tensor.dtype is _FLOAT32 and tensor.flags.c_contiguous
            else to_float32(tensor)
            for tensor in tensors
        ]
        return values, [
            None if out is None else flat if out is tensor else out.reshape(-1)
            for out, tensor, flat in zip(into, tensors, values, strict=True)
        ]

    def words(self, count: int) -> Words:
        """Allocate uint32[count]."""
        return buffers.empty(count, np.uint32)

    def integers(self, count: int) -> Integers:
        """Allocate int32[count]."""
        return buffers.empty(count, np.int32)

    def to_host(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array's content as a NumPy array, words as uint32. Waits for pending writes.

        An array on the host is returned as it is.
        """
        return array

    def fetch(self, words: Any) -> Any:
        """Return words where they are sent from: the device if it is `direct`, else the host."""
        return words

    def synchronize(self) -> None:
        """Wait for all work on the device: on the host, it is complete."""

    def to_device(self, array: NDArray[Any]) -> Any:
        """Copy an array from the host to this device; return an array that is on this device as it is."""
        return array

    def to_device_together(self, *arrays: Words) -> list[Words]:
        """Copy several arrays of words as `to_device` does; by one copy."""
        return [self.to_device(array) for array in arrays]

    def concatenate(self, parts: Sequence[Integers]) -> Integers:
        """Return one or more parts end to end; on a GPU by one launch, for any number of parts."""
        return np.concatenate(parts)

    def searchsorted(self, ascending: Numbers, values: Numbers) -> Numbers:
        """Return the indices of `values` in an ascending array that contains them: int64[k]."""
        return np.searchsorted(ascending, values)

    # For a step that ends on the host, because the device is out of memory

    def out_of_memory(self, error: RuntimeError) -> str | None:
        """Return how much memory could not be allocated, as text; None if the error has another cause."""
        return None  # a step on the host has no other device to fall back to

    def host_copy(self, tensor: Any) -> Any:
        """Return a validated tensor's content as `HOST` takes it, without new memory of the device."""
        return tensor

    def as_tensor(self, values: Floats) -> Any:
        """Return a result on the host as a user gets it, an array or a tensor, in the same memory."""
        return values

    def copy_to_tensor(self, values: Floats, like: Any, out: Any) -> Any:
        """Copy a result from the host to `out`; if that is None, to new memory on the device of `like`."""
        if out is None:
            return values
        out[...] = values
        return out


class ReferenceDevice(ReferenceIndex, ReferenceSketch, CodecDevice):
    """The host, slowly: the codec in NumPy, whose bits all other devices compute."""

    segments = cast("type[SegmentCodec]", ReferenceSegments)


#: The device of arrays in the host's memory.
HOST = CodecDevice()


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

        from peelsum.codec.gpu import GpuDevice
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

    Takes seconds if Numba's or Triton's cache is empty.
    """
    device_ = device(implementation)
    bitmap, other, copied = (device_.to_device(np.ones(1, np.uint32)) for _ in range(3))
    sketch, bloom = device_.to_device(np.zeros(6, np.uint32)), BloomLayout(1, 1, 0)
    device_.count(bitmap)
    positions = device_.positions(bitmap, 1)
    for block in (2, 32, 64):
        device_.block_encode(bitmap, 1, block, other)
        device_.block_decode(other, 1, block, bitmap)
    device_.bloom_encode(bloom, bitmap, other)
    device_.bloom_decode(bloom, other, 1, bitmap)
    device_.gather_bits(bitmap, bitmap, other)
    device_.scatter_bits(other, bitmap, copied)
    quantized = device_.to_device(np.ones(1, np.int32))
    for segments in (1, 2):
        layout = SketchLayout(1, 0, segments)
        device_.sketch_encode(layout, positions, quantized, sketch[: layout.cells])
        device_.sketch_decode(layout, sketch[: layout.cells], positions, quantized)
    if implementation == "reference":
        return
    table = SegmentTable([Segment(1, sparse=False), Segment(1, sparse=True)])
    first, second, into = (device_.to_device(np.ones(1, np.float32)) for _ in range(3))
    for out in ([first, into], [first, None]):  # in place, in another array, and in a new one
        codec = device_.segments(table, [first, second], out, 1)
        words = device_.words(table.scale_words)
        bitmap, cells = codec.write_scales(words), device_.integers(layout.cells)
        codec.write_ahead(words, bitmap, np.zeros(2, np.int32), layout, device_.integers(1), cells)
        codec.read_scales(device_.to_host(words))
        codec.set_scales(codec.fields, codec.scales)
        codec.values_at(np.zeros(1, np.int64))
        dense, sparse = (device_.integers(count) for count in codec.set_candidates(bitmap))
        codec.write_dense(dense)
        codec.gather(sparse)
        codec.decode(dense, sparse, 1, (np.zeros(1, np.int64), np.zeros(1, np.float32)))
        codec.counts()
        codec.occupied(sparse, np.ones(2, np.int64))
    if device_.ahead:
        _warm_up_ahead(device_, table, [first, second])
        _warm_up_ahead(device_, SegmentTable([Segment(1, sparse=False)]), [first])
    quantize(np.ones(1, np.float32), FixedPoint(0), np.empty(1, np.int32))
    occupied(np.zeros(1, np.int32))
    address(frozen(np.ones(1, np.float32)))  # of a caller's tensor
    table.locate_elements(np.ones(2, np.bool))


def _warm_up_ahead(device_: CodecDevice, table: SegmentTable, values: list[Any]) -> None:
    """Run what a device does before the host knows the sizes; see `GpuSegments`."""
    layout, words, bitmap = SketchLayout(1, 0), device_.words(table.scale_words), device_.words(table.words)
    sketch = device_.integers(layout.cells)
    for one_round in (True, False):
        codec: Any = device_.segments(table, values, values, 1)
        numbers = device_.integers(1)
        if one_round:
            scales, in_sketch = np.zeros(len(values), np.int32), sketch[: layout.cells * (len(values) - 1)]
            codec.write_ahead(words, bitmap, scales, layout, numbers, in_sketch)
        else:
            codec.write_scales(words, bitmap)
        codec.read_scales(device_.to_host(words))
        if one_round:
            codec.decode_ahead(numbers, sketch, bitmap, 1, 1)
        else:
            codec.use_words(words)
            codec.write_dense(codec.write_numbers(bitmap)[:1])  # all numbers; those beside a sketch
        codec.decode(numbers, numbers, 1)
