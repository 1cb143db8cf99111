"""Codec tests run in poisoned memory, and the same tests on every device, with arrays of the host."""

import pytest
from poison import poisoned_memory

from peelsum.codec import device

__all__ = ["poisoned_memory"]


@pytest.fixture(params=["reference", "cpu", "gpu"])
def ops(request):
    """Return a device. The GPU's operations take and return arrays of the host, too."""
    if request.param == "gpu":
        return pytest.importorskip("gpu_device").GpuOnArrays()
    return device(request.param)
