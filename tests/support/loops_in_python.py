"""A pytest plugin: run the transport's compiled loops as Python, for runs too short to compile them.

Load it by `-p loops_in_python`, before anything imports Numba. The loops of sockets cannot run so: they call
the C library.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np

os.environ["NUMBA_DISABLE_JIT"] = "1"

from peelsum.transport import endpoint_kernels


def _load(address: int, index: int) -> np.uint32:
    return np.uint32(ctypes.c_uint32.from_address(int(address) + 4 * int(index)).value)


def _save(address: int, index: int, word: np.uint32) -> None:
    ctypes.c_uint32.from_address(int(address) + 4 * int(index)).value = int(word)


endpoint_kernels.load, endpoint_kernels.save = _load, _save
# As in compiled code, words wrap around silently.
np.seterr(over="ignore")
