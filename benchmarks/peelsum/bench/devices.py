"""The devices on which benchmarks run, the error for one that is missing, and a process's time."""

from __future__ import annotations

import time
from typing import Literal

DeviceName = Literal["cpu", "cuda"]
DEVICES: tuple[DeviceName, ...] = ("cpu", "cuda")

_REMEDY = "install torch's CUDA build on a machine with an NVIDIA GPU"


class NoDeviceError(ValueError):
    """The requested device cannot be used. The message names the option, and says what to do."""


def require_device(name: str) -> None:
    """Raise NoDeviceError unless torch, which must be installed, can compute on this device."""
    if name not in DEVICES:
        raise NoDeviceError(f"--device: {name!r} is unknown; use one of {', '.join(DEVICES)}")
    if name == "cuda" and (reason := _no_gpu()):
        raise NoDeviceError(f"--device: 'cuda' is not available, as {reason}; use cpu, or {_REMEDY}")


def require_gpu() -> None:
    """Raise NoDeviceError unless torch, which must be installed, can compute on a GPU."""
    if reason := _no_gpu():
        raise NoDeviceError(f"gpu: {reason}; {_REMEDY}")


def cpu_s(pid: int) -> float:
    """Return the processor seconds of a process, of all its threads, in the kernel and outside."""
    return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid


def _no_gpu() -> str:
    """Return why torch can use no GPU; an empty text if it can."""
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU"
