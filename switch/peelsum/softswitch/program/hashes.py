"""Hash functions over bytes, written once for plain Python and for Numba: those that simple_switch has.

`number` makes the constants (see `lookups`). Each takes an array of bytes and how many of them count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: By the name that BMv2 JSON gives them, in the order of `make_hashes`.
HASHES = ("crc16", "crc32", "csum16", "xor16", "identity")


def make_hashes(number: Callable[[int], Any], byte: Callable[[Any], Any]) -> tuple[Callable[..., Any], ...]:
    """(crc16, crc32, csum16, xor16, identity); `byte` makes a number of an array's element."""
    zero, one, eight, half, low = map(number, (0, 1, 8, 16, 0xFFFF))
    poly16, poly32, ones = map(number, (0xA001, 0xEDB88320, 0xFFFFFFFF))
    most = 8

    def crc16(data: Any, count: Any) -> Any:
        rest = zero
        for i in range(count):
            rest = rest ^ byte(data[i])
            for _ in range(8):
                rest = (rest >> one) ^ poly16 if rest & one != zero else rest >> one
        return rest

    def crc32(data: Any, count: Any) -> Any:
        rest = ones
        for i in range(count):
            rest = rest ^ byte(data[i])
            for _ in range(8):
                rest = (rest >> one) ^ poly32 if rest & one != zero else rest >> one
        return rest ^ ones

    def csum16(data: Any, count: Any) -> Any:
        total = zero
        for i in range(count):
            total = total + (byte(data[i]) << eight if i % 2 == 0 else byte(data[i]))
        while total > low:
            total = (total & low) + (total >> half)
        return total ^ low

    def xor16(data: Any, count: Any) -> Any:
        mixed = zero
        for i in range(count):
            mixed = mixed ^ (byte(data[i]) << eight if i % 2 == 0 else byte(data[i]))
        return mixed

    def identity(data: Any, count: Any) -> Any:
        value = zero
        for i in range(count):
            if i < most:
                value = (value << eight) | byte(data[i])
        return value

    return crc16, crc32, csum16, xor16, identity
