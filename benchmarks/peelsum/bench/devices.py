"""The devices on which benchmarks run, and the error for one that is missing."""

from __future__ import annotations

from typing import Literal

DeviceName = Literal["cpu", "cuda"]
DEVICES: tuple[DeviceName, ...] = ("cpu", "cuda")


class NoDeviceError(ValueError):
    """The requested device cannot be used. The message names the option, and says what to do."""


def require_device(name: str) -> None:
    """Raise NoDeviceError unless torch, which must be installed, can compute on this device."""
    if name not in DEVICES:
        raise NoDeviceError(f"--device: {name!r} is unknown; use one of {', '.join(DEVICES)}")
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise NoDeviceError(
                f"--device: 'cuda' is not available, as torch {torch.__version__} finds no GPU; use cpu, or "
                "install torch's CUDA build on a machine with an NVIDIA GPU"
            )
