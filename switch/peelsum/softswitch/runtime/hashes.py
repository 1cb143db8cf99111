"""The hashes of BMv2 over the first `count` bytes of an array.

They run in plain Python and, as `native` compiles them, in Numba, so they use constants instead of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

_ZERO, _ONE, _THREE, _FOUR, _FIVE, _SEVEN, _EIGHT = 0, 1, 3, 4, 5, 7, 8
_THIRTEEN, _SIXTEEN, _SEVENTEEN, _THIRTY_TWO = 13, 16, 17, 32
_LOW_8, _LOW, _ONES, _WORD = 0xFF, 0xFFFF, 0xFFFFFFFF, (1 << 64) - 1
_HIGH_8, _HIGH_16, _SIGN_8, _SIGN_EXTENSION = 0x80, 0x8000, 0x80, 0xFFFFFF00
#: Polynomials: of CRC-16/ARC, Ethernet's CRC-32 and BMv2's CRC-64, reflected; of CRC-8 and CRC-CCITT, not.
_POLY_16, _POLY_32, _POLY_64, _POLY_8, _POLY_CCITT = 0xA001, 0xEDB88320, 0xD8 << 56, 0x07, 0x1021
_FNV_START, _FNV_PRIME = 2166136261, 16777619
#: xxHash64's primes, its first accumulators with seed 0, and rotations with their complements to 64.
_XXH_1, _XXH_2, _XXH_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_XXH_4, _XXH_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_XXH_A, _XXH_D = (_XXH_1 + _XXH_2) % (1 << 64), -_XXH_1 % (1 << 64)
_XXH_31, _XXH_33, _XXH_63, _XXH_57, _XXH_12, _XXH_52, _XXH_18, _XXH_46 = 31, 33, 63, 57, 12, 52, 18, 46
_XXH_27, _XXH_37, _XXH_23, _XXH_41, _XXH_11, _XXH_53, _XXH_29 = 27, 37, 23, 41, 11, 53, 29


def hash_crc16(data: Sequence[int], count: int) -> int:
    """Return CRC-16/ARC of the first `count` bytes."""
    remainder = _ZERO
    for i in range(count):
        remainder = remainder ^ data[i]
        for _ in range(8):
            remainder = (remainder >> _ONE) ^ _POLY_16 if remainder & _ONE != _ZERO else remainder >> _ONE
    return remainder


def hash_crc32(data: Sequence[int], count: int) -> int:
    """Return the CRC-32 of Ethernet and zlib of the first `count` bytes."""
    remainder = _ONES
    for i in range(count):
        remainder = remainder ^ data[i]
        for _ in range(8):
            remainder = (remainder >> _ONE) ^ _POLY_32 if remainder & _ONE != _ZERO else remainder >> _ONE
    return remainder ^ _ONES


def hash_csum16(data: Sequence[int], count: int) -> int:
    """Return the Internet checksum (RFC 1071) of the first `count` bytes."""
    total = _ZERO
    for i in range(count):
        total = total + (data[i] << _EIGHT if i & _ONE == _ZERO else data[i])
    while total > _LOW:
        total = (total & _LOW) + (total >> _SIXTEEN)
    return total ^ _LOW


def hash_xor16(data: Sequence[int], count: int) -> int:
    """Return the XOR of the 16-bit words in the first `count` bytes."""
    words_xor = _ZERO
    for i in range(count):
        words_xor = words_xor ^ (data[i] << _EIGHT if i & _ONE == _ZERO else data[i])
    return words_xor


def hash_identity(data: Sequence[int], count: int) -> int:
    """Return the first 8 bytes as a number, most significant byte first."""
    value = _ZERO
    for i in range(min(count, _EIGHT)):
        value = (value << _EIGHT) | data[i]
    return value


def hash_xor32(data: Sequence[int], count: int) -> int:
    """Return the XOR of the 32-bit words in the first `count` bytes."""
    words_xor = _ZERO
    for i in range(count):
        words_xor = words_xor ^ (data[i] << (_EIGHT * (_THREE - (i & _THREE))))
    return words_xor


def hash_crc8_custom(data: Sequence[int], count: int) -> int:
    """Return the CRC-8 with polynomial 0x07 of the first `count` bytes."""
    remainder = _ZERO
    for i in range(count):
        remainder = remainder ^ data[i]
        for _ in range(8):
            shifted = (remainder << _ONE) & _LOW_8
            remainder = shifted ^ _POLY_8 if remainder & _HIGH_8 != _ZERO else shifted
    return remainder


def hash_crc_ccitt(data: Sequence[int], count: int) -> int:
    """Return CRC-CCITT, which begins with 0xFFFF, of the first `count` bytes."""
    remainder = _LOW
    for i in range(count):
        remainder = remainder ^ (data[i] << _EIGHT)
        for _ in range(8):
            shifted = (remainder << _ONE) & _LOW
            remainder = shifted ^ _POLY_CCITT if remainder & _HIGH_16 != _ZERO else shifted
    return remainder


def hash_crc64_custom(data: Sequence[int], count: int) -> int:
    """Return the reflected CRC-64 with polynomial 0x1B of the first `count` bytes."""
    remainder = _ZERO
    for i in range(count):
        remainder = remainder ^ data[i]
        for _ in range(8):
            remainder = (remainder >> _ONE) ^ _POLY_64 if remainder & _ONE != _ZERO else remainder >> _ONE
    return remainder


def hash_toeplitz(data: Sequence[int], count: int) -> int:
    """Return 0: BMv2's Toeplitz hash has a key of zeros, before a controller changes it."""
    return _ZERO


