"""The devices on which the codec is measured, and checks of the free memory."""

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
from peelsum.codec import CodecDevice, CodecError, warm_up
from peelsum.codec import device as codec_device

#: Peak memory: of an element, the value, random numbers and copies of words; of a candidate, peeling.
_BYTES_PER_ELEMENT, _BYTES_PER_CANDIDATE = 24, 120


@dataclass(frozen=True)
class TimedDevice:
    """A device on which to measure the codec."""

    name: DeviceName
    codec: CodecDevice
    """The codec on it."""
    place: Callable[[NDArray[np.float32]], Any]
    """Copies the host's float32[n] to the device."""
    clock: Callable[[], float] = time.perf_counter
    """Returns seconds: of the thread's processor time if Numba uses one thread, else of the wall clock."""

    @classmethod
    def of(cls, name: str) -> TimedDevice:
        """Return the device of that name, with compiled kernels. Raises NoDeviceError if it is missing."""
        if name == "cpu":
            warm_up()
            one_thread = config.NUMBA_NUM_THREADS == 1  # type: ignore[attr-defined]  # made at run time
            clock = time.thread_time if one_thread else time.perf_counter
            return cls("cpu", codec_device(), lambda values: values, clock)
        if name != "cuda":
            raise NoDeviceError(f"--device: {name!r} is unknown; use one of {', '.join(DEVICES)}")
        try:
            codec = codec_device("gpu")
        except CodecError as error:
            raise NoDeviceError(f"--device: 'cuda' is not available; use cpu: {error}") from None
        import torch

        # Without a GPU, Triton's interpreter runs the kernels on the CPU.
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        warm_up("gpu")
        return cls("cuda", codec, lambda values: torch.from_numpy(values).to(device))


class NotEnoughMemoryError(ValueError):
    """A tensor is too large to be measured on this machine. The message says by how much."""


def require_memory(elements: int, density: float, workers: int = 1) -> None:
    """Raise NotEnoughMemoryError unless every worker's tensor of `elements` elements fits in memory."""
    element_bytes = workers * (_BYTES_PER_ELEMENT + _BYTES_PER_CANDIDATE * density)
    needed, free = elements * element_bytes, free_bytes()
    if free is not None and needed > free:
        raise NotEnoughMemoryError(
            f"--elements: {elements:,} at density {density:g} take about {needed / 2**30:,.1f} GiB, "
            f"and {free / 2**30:.1f} are free; use at most {int(free / element_bytes):,}"
        )


def free_bytes() -> int | None:
    """Return Linux's estimate of the available memory in bytes; None on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kibibytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kibibytes[0]) * 1024 if kibibytes else None
