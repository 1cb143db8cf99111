"""Launch kernels on the caller's stream, without waiting; and what all launches have in common.

Kernels take words and values as int32 (floats as bit patterns); positions, counts and seeds as int64. They
write their outputs completely unless stated otherwise. Seeds change with each step, so kernels read them from
memory of the device.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import Tensor

# Tile sizes for 128 threads: the largest that need at most about 100 registers per thread when compiled for
# compute capability 9.0. A word is 32 elements, 128 bytes.
TILE_WORDS = 64
BLOCK = 1024
#: Words of the kernels that count a bitmap's bits: the fastest of sixteen launches on an H100.
SCANNED_WORDS = 128
#: A launch that takes longer, in seconds, compiles; between two messages that say so.
_COMPILING_S, _BEAT_S = 0.1, 2.0
_SIGN = 2**63
_log = logging.getLogger("peelsum")


def run(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Launch on the device of the first argument that is a tensor, and on the current stream there."""
    if programs:
        like = next(one for one in arguments if isinstance(one, Tensor))
        started = time.monotonic()
        with torch.cuda.device_of(like):
            kernel[(programs,)](*arguments, **options)
        took_s = time.monotonic() - started
        if took_s > _COMPILING_S and like.is_cuda:  # the interpreter takes as long
            _compiling.tell(took_s)


def cut(size: int, tile: int) -> int:
    """Return the number of tiles, each of one program."""
    return -(-size // tile)


def empty(size: int, like: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    """Allocate on the device of another tensor."""
    return torch.empty(size, dtype=dtype, device=like.device)


def placed_seed(seed: int, like: Tensor) -> Tensor:
    """Return a seed of 64 bits as int64[1], on the device of another tensor."""
    return torch.full((1,), (seed + _SIGN) % (2 * _SIGN) - _SIGN, dtype=torch.int64, device=like.device)


class _Compiling:
    """The seconds that Triton has compiled for in this process."""

    def __init__(self) -> None:
        self._all_s = self._told_s = 0.0

    def tell(self, took_s: float) -> None:
        """Count a kernel, and say so if the last message was some seconds ago."""
        self._all_s += took_s
        if self._all_s - self._told_s > _BEAT_S:
            self._told_s = self._all_s
            _log.warning("compiling the codec for the GPU, once for this machine: %.0f s", self._all_s)


_compiling = _Compiling()
