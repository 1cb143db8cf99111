"""The functions behind BMv2's hashes, over the first `count` bytes of an array.

`program.operations.HASHES` says which call each hash is. Those of `COMPILED` run in plain Python and, as
`native` compiles them, in Numba, so they use constants instead of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

_ZERO, _ONE, _THREE, _EIGHT, _SIXTEEN, _LOW = 0, 1, 3, 8, 16, 0xFFFF
_WORD, _ONES = (1 << 64) - 1, 0xFFFFFFFF
_PRIMES = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip


def crc_reflected(data: Sequence[int], count: int, polynomial: int, start: int) -> int:
    """Return a CRC that takes the bits of each byte from the lowest; the polynomial is reflected, too."""
    remainder = start
    for i in range(count):
        remainder = remainder ^ data[i]
        for _ in range(8):
            remainder = (remainder >> _ONE) ^ polynomial if remainder & _ONE != _ZERO else remainder >> _ONE
    return remainder


def crc_forward(data: Sequence[int], count: int, polynomial: int, start: int, bits: int) -> int:
    """Return a CRC of `bits` bits that takes the bits of each byte from the highest."""
    remainder = start
    for i in range(count):
        remainder = remainder ^ (data[i] << (bits - _EIGHT))
        for _ in range(8):
            remainder = remainder << _ONE
            if remainder >> bits != _ZERO:
                remainder = remainder ^ ((_ONE << bits) | polynomial)
    return remainder


def internet_checksum(data: Sequence[int], count: int) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total = _ZERO
    for i in range(count):
        total = total + (data[i] << _EIGHT if i & _ONE == _ZERO else data[i])
    while total > _LOW:
        total = (total & _LOW) + (total >> _SIXTEEN)
    return total ^ _LOW


def xor_words(data: Sequence[int], count: int, last: int) -> int:
    """Return the XOR of words of `last + 1` bytes; the last word is padded with zeros."""
    words_xor = _ZERO
    for i in range(count):
        words_xor = words_xor ^ (data[i] << (_EIGHT * (last - (i & last))))
    return words_xor


def first_number(data: Sequence[int], count: int) -> int:
    """Return the first 8 bytes as a number, most significant byte first."""
    value = _ZERO
    for i in range(min(count, _EIGHT)):
        value = (value << _EIGHT) | data[i]
    return value


COMPILED = (crc_reflected, crc_forward, internet_checksum, xor_words, first_number)


def hash_ex(data: Sequence[int], count: int) -> int:
    """Return simple_switch's `hash_ex`, for which bytes are signed."""
    value = 2166136261
    for byte in data[:count]:
        value = (value ^ byte - 256 * (byte >> 7)) * 16777619 & _ONES
    value = value + (value << 13) & _ONES
    value ^= value >> 7
    value = value + (value << 3) & _ONES
    value ^= value >> 17
    return value + (value << 5) & _ONES


def xxh64(data: Sequence[int], count: int) -> int:
    """Return xxHash64 with seed 0, as its specification describes it."""
    one, two, three, four, five = _PRIMES

    def rotated(value: int, bits: int) -> int:
        return (value << bits | (value & _WORD) >> 64 - bits) & _WORD

    def mixed(value: int, word: int) -> int:
        return rotated(value + word * two & _WORD, 31) * one & _WORD

    def word_at(position: int, size: int) -> int:
        return int.from_bytes(bytes(data[position : position + size]), "little")

    value, position = five, 0
    if count >= 32:
        lanes = [one + two, two, 0, -one]
        while position + 32 <= count:
            lanes = [mixed(lane, word_at(position + 8 * i, 8)) for i, lane in enumerate(lanes)]
            position += 32
        value = sum(map(rotated, lanes, (1, 7, 12, 18)))
        for lane in lanes:
            value = (value ^ mixed(0, lane)) * one + four & _WORD
    value += count
    while position + 8 <= count:
        value = rotated(value ^ mixed(0, word_at(position, 8)), 27) * one + four
        position += 8
    if position + 4 <= count:
        value = rotated(value ^ word_at(position, 4) * one, 23) * two + three
        position += 4
    for byte in data[position:count]:
        value = rotated(value ^ byte * five, 11) * one
    value &= _WORD
    value = (value ^ value >> 33) * two & _WORD
    value = (value ^ value >> 29) * three & _WORD
    return value ^ value >> 32
