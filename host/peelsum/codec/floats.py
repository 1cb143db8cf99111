"""Widen float16 and bfloat16 to the float32 that the kernels read. Widening is exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

_BFLOAT16_SHIFT = 16


@dataclass(frozen=True, eq=False)
class BFloat16:
    """A tensor of bfloat16, given by its bit patterns because NumPy lacks the type."""

    bits: NDArray[np.uint16]
    """Bit patterns, uint16[shape]."""
    dtype: ClassVar[str] = "bfloat16"

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.bits.shape


def to_float32(tensor: NDArray[np.float32] | NDArray[np.float16] | BFloat16) -> NDArray[np.float32]:
    """Return the same numbers as float32[n], in C order; without a copy if the tensor is that already."""
    if isinstance(tensor, BFloat16):
        bits = np.ascontiguousarray(tensor.bits).reshape(-1).astype(np.uint32)
        bits <<= _BFLOAT16_SHIFT
        return bits.view(np.float32)
    return np.ascontiguousarray(tensor, np.float32).reshape(-1)
