"""Poisoned memory: a fixture that conftest.py imports for its whole folder, and arrays between guards."""

import sys

import numpy as np
import pytest

from peelsum import buffers
from peelsum.codec import HOST

#: Packages whose `np.empty` is poisoned. Not NumPy's own: Numba looks it up when it compiles.
PACKAGES = ("peelsum.codec", "peelsum.allreduce")
#: Modules of compiled loops: Numba takes NumPy itself, so what these allocate is not poisoned.
COMPILED = (
    "peelsum.allreduce.history_loops",
    *(f"peelsum.codec.cpu.{name}" for name in ("index", "scales", "segments", "sketch", "words")),
)


class PoisonedNumPy:
    """NumPy, except that `empty` returns memory filled with garbage."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def empty(*args, **kwargs):
        """An array whose every byte is 0xA5."""
        array = np.empty(*args, **kwargs)
        if array.flags.c_contiguous and array.nbytes:
            array.reshape(-1).view(np.uint8)[:] = 0xA5
        return array


class Guarded:
    """An array of garbage on a device, between guards, which `check` requires to be intact."""

    def __init__(self, count, dtype=np.uint32, ops=HOST):
        garbage = np.full((128 + count) * np.dtype(dtype).itemsize, 0x5A, np.uint8).view(dtype)
        self._ops, self._intact, self._all = ops, garbage[:64].copy(), ops.to_device(garbage)
        self.array = self._all[64 : 64 + count]

    def check(self, expected=None):
        """Require that nothing beside the array was written, and that the array is as expected."""
        if expected is not None:
            np.testing.assert_array_equal(self._ops.to_host(self.array), expected)
        for guard in (self._all[:64], self._all[64 + len(self.array) :]):
            after = self._ops.to_host(guard).view(self._intact.dtype)
            np.testing.assert_array_equal(after, self._intact)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """Make np.empty and buffers.empty return garbage, so that elements and words that no code writes show."""
    empty, poisoned = buffers.empty, 0

    def poisoned_empty(count, dtype):
        array = empty(count, dtype)
        array.view(np.uint8)[:] = 0xA5
        return array

    monkeypatch.setattr(buffers, "empty", poisoned_empty)
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES) and name not in COMPILED and getattr(module, "np", None) is np:
            monkeypatch.setattr(module, "np", PoisonedNumPy())
            poisoned += 1
    assert poisoned > 3, "the modules that allocate are not among those that are poisoned"
