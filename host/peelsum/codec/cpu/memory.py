"""Allocate NumPy arrays for the codec, and take those of users."""

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
from peelsum.codec.floats import BFloat16, widened

_FLOAT32 = np.dtype(np.float32)


class HostMemory:
    """The memory of a `Device` whose arrays are NumPy's: kernels read and write the words that are sent."""

    is_host = direct = True

    def accepted(self, tensor: Any) -> Any:
        """See `Device.accepted`."""
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
        """See `Device.plain`."""
        if set(map(type, tensors)) != {np.ndarray}:
            return False
        # The sets are made without a call for each tensor.
        flags = {(one.dtype, one.flags.c_contiguous, one.flags.writeable) for one in tensors}
        return flags == {(_FLOAT32, True, True)}

    def overwritable(self, tensor: Any) -> bool:
        """See `Device.overwritable`."""
        if not isinstance(tensor, np.ndarray) or tensor.dtype != np.float32:
            return False
        return tensor.flags.c_contiguous and tensor.flags.writeable

    def beside(self, tensor: Any) -> AbstractContextManager[object]:
        """See `Device.beside`."""
        return nullcontext()

    def span(self, tensor: Any) -> tuple[int, int]:
        """See `Device.span`."""
        return byte_bounds(tensor.bits if isinstance(tensor, BFloat16) else tensor)

    def dtype(self, tensor: Any) -> str:
        """See `Device.dtype`."""
        if isinstance(tensor, BFloat16):
            return "bfloat16"
        return "float32" if tensor.dtype == np.float32 else str(tensor.dtype)  # NumPy takes 5 us for the text

    def flat(self, tensors: Sequence[Any], into: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See `Device.flat`."""
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
        """See `Device.words`."""
        return buffers.empty(count, np.uint32)

    def integers(self, count: int) -> Integers:
        """See `Device.integers`."""
        return buffers.empty(count, np.int32)

    def signed(self, words: Words) -> Integers:
        """See `Device.signed`."""
        return words.view(np.int32)

    def on_host(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `Device.on_host`."""
        return array

    def traveling(self, count: int) -> Words:
        """See `Device.traveling`."""
        return buffers.empty(count, np.uint32)

    def send(self, words: Words, out: Words) -> None:
        """See `Device.send`."""
        out[:] = words

    def settle(self) -> None:
        """See `Device.settle`."""

    def placed(self, array: NDArray[Any]) -> Any:
        """See `Device.placed`."""
        return array

    def joined(self, parts: Sequence[Integers]) -> Integers:
        """See `Device.joined`."""
        return np.concatenate(parts)

    def search(self, places: Numbers, wanted: Numbers) -> Numbers:
        """See `Device.search`."""
        return np.searchsorted(places, wanted)

    def lacked(self, error: RuntimeError) -> None:
        """See `Device.lacked`."""

    def near(self, tensor: Any) -> Any:
        """See `Device.near`."""
        return tensor

    def left_on_host(self, values: Floats) -> Floats:
        """See `Device.left_on_host`."""
        return values

    def placed_in(self, values: Floats, like: Any, out: Any) -> Any:
        """See `Device.placed_in`."""
        if out is None:
            return values
        out[...] = values
        return out
