"""Narrow floats as the float32 that the kernels read. Widening is exact, so nothing else knows of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BFLOAT16_SHIFT = 16


@dataclass(frozen=True, eq=False)
class BFloat16:
    """A tensor of bfloat16 by its bit patterns, uint16[shape], since NumPy has no such type."""

    bits: NDArray[np.uint16]

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.bits.shape


def widened(tensor: NDArray[np.float32] | NDArray[np.float16] | BFloat16) -> NDArray[np.float32]:
    """The same numbers as float32[n], in C order; the tensor's own memory where it is that already."""
    if isinstance(tensor, BFloat16):
        wide = np.ascontiguousarray(tensor.bits).reshape(-1).astype(np.uint32)
        wide <<= _BFLOAT16_SHIFT
        return wide.view(np.float32)
    return np.ascontiguousarray(tensor, np.float32).reshape(-1)
