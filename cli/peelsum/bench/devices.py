"""The devices on which benchmarks run, errors for missing devices, and time measurement."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

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
    """Return the processor seconds of a process: user and system time of all its threads."""
    return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid


def median_s(run: Callable[[], object], device: torch.device, runs: int = 20, warm_runs: int = 3) -> float:
    """Return the median seconds of some runs: between CUDA events on a GPU, else by the clock."""
    import torch

    seconds = []
    for _ in range(warm_runs + runs):
        if device.type != "cuda":
            started = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - started)
        else:
            event: Any = partial(torch.cuda.Event, enable_timing=True)
            begin, end = event(), event()
            begin.record()
            run()
            end.record()
            end.synchronize()
            seconds.append(float(begin.elapsed_time(end)) / 1e3)
    return median(seconds[warm_runs:])


def _no_gpu() -> str:
    """Return the reason why torch cannot use a GPU; an empty text if it can."""
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU"
