"""The memory of a device on the host: allocate NumPy arrays, and accept those of users."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.codec.arrays import Floats, Integers, Numbers, Words
from peelsum.codec.errors import CodecError
from peelsum.codec.floats import BFloat16, to_float32

_FLOAT32 = np.dtype(np.float32)


class HostMemory:
    """Memory of a `CodecDevice` in NumPy arrays: kernels use the words that are sent in place."""

    is_host = direct = True

    def validated(self, tensor: Any) -> Any:
        """Return a user's tensor as a NumPy array, or as BFloat16. Raises CodecError if NumPy refuses it."""
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
        """Return whether all tensors are writable float32 arrays in C order."""
        if set(map(type, tensors)) != {np.ndarray}:
            return False
        # The sets are made without a call for each tensor.
        flags = {(tensor.dtype, tensor.flags.c_contiguous, tensor.flags.writeable) for tensor in tensors}
        return flags == {(_FLOAT32, True, True)}

    def overwritable(self, tensor: Any) -> bool:
        """Return whether a tensor is a writable float32 array in C order, so that a result can replace it."""
        if not isinstance(tensor, np.ndarray) or tensor.dtype != np.float32:
            return False
        return tensor.flags.c_contiguous and tensor.flags.writeable

    def device_context(self, tensor: Any) -> AbstractContextManager[object]:
        """Return a context that changes nothing: the host is a single device."""
        return nullcontext()

    def memory_range(self, tensor: Any) -> tuple[int, int]:
        """Return the addresses of a tensor's first byte and of the one after its last."""
        return byte_bounds(tensor.bits if isinstance(tensor, BFloat16) else tensor)

    def dtype(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype, e.g. "float32"."""
        if isinstance(tensor, BFloat16):
            return "bfloat16"
        return "float32" if tensor.dtype == np.float32 else str(tensor.dtype)  # NumPy takes 5 us for the text

    def flatten(self, tensors: Sequence[Any], into: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the tensors as float32[n] each, and the flat arrays for results, or None."""
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

    def as_int32(self, words: Words) -> Integers:
        """Return a view of words as int32."""
        return words.view(np.int32)

    def to_host(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array itself: it is on the host."""
        return array

    def staging_buffer(self, count: int) -> Words:
        """Allocate uint32[count] for words to be sent."""
        return buffers.empty(count, np.uint32)

    def copy_async(self, words: Words, out: Words) -> None:
        """Copy words to an array from `traveling`."""
        out[:] = words

    def synchronize(self) -> None:
        """Do nothing: copies on the host are complete when they return."""

    def to_device(self, array: NDArray[Any]) -> Any:
        """Return the array itself: it is on this device."""
        return array

    def concatenate(self, parts: Sequence[Integers]) -> Integers:
        """Return the parts end to end."""
        return np.concatenate(parts)

    def searchsorted(self, ascending: Numbers, values: Numbers) -> Numbers:
        """Return the indices of `values` in an ascending array that contains them."""
        return np.searchsorted(ascending, values)

    def out_of_memory(self, error: RuntimeError) -> None:
        """Return None: a step on the host has no other device to fall back to."""

    def host_copy(self, tensor: Any) -> Any:
        """Return the tensor itself: it is on the host."""
        return tensor

    def as_tensor(self, values: Floats) -> Floats:
        """Return the array itself: users of the host pass and get arrays."""
        return values

    def copy_to_tensor(self, values: Floats, like: Any, out: Any) -> Any:
        """Copy a result to `out` and return that; return the result itself if `out` is None."""
        if out is None:
            return values
        out[...] = values
        return out
