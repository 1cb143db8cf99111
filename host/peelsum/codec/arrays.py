"""Types of the arrays that the codec takes and returns, bfloat16 among them, and the codec's error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

#: Words that are sent, bitmaps, and bit patterns of floats.
Words = NDArray[np.uint32]
Integers = NDArray[np.int32]
#: Positions and counts.
Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]
#: Sums modulo 2**32, of either type.
Cells = NDArray[np.uint32] | NDArray[np.int32]
_BFLOAT16_SHIFT = 16


class CodecError(ValueError):
    """A request that the codec cannot serve. The message names field, value and remedy in one line."""


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
    """Return the same numbers as float32[n], in C order; without a copy if the tensor is that already.

    Widening float16 and bfloat16 is exact.
    """
    if isinstance(tensor, BFloat16):
        bits = np.ascontiguousarray(tensor.bits).reshape(-1).astype(np.uint32)
        bits <<= _BFLOAT16_SHIFT
        return bits.view(np.float32)
    return np.ascontiguousarray(tensor, np.float32).reshape(-1)
