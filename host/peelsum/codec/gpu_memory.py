"""Keep a step's arrays on the GPU: `peelsum.codec.memory.Memory` for torch tensors.

torch lacks arithmetic on uint32, so words are int32 with the same bits. They are copied to and from the host
through pinned memory, on the current stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.codec.errors import CodecError
from peelsum.codec.fixed_point import EXPONENT_WORDS, MANTISSA_BITS

_WORD_BITS = 32


class DeviceMemory:
    """A `Memory` whose arrays are torch tensors on `device`.

    By default the device is the GPU. If there is none, it is the CPU, on which Triton's interpreter runs.
    """

    direct = False

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def accepted(self, tensor: Any) -> Tensor:
        """See `Memory.accepted`. Raises CodecError for anything but a torch tensor on this device's type."""
        if not isinstance(tensor, Tensor) or tensor.device.type != self._device.type:
            where = tensor.device if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CodecError(
                f"tensor: {where} is not on the kernels' device; pass torch tensors on {self._device}, "
                "or use implementation='cpu' for arrays"
            )
        return tensor.detach()

    def overwritable(self, tensor: Tensor) -> bool:
        """See `Memory.overwritable`."""
        return tensor.dtype == torch.float32 and tensor.is_contiguous()

    def span(self, tensor: Tensor) -> tuple[int, int]:
        """See `Memory.span`."""
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps) if tensor.numel() else -1
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    def dtype(self, tensor: Tensor) -> str:
        """See `Memory.dtype`."""
        return str(tensor.dtype).removeprefix("torch.")

    def widened(self, tensor: Tensor) -> Tensor:
        """See `Memory.widened`."""
        return tensor.to(torch.float32).contiguous().view(-1)

    def joined(self, tensors: list[Tensor]) -> NDArray[np.float32]:
        """See `Memory.joined`."""
        joined: NDArray[np.float32] = torch.cat(tensors).cpu().numpy()
        return joined

    def placed(self, array: NDArray[np.float32]) -> Tensor:
        """See `Memory.placed`."""
        return torch.from_numpy(array).to(self._device)

    def beside(self, values: Tensor) -> DeviceMemory:
        """See `Memory.beside`."""
        return DeviceMemory(values.device)

    def words(self, count: int) -> Tensor:
        """See `Memory.words`."""
        return torch.empty(count, dtype=torch.int32, device=self._device)

    def integers(self, limbs: int, count: int) -> Tensor:
        """See `Memory.integers`."""
        return torch.empty((limbs, count), dtype=torch.int32, device=self._device)

    def by_limb(self, words: Tensor, limbs: int) -> Tensor:
        """See `Memory.by_limb`."""
        return words.view(limbs, words.numel() // limbs)

    def floats(self, count: int, value: float = 0.0) -> Tensor:
        """See `Memory.floats`."""
        return torch.full((count,), value, dtype=torch.float32, device=self._device)

    def positions(self, chosen: Tensor) -> Tensor:
        """See `Memory.positions`. Waits for the device, because the result's size depends on the data."""
        return chosen.nonzero().view(-1)

    def write_exponent(self, magnitude: Tensor, out: Tensor) -> None:
        """See `Memory.write_exponent`. The device computes it; the host does not wait for the magnitude."""
        field = magnitude >> MANTISSA_BITS
        word = torch.arange(EXPONENT_WORDS, dtype=torch.int32, device=self._device)
        bit = torch.ones_like(field) << (field % _WORD_BITS)
        out.copy_(torch.where((field // _WORD_BITS == word) & (magnitude != 0), bit, 0))

    def on_host(self, array: Tensor) -> NDArray[Any]:
        """See `Memory.on_host`."""
        host: NDArray[Any] = array.cpu().numpy()
        return host.view(np.uint32) if array.dtype == torch.int32 else host

    def traveling(self, count: int) -> NDArray[np.uint32]:
        """See `Memory.traveling`. Returns pinned memory."""
        words: NDArray[np.uint32] = self._pinned(count).numpy().view(np.uint32)
        return words

    def send(self, words: Tensor, out: NDArray[np.uint32]) -> None:
        """See `Memory.send`."""
        torch.from_numpy(out.view(np.int32)).copy_(words, non_blocking=True)

    def settle(self) -> None:
        """See `Memory.settle`."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def receive(self, words: NDArray[np.uint32]) -> Tensor:
        """See `Memory.receive`."""
        staged = self._pinned(words.size)
        staged.numpy()[:] = words.view(np.int32)
        # torch reuses pinned memory only after the copy has finished.
        return staged.to(self._device, non_blocking=True)

    def _pinned(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int32, pin_memory=self._device.type == "cuda")
