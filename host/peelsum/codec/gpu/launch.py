"""Launch kernels on the current stream, without waiting; tile sizes, and allocation of arguments.

Kernels take words and values as int32 (floats as bit patterns); positions, counts and seeds as int64. They
write their outputs completely unless stated otherwise. Seeds change with each step, so kernels read them from
memory of the device.
"""

from __future__ import annotations

import inspect
import logging
import time
from typing import Any

import torch
import triton
from torch import Tensor

# Tile sizes for 128 threads: the largest that need at most about 100 registers per thread when compiled for
# compute capability 9.0. A word is 32 elements, 128 bytes.
TILE_WORDS = 64
BLOCK = 1024
#: Words of the kernels that count a bitmap's bits: the fastest of sixteen launches on an H100.
SCANNED_WORDS = 128
#: A launch that takes longer, in seconds, compiles the kernel; seconds between two messages that say so.
_COMPILING_S, _MESSAGE_INTERVAL_S = 0.1, 2.0
_SIGN = 2**63
_log = logging.getLogger("peelsum")


def kernel(function: Any) -> Any:
    """Return a function as a Triton kernel that is compiled once for all values of its variable arguments.

    Arguments annotated `tl.constexpr` are constants. By default, Triton also compiles a kernel anew for
    integers that are 1, and for integers and addresses that are multiples of 16. Steps of training would meet
    new combinations of these for a long time, and no kernel here is faster for them: no access is vectorized.
    """
    variable = inspect.signature(function).parameters.keys() - inspect.get_annotations(function).keys()
    return triton.jit(function, do_not_specialize=variable)


def run(function: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Launch a kernel, whose first argument is a tensor, on the current stream of the current device."""
    if programs:
        started = time.monotonic()
        function[(programs,)](*arguments, **options)
        took_s = time.monotonic() - started
        if took_s > _COMPILING_S and arguments[0].is_cuda:  # the interpreter takes as long
            _compiling.add(took_s)


def tiles_of(size: int, tile: int) -> int:
    """Return how many tiles of size `tile` cover `size` items; each tile is a program of a launch."""
    return -(-size // tile)


def empty(size: int, like: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    """Allocate a tensor of this size on the device of another one."""
    return torch.empty(size, dtype=dtype, device=like.device)


def seed_on_device(seed: int, like: Tensor) -> Tensor:
    """Return a seed of 64 bits as int64[1] on the device of another tensor."""
    return torch.full((1,), signed(seed), dtype=torch.int64, device=like.device)


def signed(seed: int) -> int:
    """Return the int64 with the bits of an uint64."""
    return (seed + _SIGN) % (2 * _SIGN) - _SIGN


class _Compiling:
    """Adds up the time that Triton has spent compiling in this process, and logs it."""

    def __init__(self) -> None:
        self._total_s = self._logged_s = 0.0

    def add(self, took_s: float) -> None:
        """Add the time of a kernel; log the total if it has grown by some seconds since the last message."""
        self._total_s += took_s
        if self._total_s - self._logged_s > _MESSAGE_INTERVAL_S:
            self._logged_s = self._total_s
            _log.warning("compiling the codec for the GPU, once for this machine: %.0f s", self._total_s)


_compiling = _Compiling()
