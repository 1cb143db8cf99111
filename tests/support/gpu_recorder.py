"""A stand-in for CUDA graphs: it records launches and replays them with the arguments that they had.

What a graph cannot have is refused while it is recorded: memory that is allocated, and numbers that the host
reads. A replay refuses memory that has been freed since, which a graph would read all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_device import REAL
from gpu_shortage import allocates
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from peelsum.codec import gpu_graphs, gpu_launch


class RefusedError(AssertionError):
    """A graph cannot have this."""


class _Memory:
    """A tensor's place and shape, as a graph keeps them: neither the tensor nor its memory is kept alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._dtype, self._shape = tensor.dtype, (tensor.shape, tensor.stride(), tensor.storage_offset())

    def tensor(self) -> torch.Tensor:
        if self._storage.expired():
            raise RefusedError("replay: memory of the graph has been freed")
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        size, stride, offset = self._shape
        return torch.empty(0, dtype=self._dtype).set_(storage, offset, size, stride)


def _kept(arguments: Any) -> list[Any]:
    return [_Memory(one) if isinstance(one, torch.Tensor) else one for one in arguments]


def _given(kept: list[Any]) -> list[Any]:
    return [one.tensor() if isinstance(one, _Memory) else one for one in kept]


class Recorder(TorchDispatchMode):
    """Records the kernels and torch's operations of a phase instead of running them."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Callable[..., Any], list[Any], dict[str, Any]]] = []
        #: How often `replay` has been called.
        self.replays = 0

    def record(self, launches: Callable[[], None]) -> None:
        """Record what `launches` launches."""
        run = gpu_launch._run

        def launched(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
            with _disable_current_modes():
                self._calls.append((run, [kernel, programs, *_kept(arguments)], options))

        gpu_launch._run = launched
        try:
            with self:
                launches()
        finally:
            gpu_launch._run = run

    def replay(self) -> None:
        """Run what was recorded."""
        self.replays += 1
        with _disable_current_modes():
            for call, arguments, options in self._calls:
                call(*_given(arguments), **options)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if allocates(function, args, kwargs) or "_local_scalar_dense" in function._schema.name:
            raise RefusedError(f"capture: {function} allocates, or reads a number of the device")
        if any(one.alias_info is not None and one.alias_info.is_write for one in function._schema.returns):
            self._calls.append((function, _kept(args), kwargs))
            return args[0]
        return function(*args, **kwargs)


def recording(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Return all graphs that are captured from now on; none on a real device, which has its own."""
    made: list[Recorder] = []

    def captured(launches: Callable[[], None], device: torch.device) -> Callable[[], None]:
        made.append(Recorder())
        made[-1].record(launches)
        return made[-1].replay

    if not REAL:
        monkeypatch.setattr(gpu_graphs, "captured", captured)
    return made
