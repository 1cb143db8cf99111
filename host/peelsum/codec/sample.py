"""Draw a few elements of a tensor, to estimate the share of non-zeros before anything larger is sent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.reference import mixed

#: Number of elements drawn, and words of their bitmap.
SAMPLE, SAMPLE_WORDS = 256, 8


def sample(elements: int, seed: int) -> NDArray[np.uint32]:
    """Return uint32[SAMPLE]: elements of the first 2**31 - 1 of a tensor, at random, with repetition.

    `elements` is at least 1. Elements depend on both arguments only, so they are the same on every worker.
    """
    drawn = mixed(np.arange(SAMPLE, dtype=np.uint64), seed) >> np.uint64(32)
    return (drawn * np.uint64(min(elements, 2**31 - 1)) >> np.uint64(32)).astype(np.uint32)
