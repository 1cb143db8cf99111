"""Where the codec is measured: its kernels, their memory, and LHC's there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from peelsum.bench.lhc import LhcLayout
from peelsum.codec import CodecError, Kernels, Memory, kernels, memory, warm_up

DeviceName = Literal["cpu", "cuda"]
DEVICES: tuple[DeviceName, ...] = ("cpu", "cuda")


class NoDeviceError(ValueError):
    """The codec cannot be measured where it was asked for. Says what is missing."""


@dataclass(frozen=True)
class Device:
    """What measuring needs of a device.

    place: a tensor float32[n] of the host, as the kernels take it. lhc: a layout, with `index`, `encode` and
    `decode` for what lies there.
    """

    name: DeviceName
    ops: Kernels
    memory: Memory
    place: Callable[[NDArray[np.float32]], Any]
    lhc: Callable[[LhcLayout], Any]

    @classmethod
    def of(cls, name: str) -> Device:
        """The device of that name, with compiled kernels. Raises NoDeviceError where there is none."""
        if name == "cpu":
            warm_up()
            return cls("cpu", kernels(), memory(), lambda values: values, lambda layout: layout)
        if name != "cuda":
            raise NoDeviceError(f"--device: {name!r} is unknown; use one of {', '.join(DEVICES)}")
        try:
            ops = kernels("gpu")
        except CodecError as error:
            raise NoDeviceError(f"--device: cuda is not here, use cpu: {error}") from None
        return cls._cuda(ops)

    @classmethod
    def _cuda(cls, ops: Kernels) -> Device:
        import torch

        from peelsum.bench.lhc_gpu import DeviceLhc

        # Without a GPU, kernels are those of Triton's interpreter.
        there = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        warm_up("gpu")
        return cls("cuda", ops, memory("gpu"), lambda values: torch.from_numpy(values).to(there), DeviceLhc)
