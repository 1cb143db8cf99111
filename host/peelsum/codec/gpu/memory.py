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

from peelsum.codec.errors import CodecError
from peelsum.codec.floats import BFloat16


class DeviceMemory:
    """The memory of a `Device` whose arrays are torch tensors on `device`.

    By default the device is the GPU. If there is none, it is the CPU, on which Triton's interpreter runs.
    direct: whether words are sent from the device and received there, as over NCCL.
    """

    is_host = False

    def __init__(self, device: torch.device | None = None, *, direct: bool = False) -> None:
        self.direct = direct
        self._device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def accepted(self, tensor: Any) -> Tensor:
        """See `Device.accepted`.

        Raises CodecError for anything but a torch tensor on this device's type, with strides.
        """
        if not isinstance(tensor, Tensor) or tensor.device.type != self._device.type:
            where = tensor.device if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CodecError(
                f"tensor: {where} is not on the kernels' device; pass torch tensors on {self._device}, "
                "or use implementation='cpu' for arrays"
            )
        if tensor.layout != torch.strided:
            raise CodecError(f"tensor: its layout is {tensor.layout}; pass tensor.to_dense()")
        own = torch.cuda.current_device() if self.direct and tensor.is_cuda else None
        if own is not None and tensor.device.index != own:
            raise CodecError(
                f"tensor: {tensor.device} is not cuda:{own}, from which words are sent; call "
                "torch.cuda.set_device before the group is made, or sum that tensor over another group"
            )
        return tensor.detach()

    def plain(self, tensors: Collection[Any]) -> bool:
        """See `Device.plain`."""
        return False

    def overwritable(self, tensor: Tensor) -> bool:
        """See `Device.overwritable`."""
        return tensor.dtype == torch.float32 and tensor.is_contiguous() and not tensor.is_neg()

    def beside(self, tensor: Tensor) -> AbstractContextManager[object]:
        """See `Device.beside`."""
        return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()

    def span(self, tensor: Tensor) -> tuple[int, int]:
        """See `Device.span`."""
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps) if tensor.numel() else -1
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    def dtype(self, tensor: Tensor) -> str:
        """See `Device.dtype`."""
        return str(tensor.dtype).removeprefix("torch.")

    def flat(
        self, tensors: Sequence[Tensor], into: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """See `Device.flat`."""
        # A view such as that of a conjugate's imaginary part has the other sign in memory.
        values = [one.to(torch.float32).resolve_neg().contiguous().view(-1) for one in tensors]
        return values, [
            None if out is None else own if out is one else out.view(-1)
            for out, one, own in zip(into, tensors, values, strict=True)
        ]

    def near(self, tensor: Tensor) -> NDArray[Any] | BFloat16:
        """Return an accepted tensor's content as `HostMemory` takes it, without memory of the device."""
        if not tensor.numel():
            return np.zeros(tuple(tensor.shape), np.float32)
        first, end = self.span(tensor)
        # A copy of a strided tensor would be made contiguous on the device.
        whole = tensor.as_strided(((end - first) // tensor.element_size(),), (1,)).cpu().resolve_neg()
        there = whole.as_strided(tensor.shape, tensor.stride())
        if there.dtype == torch.bfloat16:
            return BFloat16(there.view(torch.int16).numpy().view(np.uint16))
        array: NDArray[Any] = there.numpy()
        return array

    def placed_in(self, values: NDArray[np.float32], like: Tensor, out: Tensor | None) -> Tensor:
        """Copy a result from the host to `out`; if that is None, to new memory on the device of `like`."""
        host = self.left_on_host(values)
        into = torch.empty(host.shape, dtype=host.dtype, device=like.device) if out is None else out
        with torch.inference_mode():  # `into` may have been made in it, and is then read-only elsewhere
            return into.copy_(host)

    def left_on_host(self, values: NDArray[np.float32]) -> Tensor:
        """Return a result as a tensor that shares its memory."""
        return torch.from_numpy(values)

    def lacked(self, error: RuntimeError) -> str | None:
        """Return how much memory an error says that a device lacked; None if it says something else."""
        text = str(error)
        # Only torch's allocator has a type for it: pinned memory and Triton's modules do not.
        if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in text:
            return None
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", text)
        return asked.group(1) if asked else "what a copy or a kernel needs"

    def words(self, count: int) -> Tensor:
        """See `Device.words`."""
        return torch.empty(count, dtype=torch.int32, device=self._device)

    def integers(self, count: int) -> Tensor:
        """See `Device.integers`."""
        return self.words(count)

    def signed(self, words: Tensor) -> Tensor:
        """See `Device.signed`."""
        return words

    def on_host(self, array: Tensor | NDArray[Any]) -> NDArray[Any]:
        """See `Device.on_host`."""
        if isinstance(array, np.ndarray):
            return array
        host: NDArray[Any] = array.cpu().numpy()
        return host.view(np.uint32) if array.dtype == torch.int32 else host

    def traveling(self, count: int) -> NDArray[np.uint32] | Tensor:
        """See `Device.traveling`. Returns pinned memory, or, if `direct`, memory of the device."""
        if self.direct:
            return self.words(count)
        pinned = _staged((count,), torch.int32, self._device)
        words: NDArray[np.uint32] = pinned.numpy().view(np.uint32)
        return words

    def send(self, words: Tensor, out: NDArray[np.uint32] | Tensor) -> None:
        """See `Device.send`."""
        if len(out):
            into = out if isinstance(out, Tensor) else torch.from_numpy(out.view(np.int32))
            into.copy_(words, non_blocking=True)

    def settle(self) -> None:
        """See `Device.settle`."""
        wait(self._device)

    def placed(self, array: NDArray[Any] | Tensor) -> Tensor:
        """See `Device.placed`."""
        if isinstance(array, Tensor):
            return array
        return sent(array.view(np.int32) if array.dtype == np.uint32 else array, self._device)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """See `Device.joined`."""
        return torch.cat(list(parts))

    def search(self, places: Tensor, wanted: Tensor) -> Tensor:
        """See `Device.search`."""
        return torch.searchsorted(places, wanted)


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy from the host to the device, through pinned memory, which torch keeps and reuses in time."""
    like = torch.from_numpy(array[:0])
    there = torch.empty(array.shape, dtype=like.dtype, device=device)
    if len(array):
        staged = _staged(array.shape, like.dtype, device)
        staged.numpy()[:] = array  # torch would wake a thread on each core
        there.copy_(staged, non_blocking=True)
    return there


def _staged(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate memory of the host, whatever torch's default device is; pinned if `device` is a GPU."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def wait(device: torch.device) -> None:
    """Wait for all work on the current stream of a device."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def stream_of(device: torch.device) -> tuple[torch.device, int]:
    """Return the device and its current stream's number."""
    return device, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
