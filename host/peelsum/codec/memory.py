"""Allocate the kernels' arrays, and move words between them and the summation.

`HostMemory` is defined here: kernels read and write the words that are sent, without a copy.
`peelsum.codec.gpu_memory` holds torch tensors on a device. Code for both uses only operations that arrays and
tensors share (slices, `len`, `any`, assignment), and this protocol for the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.codec.errors import CodecError
from peelsum.codec.floats import BFloat16, widened

Words = NDArray[np.uint32]
_FLOAT32 = np.dtype(np.float32)


class Memory(Protocol):
    """Arrays for the kernels of one implementation. New arrays are uninitialized, except from `floats`."""

    @property
    def direct(self) -> bool:
        """Whether kernels read and write the words that are sent; if not, use `send`, `settle`, `receive`."""

    def accepted(self, tensor: Any) -> Any:
        """Return a user's tensor as one of this memory. Raises CodecError if it lies elsewhere or is none."""

    def plain(self, tensors: Collection[Any]) -> bool:
        """Return whether all of a user's tensors are accepted as they are, and `overwritable`."""

    def overwritable(self, tensor: Any) -> bool:
        """Return whether a result can be written over an accepted tensor: `flat` does not copy it."""

    def beside(self, tensor: Any) -> AbstractContextManager[object]:
        """Return a context in which new arrays lie where an accepted tensor does."""

    def span(self, tensor: Any) -> tuple[int, int]:
        """Return the addresses of an accepted tensor's first byte and of the one behind its last."""

    def dtype(self, tensor: Any) -> str:
        """Return the name of the tensor's dtype, e.g. "float32", the same for every memory."""

    def flat(self, tensors: Sequence[Any], into: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the same numbers as float32[n] each, in C order, and where results are written, or None.

        An accepted tensor that is float32 in C order is not copied. If a result is written over its tensor,
        both are the same object. The tensors of `into` are `overwritable`, or None.
        """

    def words(self, count: int) -> Words:
        """Allocate uint32[count]."""

    def integers(self, count: int) -> NDArray[np.int32]:
        """Allocate int32[count]."""

    def signed(self, words: Words) -> NDArray[np.int32]:
        """Return a view of `words` as int32[k]."""

    def floats(self, count: int, value: float = 0.0) -> NDArray[np.float32]:
        """Allocate float32[count], filled with `value`."""

    def on_host(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array's content as a NumPy array, words as uint32. Waits for pending writes.

        An array on the host is returned as it is.
        """

    def traveling(self, count: int) -> Words:
        """Allocate uint32[count] for words to be sent: here if `direct`, else on the host."""

    def send(self, words: Words, out: Words) -> None:
        """Start to copy `words` to `out`, an array from `traveling`; `settle` waits for the copy."""

    def settle(self) -> None:
        """Wait for every `send`."""

    def receive(self, words: Words) -> Words:
        """Copy received words from the host to this memory, for the kernels."""

    def placed(self, array: NDArray[Any]) -> Any:
        """Copy an array of the host to this memory, e.g. places by which another is indexed."""

    def joined(self, parts: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
        """Return the parts end to end, at least one."""

    def widened(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return a copy as int64."""

    def search(self, places: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where `wanted` stand among ascending `places`: int64[k], in this memory as both are."""


class HostMemory:
    """A `Memory` of NumPy arrays."""

    direct = True

    def accepted(self, tensor: Any) -> Any:
        """See `Memory.accepted`."""
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

    def plain(self, tensors: Collection[Any]) -> bool:
        """See `Memory.plain`."""
        if set(map(type, tensors)) != {np.ndarray}:
            return False
        # The sets are made without a call for each tensor.
        flags = {(one.dtype, one.flags.c_contiguous, one.flags.writeable) for one in tensors}
        return flags == {(_FLOAT32, True, True)}

    def overwritable(self, tensor: Any) -> bool:
        """See `Memory.overwritable`."""
        if not isinstance(tensor, np.ndarray) or tensor.dtype != np.float32:
            return False
        return tensor.flags.c_contiguous and tensor.flags.writeable

    def beside(self, tensor: Any) -> AbstractContextManager[object]:
        """See `Memory.beside`."""
        return nullcontext()

    def span(self, tensor: Any) -> tuple[int, int]:
        """See `Memory.span`."""
        return byte_bounds(tensor.bits if isinstance(tensor, BFloat16) else tensor)

    def dtype(self, tensor: Any) -> str:
        """See `Memory.dtype`."""
        if isinstance(tensor, BFloat16):
            return "bfloat16"
        return "float32" if tensor.dtype == np.float32 else str(tensor.dtype)  # NumPy takes 5 us for the text

    def flat(self, tensors: Sequence[Any], into: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See `Memory.flat`."""
        values = [
            (one if one.ndim == 1 else one.reshape(-1))
            if type(one) is np.ndarray and one.dtype is _FLOAT32 and one.flags.c_contiguous
            else widened(one)
            for one in tensors
        ]
        return values, [
            None if out is None else own if out is one else out.reshape(-1)
            for out, one, own in zip(into, tensors, values, strict=True)
        ]

    def words(self, count: int) -> Words:
        """See `Memory.words`."""
        return buffers.empty(count, np.uint32)

    def integers(self, count: int) -> NDArray[np.int32]:
        """See `Memory.integers`."""
        return buffers.empty(count, np.int32)

    def signed(self, words: Words) -> NDArray[np.int32]:
        """See `Memory.signed`."""
        return words.view(np.int32)

    def floats(self, count: int, value: float = 0.0) -> NDArray[np.float32]:
        """See `Memory.floats`."""
        return np.zeros(count, np.float32) if value == 0 else np.full(count, value, np.float32)

    def on_host(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `Memory.on_host`."""
        return array

    def traveling(self, count: int) -> Words:
        """See `Memory.traveling`."""
        return buffers.empty(count, np.uint32)

    def send(self, words: Words, out: Words) -> None:
        """See `Memory.send`."""
        out[:] = words

    def settle(self) -> None:
        """See `Memory.settle`."""

    def receive(self, words: Words) -> Words:
        """See `Memory.receive`."""
        return words

    def placed(self, array: NDArray[Any]) -> Any:
        """See `Memory.placed`."""
        return array

    def joined(self, parts: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
        """See `Memory.joined`."""
        return np.concatenate(parts)

    def widened(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """See `Memory.widened`."""
        return numbers.astype(np.int64)

    def search(self, places: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Memory.search`."""
        return np.searchsorted(places, wanted)
