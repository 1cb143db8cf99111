"""Loops over numbers for `peelsum.codec.cpu`, compiled by Numba and cached on disk.

A public loop does what the kernel of the same name does, but takes the scale as a factor. Loops with `begin`
and `end` work on that slice. They release the GIL. NumPy scalars keep widths that Numba would widen.

Inner loops index by np.uint64: a signed index might count from the end, and the test for that keeps a loop
from being vectorized. They take no slices of 32 elements: Numba counts the references to each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.cpu_index_loops import BLOCK, Numbers, compiled

_FEW = 256  # numbers that stay in the first-level cache

_Integers = NDArray[np.int32]
_Floats = NDArray[np.float32]
#: The factor of each block of 2**bits elements.
_Factors = NDArray[np.float64]


@compiled
def quantize(values: _Floats, factors: _Factors, bits: int, out: _Integers, begin: int, end: int) -> None:
    size = min(1 << bits, BLOCK)
    for first in range(begin, end, size):
        last, factor = min(first + size, end), factors[first >> bits]
        for i in range(np.uint64(first), np.uint64(last)):
            out[i] = np.int32(np.rint(np.float64(values[i]) * factor))


@compiled
def quantize_at(
    values: _Floats,
    positions: Numbers,
    factors: _Factors,
    bits: int,
    out: _Integers,
    begin: int,
    end: int,
) -> None:
    """Round in a separate loop, which vectorizes."""
    scaled, shift = np.empty(_FEW, np.float64), np.uint64(bits)
    for start in range(begin, end, _FEW):
        first, count = np.uint64(start), np.uint64(min(start + _FEW, end) - start)
        for k in range(count):
            i = np.uint64(positions[first + k])
            scaled[k] = np.float64(values[i]) * factors[i >> shift]
        for k in range(count):
            out[first + k] = np.int32(np.rint(scaled[k]))


@compiled
def dequantize(
    quantized: _Integers,
    factors: _Factors,
    bits: int,
    divisor: float,
    out: _Floats,
    begin: int,
    end: int,
) -> None:
    size = min(1 << bits, BLOCK)
    for first in range(begin, end, size):
        last, factor = min(first + size, end), factors[first >> bits]
        for i in range(np.uint64(first), np.uint64(last)):
            out[i] = np.float32(np.float64(quantized[i]) * factor / divisor)


@compiled
def dequantize_at(
    quantized: _Integers,
    positions: Numbers,
    factors: _Factors,
    bits: int,
    divisor: float,
    out: _Floats,
    begin: int,
    end: int,
) -> None:
    """Divide in a loop of its own, which vectorizes."""
    scaled, floats = np.empty(_FEW, np.float64), np.empty(_FEW, np.float32)
    for start in range(begin, end, _FEW):
        stop = min(start + _FEW, end)
        where, numbers = positions[start:stop], quantized[start:stop]
        for k in range(where.size):
            factor = factors[np.uint64(where[k]) >> np.uint64(bits)]
            scaled[k] = np.float64(numbers[k]) * factor
        for k in range(where.size):
            floats[k] = np.float32(scaled[k] / divisor)
        for k in range(where.size):
            out[np.uint64(where[k])] = floats[k]