def hash_hash_ex(data: Sequence[int], count: int) -> int:
    """Return simple_switch's `hash_ex` of the first `count` bytes, which are signed there."""
    value = _FNV_START
    for i in range(count):
        byte = data[i] if data[i] < _SIGN_8 else data[i] | _SIGN_EXTENSION
        value = ((value ^ byte) * _FNV_PRIME) & _ONES
    value = (value + (value << _THIRTEEN)) & _ONES
    value = value ^ (value >> _SEVEN)
    value = (value + (value << _THREE)) & _ONES
    value = value ^ (value >> _SEVENTEEN)
    return (value + (value << _FIVE)) & _ONES


def hash_xxh64(data: Sequence[int], count: int) -> int:
    """Return xxHash64 with seed 0 of the first `count` bytes, as its specification describes it."""
    at = _ZERO
    if count >= _THIRTY_TWO:
        a, b, c, d = _XXH_A, _XXH_2, _ZERO, _XXH_D
        while at + _THIRTY_TWO <= count:
            for lane in range(_FOUR):
                word = _ZERO
                for i in range(_EIGHT):
                    word = word | (data[at + lane * _EIGHT + i] << (_EIGHT * i))
                # The four lanes take turns: the one that is updated becomes the last.
                updated = (a + word * _XXH_2) & _WORD
                updated = ((updated << _XXH_31) | (updated >> _XXH_33)) & _WORD
                a, b, c, d = b, c, d, (updated * _XXH_1) & _WORD
            at = at + _THIRTY_TWO
        value = ((a << _ONE) | (a >> _XXH_63)) + ((b << _SEVEN) | (b >> _XXH_57))
        value = (value + ((c << _XXH_12) | (c >> _XXH_52)) + ((d << _XXH_18) | (d >> _XXH_46))) & _WORD
        for _ in range(_FOUR):
            word = (a * _XXH_2) & _WORD
            word = (((word << _XXH_31) | (word >> _XXH_33)) * _XXH_1) & _WORD
            value = ((value ^ word) * _XXH_1 + _XXH_4) & _WORD
            a, b, c, d = b, c, d, a
    else:
        value = _XXH_5
    value = (value + count) & _WORD
    while at + _EIGHT <= count:
        word = _ZERO
        for i in range(_EIGHT):
            word = word | (data[at + i] << (_EIGHT * i))
        word = (word * _XXH_2) & _WORD
        word = (((word << _XXH_31) | (word >> _XXH_33)) * _XXH_1) & _WORD
        value = value ^ word
        value = ((((value << _XXH_27) | (value >> _XXH_37)) & _WORD) * _XXH_1 + _XXH_4) & _WORD
        at = at + _EIGHT
    if at + _FOUR <= count:
        word = _ZERO
        for i in range(_FOUR):
            word = word | (data[at + i] << (_EIGHT * i))
        value = value ^ ((word * _XXH_1) & _WORD)
        value = ((((value << _XXH_23) | (value >> _XXH_41)) & _WORD) * _XXH_2 + _XXH_3) & _WORD
        at = at + _FOUR
    while at < count:
        value = value ^ ((data[at] * _XXH_5) & _WORD)
        value = ((((value << _XXH_11) | (value >> _XXH_53)) & _WORD) * _XXH_1) & _WORD
        at = at + _ONE
    value = ((value ^ (value >> _XXH_33)) * _XXH_2) & _WORD
    value = ((value ^ (value >> _XXH_29)) * _XXH_3) & _WORD
    return value ^ (value >> _THIRTY_TWO)


#: The hashes by the names that generated code uses.
FUNCTIONS = {name: function for name, function in globals().items() if name.startswith("hash_")}
