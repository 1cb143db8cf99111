"""The functions that generated code calls, in plain Python; all numbers are Python's integers.

`peelsum.softswitch.runtime.native` has the same names for Numba. It compiles the hashes and lookups of this
module, so these use constants instead of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.loading import RUNTIME, Generated
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.runtime import queues

_ZERO, _ONE, _TWO, _EIGHT, _SIXTEEN = 0, 1, 2, 8, 16
_LOW, _ONES, _WORD = 0xFFFF, 0xFFFFFFFF, (1 << 64) - 1
#: The polynomials of CRC-16/ARC and of Ethernet's CRC-32, reflected.
_POLY_16, _POLY_32 = 0xA001, 0xEDB88320
_FACTOR = 0x9E3779B97F4A7C15
_SHIFT = 29
#: Keys shorter than a word fill its top bits, so without this shift the product's low bits would be zero.
_FOLD = 32

#: Converts an array's element to an integer.
number = int
enqueue, waiting_time = queues.enqueue, queues.waiting_time
burst_depth, schedule_departure = queues.burst_depth, queues.schedule_departure


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


def interpreted(generated: Generated) -> Callable[..., tuple[int, int]]:
    """Return the generated function in plain Python. Raises UnsupportedConstruct if it is too deep."""
    names: dict[str, Any] = {name: globals()[name] for name in RUNTIME}
    try:
        exec(compile(generated.source, "<generated>", "exec"), names)
    except (RecursionError, MemoryError):  # Python's parser raises MemoryError if nesting is too deep
        raise UnsupportedConstruct(
            "program: has too many branches in a row; use shorter header stacks, or fewer parser states and "
            "actions of a table"
        ) from None

    run: Callable[..., tuple[int, int]] = names["run"]
    return lambda *arguments: run(*map(_with_python_integers, arguments))


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


# --- hashes of simple_switch over the first `count` bytes of an array ------------------------------


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


# --- lookups in the table memory, whose layout `compiler.layout.TablePlan` describes ---------------
# Each returns the index of the matching row's first word, or `default` if no row matches.


def hash_words(words: Sequence[int]) -> int:
    """Return the hash of a packed key, as `find_exact` and `find_exact1` compute it."""
    hashed = 0
    for word in words:
        hashed ^= word
        hashed = (hashed ^ hashed >> _FOLD) * _FACTOR & _WORD
        hashed ^= hashed >> _SHIFT
    return hashed


def find_exact1(
    memory: Sequence[int],
    region: int,
    slot_mask: int,
    row_words: int,
    key_offset: int,
    key: int,
    default: int,
) -> int:
    """Look up a key of one word in a hash table of `slot_mask + 1` rows with the key at `key_offset`."""
    hashed = ((key ^ (key >> _FOLD)) * _FACTOR) & _WORD
    slot = (hashed ^ (hashed >> _SHIFT)) & slot_mask
    while True:
        row = region + slot * row_words
        if memory[row] == _ZERO:
            return default
        if memory[row + key_offset] == key:
            return row
        slot = (slot + _ONE) & slot_mask


def find_exact(
    memory: Sequence[int],
    region: int,
    slot_mask: int,
    row_words: int,
    key_offset: int,
    keys: Sequence[int],
    count: int,
    default: int,
) -> int:
    """Look up a key of `count` words as `find_exact1` does."""
    hashed = _ZERO
    for i in range(count):
        hashed = hashed ^ keys[i]
        hashed = ((hashed ^ (hashed >> _FOLD)) * _FACTOR) & _WORD
        hashed = hashed ^ (hashed >> _SHIFT)
    slot = hashed & slot_mask
    while True:
        row = region + slot * row_words
        if memory[row] == _ZERO:
            return default
        matches = True
        for i in range(count):
            if memory[row + key_offset + i] != keys[i]:
                matches = False
        if matches:
            return row
        slot = (slot + _ONE) & slot_mask


def find_first1(
    memory: Sequence[int], region: int, row_words: int, key_offset: int, key: int, default: int
) -> int:
    """Find the first row whose value equals a key of one word, ANDed with the row's mask."""
    row = region + _ONE
    for _ in range(memory[region]):
        if (key & memory[row + key_offset + _ONE]) == memory[row + key_offset]:
            return row
        row = row + row_words
    return default


def find_first(
    memory: Sequence[int],
    region: int,
    row_words: int,
    key_offset: int,
    keys: Sequence[int],
    words: int,
    ranges: int,
    default: int,
) -> int:
    """Find the first row that matches a key of `words` words with masks and of `ranges` ranges."""
    row = region + _ONE
    for _ in range(memory[region]):
        matches = True
        at = row + key_offset
        for i in range(words):
            if (keys[i] & memory[at + _ONE]) != memory[at]:
                matches = False
            at = at + _TWO
        for i in range(ranges):
            if keys[words + i] < memory[at] or memory[at + _ONE] < keys[words + i]:
                matches = False
            at = at + _TWO
        if matches:
            return row
        row = row + row_words
    return default
