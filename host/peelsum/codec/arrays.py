"""Types of NumPy's arrays that the codec takes and returns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Words that are sent, bitmaps, and bit patterns of floats.
Words = NDArray[np.uint32]
Integers = NDArray[np.int32]
#: Positions and counts.
Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]
#: Powers of two by which blocks of floats are multiplied.
Factors = NDArray[np.float64]
