"""The functions that generated code calls when plain Python runs it; all numbers are Python's integers.

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
enqueue, waiting_time = queues.enqueue, queues.waiting_time
burst_depth, schedule_departure = queues.burst_depth, queues.schedule_departure

#: Converts an array's element to an integer.
number = int


class PythonIntegers:
    """An array whose elements are read as Python integers, whose arithmetic does not wrap."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __getitem__(self, index: int) -> int:
        return int(self._array[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._array[index] = value


def K(value: int) -> int:  # noqa: N802 - short, since generated code defines every constant with it
    """Return a constant unchanged."""
    return value


def _with_python_integers(argument: Any) -> Any:
    """Return an argument whose numbers are Python's; frames stay arrays of bytes."""
    if isinstance(argument, np.ndarray):
        return argument if argument.dtype == np.uint8 else PythonIntegers(argument)
    return int(argument)


def with_python_integers(function: Any) -> Any:
    """Return a generated function that takes NumPy arguments, and computes with Python integers."""

    def run(*arguments: Any) -> tuple[int, int]:
        result: tuple[int, int] = function(*map(_with_python_integers, arguments))
        return result

    return run


def array8(count: int) -> list[int]:
    """Return `count` zeros, for elements of any width."""
    return [0] * count


array16 = array32 = array64 = array8


def _load_function(size: int) -> Callable[[NDArray[np.uint8], int], int]:
    """Return a function that loads `size` bytes."""

    def load(data: NDArray[np.uint8], offset: int) -> int:
        """Return some bytes as a number, most significant byte first."""
        return int.from_bytes(data[offset : offset + size].tobytes(), "big")

    return load


def _store_function(size: int) -> Callable[[NDArray[np.uint8], int, int], None]:
    """Return a function that stores `size` bytes."""

    def store(out: NDArray[np.uint8], offset: int, value: int) -> None:
        """Store the lowest bytes of `value`, most significant byte first."""
        truncated = value & (1 << 8 * size) - 1
        out[offset : offset + size] = np.frombuffer(truncated.to_bytes(size, "big"), np.uint8)

    return store


load8, load16, load32, load64 = map(_load_function, (1, 2, 4, 8))
store8, store16, store32, store64 = map(_store_function, (1, 2, 4, 8))


def copy(
    out: NDArray[np.uint8], out_offset: int, data: NDArray[np.uint8], data_offset: int, count: int
) -> None:
    """Copy `count` bytes."""
    out[out_offset : out_offset + count] = data[data_offset : data_offset + count]


def shl(value: int, count: int) -> int:
    """Return `value` shifted left, modulo 2**64; 0 for shifts of 64 bits and more."""
    return value << count & (1 << 64) - 1 if count < 64 else 0


def shr(value: int, count: int) -> int:
    """Return `value` shifted right; 0 for shifts of 64 bits and more."""
    return value >> count if count < 64 else 0


def clamp(value: int, low: int, high: int) -> int:
    """Return the number in low..high nearest to `value`, all signed 64-bit."""
    return min(max(value, low), high)
