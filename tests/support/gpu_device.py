"""The device that GPU tests run on: a real one, or Triton's interpreter on the CPU. Import before Triton."""

import os
from importlib.metadata import version

import numpy as np
import pytest
import torch
from packaging.version import Version

#: Triton reads this when it is imported first.
REAL = torch.cuda.is_available()
if not REAL:
    os.environ["TRITON_INTERPRET"] = "1"
    if Version(version("triton")) < Version("3.7"):
        pytest.skip("the interpreter of Triton up to 3.6 fails with NumPy 2.4", allow_module_level=True)
DEVICE = torch.device("cuda" if REAL else "cpu")
_POISON = 0xA5

needs_device = pytest.mark.skipif(not REAL, reason="needs a GPU that torch can use; none is here")


def on_device(array):
    """A copy there; of uint32, as the int32 of the same bits."""
    signed = array.view(np.int32) if array.dtype == np.uint32 else array
    return torch.from_numpy(signed.copy()).to(DEVICE)


def poisoned(*shape, dtype=torch.int32):
    """Return memory on the device that holds garbage."""
    tensor = torch.empty(shape, dtype=dtype, device=DEVICE)
    tensor.view(torch.uint8).fill_(_POISON)
    return tensor


def bits(tensor):
    """Return the bit patterns of floats or words in device memory: uint32, or int64."""
    array = tensor.cpu().numpy()
    return array.view(np.uint32) if array.itemsize == 4 else array


def same(ours, truth, chosen=slice(None)):
    """Require the bits of `truth`, at all elements or the chosen ones."""
    truth = truth.view(np.uint32) if truth.itemsize == 4 else truth
    np.testing.assert_array_equal(bits(ours)[chosen], truth[chosen])


@pytest.fixture(autouse=True)
def poisoned_allocations():
    """Let torch.empty fill memory with garbage, so that elements that no kernel writes are found."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class GpuOnArrays:
    """A GPU's operations on arrays of the host, which are copied to the device and back."""

    #: Whether kernels run in Triton's interpreter, which is slow.
    interpreted = not REAL

    def __getattr__(self, name):
        from peelsum.codec.gpu import GpuDevice

        operation = getattr(GpuDevice(), name)

        def call(*arguments):
            given = [on_device(item) if isinstance(item, np.ndarray) else item for item in arguments]
            torch.use_deterministic_algorithms(True)  # torch.empty then fills memory with garbage
            try:
                result = operation(*given)
            finally:
                torch.use_deterministic_algorithms(False)
            for array, tensor in zip(arguments, given, strict=True):
                if isinstance(array, np.ndarray):
                    array[...] = bits(tensor).view(array.dtype)
            return bits(result) if isinstance(result, torch.Tensor) else result

        return call
