"""The randomized Hadamard transform, which spreads a block's energy evenly over its elements.

y = H D x, where D has random signs and H has entries 1 and -1; H H = n, so x = D H y / n. Blocks have up to
4,096 elements, a power of two; the last one is padded with zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.compress.compressor import Floats, Values
from peelsum.summation import Words

_MOST_IN_BLOCK = 4096


def block_of(elements: int) -> int:
    """Return the number of elements in a block: the power of two from `elements` on, at most 4,096."""
    return min(_MOST_IN_BLOCK, 1 << max(elements - 1, 0).bit_length())


def padded(elements: int) -> int:
    """Return the number of elements of whole blocks."""
    block = block_of(elements)
    return -(-elements // block) * block


def rotated(tensor: Floats, random: Words) -> Values:
    """Return float64[padded(n)]: H D x of every block; the signs are the top bits of random[padded(n)]."""
    values = np.zeros(len(random))
    values[: tensor.size] = tensor
    return _hadamard(values * _signs(random), block_of(tensor.size))


def rotated_back(levels: NDArray[np.int64], unit: float, random: Words, elements: int) -> Values:
    """Return float64[elements]: D H (levels * unit) / n, exact for units of few bits."""
    block = block_of(elements)
    values = _hadamard(levels.astype(np.float64), block) * _signs(random) * (unit / block)
    return np.asarray(values[:elements])


def _signs(random: Words) -> Values:
    return 1.0 - 2.0 * (random >> np.uint32(31)).astype(np.float64)


def _hadamard(values: Values, block: int) -> Values:
    """Return H x of every block, by butterflies; H_2n = [[H_n, H_n], [H_n, -H_n]]."""
    values, half = values.copy(), 1
    while half < block:
        pairs = values.reshape(-1, 2, half)
        sums, differences = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
        pairs[:, 0], pairs[:, 1] = sums, differences
        half *= 2
    return values
