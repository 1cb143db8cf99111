"""The functions that generated code calls in plain Python: integers, lists, and arrays of integers.

`peelsum.softswitch.runtime.native` has the same names for Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.runtime import hashes, lookups, queues

find_exact1, find_exact = lookups.find_exact1, lookups.find_exact
find_first1, find_first = lookups.find_first1, lookups.find_first
hash_crc16, hash_crc32 = hashes.crc16, hashes.crc32
hash_csum16, hash_xor16, hash_identity = hashes.csum16, hashes.xor16, hashes.identity
enqueue, standing, waiting_time, leave = queues.enqueue, queues.standing, queues.waiting_time, queues.leave

#: Converts an array's element to an integer.
number = int


class Ints:
    """An array whose elements are read as Python integers: arithmetic does not wrap silently."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __getitem__(self, index: int) -> int:
        return int(self._array[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._array[index] = value


def K(value: int) -> int:  # noqa: N802 - short, since generated code defines every constant with it
    """Return a constant unchanged."""
    return value


def main(function: Any) -> Any:
    """Return `run` for NumPy arguments: it wraps the arrays that generated code computes with."""

    def wrapped(data: Any, stride: Any, length: Any, port: Any, *rest: Any) -> tuple[int, int]:
        given = [
            Ints(part) if isinstance(part, np.ndarray) and part.dtype != np.uint8 else part for part in rest
        ]
        scalars = [int(part) if isinstance(part, np.integer) else part for part in given]
        result: tuple[int, int] = function(data, int(stride), Ints(length), Ints(port), *scalars)
        return result

    return wrapped


def array8(count: int) -> list[int]:
    """Return `count` zeros, for elements of any width."""
    return [0] * count


array16 = array32 = array64 = array8


def _loader(size: int) -> Callable[[NDArray[np.uint8], int], int]:
    def load(data: NDArray[np.uint8], at: int) -> int:
        """Return some bytes as a number, most significant byte first."""
        return int.from_bytes(data[at : at + size].tobytes(), "big")

    return load


def _storer(size: int) -> Callable[[NDArray[np.uint8], int, int], None]:
    def store(out: NDArray[np.uint8], at: int, value: int) -> None:
        """Store the lowest bytes of `value`, most significant byte first."""
        kept = value & (1 << 8 * size) - 1
        out[at : at + size] = np.frombuffer(kept.to_bytes(size, "big"), np.uint8)

    return store


load8, load16, load32, load64 = map(_loader, (1, 2, 4, 8))
store8, store16, store32, store64 = map(_storer, (1, 2, 4, 8))


def copy(out: NDArray[np.uint8], to: int, data: NDArray[np.uint8], at: int, count: int) -> None:
    """Copy `count` bytes."""
    out[to : to + count] = data[at : at + count]


def shl(value: int, count: int) -> int:
    """Return `value` shifted left, modulo 2**64; 0 for shifts of 64 bits and more."""
    return value << count & (1 << 64) - 1 if count < 64 else 0


def shr(value: int, count: int) -> int:
    """Return `value` shifted right; 0 for shifts of 64 bits and more."""
    return value >> count if count < 64 else 0


def clamp(value: int, low: int, high: int) -> int:
    """Return the number in low..high nearest to `value`, all signed 64-bit."""
    return min(max(value, low), high)
