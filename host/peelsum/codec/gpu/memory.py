"""Keep a step's arrays on the GPU, as torch tensors: the memory of `GpuDevice`.

torch lacks arithmetic on uint32, so words are int32 with the same bits. They are copied to and from the host
through pinned memory, on the current stream.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.codec.arrays import BFloat16, CodecError

#: Words of several arrays that are copied together begin at multiples of this, as torch aligns memory.
ALIGNED_WORDS = 32
_NO_CONTEXT = nullcontext()


class DeviceMemory:
    """The memory of a `CodecDevice` whose arrays are torch tensors on `device`.

    By default the device is the GPU. If there is none, it is the CPU, on which Triton's interpreter runs.
    direct: whether words are sent from the device and received there, as over NCCL.
    """

    is_host = False
    ahead = True

    def __init__(self, device: torch.device | None = None, *, direct: bool = False) -> None:
        self.direct = direct
        self._device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def validated(self, tensor: Any) -> Tensor:
        """Return a user's tensor, detached. Raises CodecError unless it is a dense torch tensor on a GPU.

        If words are sent from the device, that must be the current one. Without a GPU, it is the CPU.
        """
        if not isinstance(tensor, Tensor) or tensor.device.type != self._device.type:
            where = tensor.device if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CodecError(
                f"tensor: {where} is not on the kernels' device; pass torch tensors on {self._device}, "
                "or use implementation='cpu' for arrays"
            )
        if tensor.layout != torch.strided:
            raise CodecError(f"tensor: its layout is {tensor.layout}; pass tensor.to_dense()")
        current = torch.cuda.current_device() if self.direct and tensor.is_cuda else None
        if current is not None and tensor.device.index != current:
            raise CodecError(
                f"tensor: {tensor.device} is not cuda:{current}, from which words are sent; call "
                "torch.cuda.set_device before the group is made, or sum that tensor over another group"
            )
        return tensor.detach()

    def usable_as_is(self, tensors: Collection[Any]) -> bool:
        """Return whether `validated` returns all of these tensors unchanged, and all are `overwritable`."""
        if self.direct or set(map(type, tensors)) != {Tensor}:
            return False
        kinds = {
            (t.dtype, t.device.type, t.layout, t.requires_grad or t.is_neg() or not t.is_contiguous())
            for t in tensors
        }
        return kinds == {(torch.float32, self._device.type, torch.strided, False)}

    def overwritable(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a contiguous float32 tensor, so that a result can replace it."""
        return tensor.dtype == torch.float32 and tensor.is_contiguous() and not tensor.is_neg()

    def device_context(self, tensor: Tensor) -> AbstractContextManager[object]:
        """Return a context in which new tensors are allocated on the GPU of `tensor`."""
        return torch.cuda.device(tensor.device) if tensor.is_cuda else _NO_CONTEXT

    def memory_range(self, tensor: Tensor) -> tuple[int, int]:
        """Return the addresses of a tensor's first byte and of the one after its last."""
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps) if tensor.numel() else -1
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    def dtype(self, tensor: Tensor) -> str:
        """Return the name of a tensor's dtype, e.g. "float32"."""
        return str(tensor.dtype).removeprefix("torch.")

    def flatten(
        self, tensors: Sequence[Tensor], into: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the tensors as float32[n] each, and the flat tensors for results, or None."""
        # A view such as that of a conjugate's imaginary part has the other sign in memory.
        values = [tensor.to(torch.float32).resolve_neg().contiguous().view(-1) for tensor in tensors]
        return values, [
            None if out is None else flat if out is tensor else out.view(-1)
            for out, tensor, flat in zip(into, tensors, values, strict=True)
        ]

    def host_copy(self, tensor: Tensor) -> NDArray[Any] | BFloat16:
        """Return a tensor's content as an array or BFloat16 on the host, without new memory of the device."""
        if not tensor.numel():
            return np.zeros(tuple(tensor.shape), np.float32)
        first, end = self.memory_range(tensor)
        # A copy of a strided tensor would be made contiguous on the device.
        memory = tensor.as_strided(((end - first) // tensor.element_size(),), (1,)).cpu().resolve_neg()
        copy = memory.as_strided(tensor.shape, tensor.stride())
        if copy.dtype == torch.bfloat16:
            return BFloat16(copy.view(torch.int16).numpy().view(np.uint16))
        array: NDArray[Any] = copy.numpy()
        return array

    def copy_to_tensor(self, values: NDArray[np.float32], like: Tensor, out: Tensor | None) -> Tensor:
        """Copy a result from the host to `out`; if that is None, to new memory on the device of `like`."""
        host = self.as_tensor(values)
        into = torch.empty(host.shape, dtype=host.dtype, device=like.device) if out is None else out
        with torch.inference_mode():  # `into` may have been made in it, and is then read-only elsewhere
            return into.copy_(host)

    def as_tensor(self, values: NDArray[np.float32]) -> Tensor:
        """Return a result as a tensor that shares its memory."""
        return torch.from_numpy(values)

    def out_of_memory(self, error: RuntimeError) -> str | None:
        """Return how much memory could not be allocated, as text; None if the error has another cause."""
        text = str(error)
        # Only torch's allocator has a type for it: pinned memory and Triton's modules do not.
        if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in text:
            return None
        requested = re.search(r"Tried to allocate ([\d.]+ \w+)", text)
        return requested.group(1) if requested else "what a copy or a kernel needs"

    def words(self, count: int) -> Tensor:
        """Allocate int32[count] for words."""
        return torch.empty(count, dtype=torch.int32, device=self._device)

    def integers(self, count: int) -> Tensor:
        """Allocate int32[count]."""
        return self.words(count)

    def to_host(self, array: Tensor | NDArray[Any]) -> NDArray[Any]:
        """Return an array's content as a NumPy array, words as uint32. Waits for pending writes."""
        if isinstance(array, np.ndarray):
            return array
        host: NDArray[Any] = array.cpu().numpy()
        return host.view(np.uint32) if array.dtype == torch.int32 else host

    def fetch(self, words: Tensor) -> Any:
        """Return words where they are sent from. Waits for the device, unless that is there."""
        if self.direct:
            return words
        staged = _staging_buffer(words.shape[0], self._device)
        staged.copy_(words, non_blocking=True)
        wait(self._device)
        return staged.numpy().view(np.uint32)

    def synchronize(self) -> None:
        """Wait for all work on the current stream."""
        wait(self._device)

    def to_device(self, array: NDArray[Any] | Tensor) -> Tensor:
        """Return an array of the host as a tensor on the device, without waiting; a tensor as it is."""
        if isinstance(array, Tensor):
            return array
        dtype = torch.int32 if array.dtype == np.uint32 else torch.from_numpy(array[:0]).dtype
        return copy_to_device(self._device, array)[0].view(dtype)

    def to_device_together(self, *arrays: Any) -> list[Tensor]:
        """Do what `to_device` does for several arrays of words, by one copy."""
        if isinstance(arrays[0], Tensor) or isinstance(arrays[-1], Tensor):
            return [self.to_device(array) for array in arrays]
        return copy_to_device(self._device, *arrays)

    def concatenate(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the parts end to end."""
        return torch.cat(list(parts))

    def searchsorted(self, ascending: Tensor, values: Tensor) -> Tensor:
        """Return the indices of `values` in an ascending tensor that contains them."""
        return torch.searchsorted(ascending, values)


def copy_to_device(device: torch.device, *arrays: NDArray[Any]) -> list[Tensor]:
    """Start to copy arrays from the host to a device, by one copy; return int32 tensors of the same bits.

    The copy goes through pinned memory, which torch caches.
    """
    begins = [0]
    for array in arrays:
        begins.append(begins[-1] + -(-array.nbytes // (4 * ALIGNED_WORDS)) * ALIGNED_WORDS)
    staged, parts = _staging_buffer(begins[-1], device), []
    words, tensor = staged.numpy(), torch.empty(begins[-1], dtype=torch.int32, device=device)
    for begin, array in zip(begins, arrays, strict=False):
        end = begin + array.nbytes // 4
        words[begin:end] = array.view(np.int32)  # torch would wake a thread on each core
        parts.append(tensor[begin:end])
    if begins[-1]:
        tensor.copy_(staged, non_blocking=True)
    return parts


def _staging_buffer(count: int, device: torch.device) -> Tensor:
    """Allocate int32[count] on the host, pinned if `device` is a GPU, whatever torch's default device is."""
    return torch.empty(count, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")


def wait(device: torch.device) -> None:
    """Wait for all work on the current stream of a device."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
