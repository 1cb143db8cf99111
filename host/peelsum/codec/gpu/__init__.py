"""A GPU as a device: kernels in Triton, which run on the current stream.

Arrays are tensors, int32 where NumPy's are uint32, because torch has almost no arithmetic on uint32. Methods
whose result has a size that only the device knows (`positions`, `sketch_decode`) wait for the device, unless
the caller passes the size. Tensors are contiguous and on the current device (see `device_context`).
"""

from __future__ import annotations

from peelsum.codec.gpu.index import GpuIndex
from peelsum.codec.gpu.memory import DeviceMemory
from peelsum.codec.gpu.segments import GpuSegments
from peelsum.codec.gpu.sketch import GpuSketch


class GpuDevice(GpuIndex, GpuSketch, DeviceMemory):
    """The codec in Triton, on torch tensors."""

    segments = GpuSegments
