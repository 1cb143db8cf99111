"""Decorators and helpers of the compiled loops: bit operations on a word, and the hash.

Compiled loops release the GIL. NumPy scalars keep widths that Numba would widen.
"""

from __future__ import annotations

import numpy as np

from peelsum.codec.arrays import Words
from peelsum.codec.layout import MIX_FIRST, MIX_SECOND, MIX_STEP
from peelsum.compiling import compiler

BLOCK = 8192  # elements; a multiple of 32, and 32 KiB
MAGNITUDE_MASK = np.uint32(0x7FFFFFFF)
ONE = np.uint32(1)
_STEP, _FIRST, _SECOND = np.uint64(MIX_STEP), np.uint64(MIX_FIRST), np.uint64(MIX_SECOND)
_S27, _S30, _S31 = (np.uint64(bits) for bits in (27, 30, 31))

#: Compiles a function that may allocate arrays.
compiled = compiler({"nogil": True})
#: Compiles a function that allocates no arrays, without Numba's reference counting.
leaf = compiler({"nogil": True, "_nrt": False})


@compiled
def mixed(counter: np.uint64, seed: np.uint64) -> np.uint64:
    """Return `peelsum.codec.layout.mix` of counter * MIX_STEP + seed, modulo 2**64."""
    value = counter * _STEP + seed
    value = (value ^ (value >> _S30)) * _FIRST
    value = (value ^ (value >> _S27)) * _SECOND
    return value ^ (value >> _S31)


@compiled
def largest_magnitude(bits: Words) -> np.uint32:
    """Return the largest of some floats' bit patterns, without their signs."""
    largest = np.uint32(0)
    for i in range(bits.size):
        largest = max(largest, np.uint32(bits[i] & MAGNITUDE_MASK))
    return largest


@compiled
def popcount(word: np.uint32) -> np.uint32:
    """Count the set bits of a uint32; LLVM recognizes this idiom and emits the processor's instruction."""
    word = np.uint32(word - ((word >> ONE) & np.uint32(0x55555555)))
    word = np.uint32((word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333)))
    word = np.uint32((word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F))
    return np.uint32(np.uint32(word * np.uint32(0x01010101)) >> np.uint32(24))


@compiled
def lowest(word: np.uint32) -> np.uint32:
    """Return the position of the lowest set bit of a non-zero word."""
    return popcount(np.uint32(np.uint32(word ^ np.uint32(word & np.uint32(word - ONE))) - ONE))
