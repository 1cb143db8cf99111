"""A worker's non-zeros, kept from the pass that finds them, so that their tensor need not be read again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class PackedPart(NamedTuple):
    """The non-zeros of neighbouring elements of a tensor."""

    begin: int
    """The first of these elements, a multiple of 32."""
    end: int
    """The element after the last, a multiple of 32 except at the tensor's end."""
    floats: NDArray[np.float32]
    """The non-zeros, in order, and then at least 16 floats of any value."""


@dataclass(eq=False)
class Packed:
    """The non-zeros of a tensor of n elements, in parts; without parts if they were not kept."""

    index: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    """Their bitmap, uint32[ceil(n / 32)]. It is the array that the kernel wrote, and must stay as it is."""
    parts: list[PackedPart] = field(default_factory=list)
    """The parts, in order, of all elements."""
