"""What generated code calls when it runs as it is: Python integers, lists, and arrays that give integers.

`peelsum.softswitch.runtime.native` has the same names for Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.runtime import hashes, lookups, queues

find_exact1, find_exact = lookups.find_exact1, lookups.find_exact
find_first1, find_first = lookups.find_first1, lookups.find_first
hash_crc16, hash_crc32 = hashes.crc16, hashes.crc32
hash_csum16, hash_xor16, hash_identity = hashes.csum16, hashes.xor16, hashes.identity
enqueue, waiting_time, leave = queues.enqueue, queues.waiting_time, queues.leave

#: An integer from an array's element.
number = int


class Ints:
    """An array whose elements read as Python integers, so that arithmetic never wraps behind our back."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __getitem__(self, index: int) -> int:
        return int(self._array[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._array[index] = value


def K(value: int) -> int:  # noqa: N802 - a constant's maker, written a thousand times in generated code
    """A constant."""
    return value


def main(function: Any) -> Any:
    """`run` on arrays: wraps those that generated code does arithmetic on."""

    def wrapped(data: Any, stride: Any, length: Any, port: Any, *rest: Any) -> tuple[int, int]:
        given = [
            Ints(part) if isinstance(part, np.ndarray) and part.dtype != np.uint8 else part for part in rest
        ]
        scalars = [int(part) if isinstance(part, np.integer) else part for part in given]
        result: tuple[int, int] = function(data, int(stride), Ints(length), Ints(port), *scalars)
        return result

    return wrapped


def array8(count: int) -> list[int]:
    """Room for `count` values of 8 bits; 16, 32 and 64 alike."""
    return [0] * count


array16 = array32 = array64 = array8


def load8(data: NDArray[np.uint8], at: int) -> int:
    """The byte at `at`."""
    return int(data[at])


def load16(data: NDArray[np.uint8], at: int) -> int:
    """Two bytes, the most significant first."""
    return int.from_bytes(data[at : at + 2].tobytes(), "big")


def load32(data: NDArray[np.uint8], at: int) -> int:
    """Four bytes, the most significant first."""
    return int.from_bytes(data[at : at + 4].tobytes(), "big")


def load64(data: NDArray[np.uint8], at: int) -> int:
    """Eight bytes, the most significant first."""
    return int.from_bytes(data[at : at + 8].tobytes(), "big")


def store8(out: NDArray[np.uint8], at: int, value: int) -> None:
    """One byte: the lowest of `value`."""
    out[at] = value & 0xFF


def store16(out: NDArray[np.uint8], at: int, value: int) -> None:
    """Two bytes, the most significant first."""
    _store(out, at, value, 2)


def store32(out: NDArray[np.uint8], at: int, value: int) -> None:
    """Four bytes, the most significant first."""
    _store(out, at, value, 4)


def store64(out: NDArray[np.uint8], at: int, value: int) -> None:
    """Eight bytes, the most significant first."""
    _store(out, at, value, 8)


def _store(out: NDArray[np.uint8], at: int, value: int, size: int) -> None:
    kept = value & (1 << 8 * size) - 1
    out[at : at + size] = np.frombuffer(kept.to_bytes(size, "big"), np.uint8)


def copy(out: NDArray[np.uint8], to: int, data: NDArray[np.uint8], at: int, count: int) -> None:
    """`count` bytes as they are."""
    out[to : to + count] = data[at : at + count]


def shl(value: int, count: int) -> int:
    """Shift left, modulo 2**64."""
    return value << count & (1 << 64) - 1 if count < 64 else 0


def shr(value: int, count: int) -> int:
    """Shift right."""
    return value >> count if count < 64 else 0


def clamp(value: int, low: int, high: int) -> int:
    """The number nearest `value` in low..high, all signed 64-bit."""
    return min(max(value, low), high)
