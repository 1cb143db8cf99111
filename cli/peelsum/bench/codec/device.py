"""The devices on which the codec is measured; free memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import config
from numpy.typing import NDArray

from peelsum.bench.devices import DEVICES, DeviceName, NoDeviceError
from peelsum.codec import CodecError, Device, warm_up
from peelsum.codec import device as codec_device

#: Peak use: the tensor, its random numbers and copies of sent words per element; peeling per candidate.
_BYTES_PER_ELEMENT, _BYTES_PER_CANDIDATE = 24, 120


@dataclass(frozen=True)
class TimedDevice:
    """A device on which to measure the codec."""

    name: DeviceName
    codec: Device
    """The codec on it."""
    place: Callable[[NDArray[np.float32]], Any]
    """Converts the host's float32[n] to what the kernels take."""
    clock: Callable[[], float] = time.perf_counter
    """Returns seconds: of the thread's processor time if Numba uses one thread, else of the wall clock."""

    @classmethod
    def of(cls, name: str) -> TimedDevice:
        """Return the device of that name, with compiled kernels. Raises NoDeviceError if it is missing."""
        if name == "cpu":
            warm_up()
            alone = config.NUMBA_NUM_THREADS == 1  # type: ignore[attr-defined]  # made at run time
            clock = time.thread_time if alone else time.perf_counter
            return cls(
                "cpu",
                codec_device(),
                lambda values: values,
                clock,
            )
        if name != "cuda":
            raise NoDeviceError(f"--device: {name!r} is unknown; use one of {', '.join(DEVICES)}")
        try:
            codec = codec_device("gpu")
        except CodecError as error:
            raise NoDeviceError(f"--device: 'cuda' is not available; use cpu: {error}") from None
        return cls._cuda(codec)

    @classmethod
    def _cuda(cls, codec: Device) -> TimedDevice:
        import torch

        # Without a GPU, Triton's interpreter runs the kernels on the CPU.
        there = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        warm_up("gpu")
        return cls(
            "cuda",
            codec,
            lambda values: torch.from_numpy(values).to(there),
        )


class NotEnoughMemoryError(ValueError):
    """A tensor is too large to be measured on this machine. The message says by how much."""


def require_memory(elements: int, density: float, workers: int = 1) -> None:
    """Raise NotEnoughMemoryError unless a tensor of `elements` elements of each worker can be measured."""
    each, free = workers * (_BYTES_PER_ELEMENT + _BYTES_PER_CANDIDATE * density), free_bytes()
    if free is not None and elements * each > free:
        raise NotEnoughMemoryError(
            f"--elements: {elements:,} at density {density:g} take about {elements * each / 2**30:,.1f} GiB, "
            f"and {free / 2**30:.1f} are free; use at most {int(free / each):,}"
        )


def free_bytes() -> int | None:
    """Return Linux's estimate of the available memory in bytes; None on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None
