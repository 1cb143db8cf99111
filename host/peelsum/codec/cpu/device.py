"""The host as a device, on all its cores."""

from __future__ import annotations

from peelsum.codec.cpu.index import CpuIndex
from peelsum.codec.cpu.memory import HostMemory
from peelsum.codec.cpu.segments import CpuSegments
from peelsum.codec.cpu.sketch import CpuSketch


class CpuDevice(CpuIndex, CpuSketch, HostMemory):
    """The codec in Numba, on NumPy arrays."""

    segments = CpuSegments
