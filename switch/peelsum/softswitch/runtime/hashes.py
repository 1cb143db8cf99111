"""The hash functions of simple_switch over the first `count` bytes of an array.

They run in plain Python and, as `native` compiles them, in Numba.
"""

from __future__ import annotations

from collections.abc import Sequence

_ZERO, _ONE, _EIGHT, _SIXTEEN = 0, 1, 8, 16
_LOW, _ONES = 0xFFFF, 0xFFFFFFFF
#: The polynomials of CRC-16/ARC and of Ethernet's CRC-32, reflected.
_POLY_16, _POLY_32 = 0xA001, 0xEDB88320


def crc16(data: Sequence[int], count: int) -> int:
    """Return CRC-16/ARC of the first `count` bytes."""
    remainder = _ZERO
    for i in range(count):
        remainder = remainder ^ data[i]
        for _ in range(8):
            remainder = (remainder >> _ONE) ^ _POLY_16 if remainder & _ONE != _ZERO else remainder >> _ONE
    return remainder


def crc32(data: Sequence[int], count: int) -> int:
    """Return the CRC-32 of Ethernet and zlib of the first `count` bytes."""
    remainder = _ONES
    for i in range(count):
        remainder = remainder ^ data[i]
        for _ in range(8):
            remainder = (remainder >> _ONE) ^ _POLY_32 if remainder & _ONE != _ZERO else remainder >> _ONE
    return remainder ^ _ONES


def csum16(data: Sequence[int], count: int) -> int:
    """Return the Internet checksum (RFC 1071) of the first `count` bytes."""
    total = _ZERO
    for i in range(count):
        total = total + (data[i] << _EIGHT if i & _ONE == _ZERO else data[i])
    while total > _LOW:
        total = (total & _LOW) + (total >> _SIXTEEN)
    return total ^ _LOW


def xor16(data: Sequence[int], count: int) -> int:
    """Return the XOR of the 16-bit words in the first `count` bytes."""
    words_xor = _ZERO
    for i in range(count):
        words_xor = words_xor ^ (data[i] << _EIGHT if i & _ONE == _ZERO else data[i])
    return words_xor


def identity(data: Sequence[int], count: int) -> int:
    """Return the first 8 bytes as a number, most significant byte first."""
    value = _ZERO
    for i in range(min(count, _EIGHT)):
        value = (value << _EIGHT) | data[i]
    return value
