"""The functions that generated code calls, in plain Python; all numbers are Python's integers.

`peelsum.softswitch.runtime.native` has the same names for Numba. It compiles the lookups and random numbers
of this module, so these use constants instead of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.loading import EXACT_RUNTIME, RUNTIME, Generated
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.runtime import hashes, queues
from peelsum.softswitch.runtime.meters import meter_colour  # noqa: F401 - generated code calls it

_ZERO, _ONE, _TWO, _WORD = 0, 1, 2, (1 << 64) - 1
HASH_FACTOR = 0x9E3779B97F4A7C15
HASH_SHIFT = 29
#: SplitMix64's multipliers and shifts.
_MIX_1, _MIX_2, _MIX_30, _MIX_27, _MIX_31 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 30, 27, 31
#: Keys shorter than a word fill its top bits, so without this shift the product's low bits would be zero.
HASH_FOLD = 32

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


#: Called with the number of a point, the code's variables, and the values of the point's operands.
Observer: TypeAlias = Callable[[int, Mapping[str, Any], list[int]], None]


def interpreted(generated: Generated, observer: Observer | None = None) -> Callable[..., tuple[int, int]]:
    """Return the generated function in plain Python. Raises UnsupportedConstruct if it is too deep."""
    functions = {**vars(hashes), **globals()}
    names: dict[str, Any] = {name: functions[name] for name in (*RUNTIME, *EXACT_RUNTIME)}
    names["observe"] = observer
    names["consistent_number"] = partial(_consistent_number, {})
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
    """Return a function that loads `size` bytes as a number, most significant byte first."""
    return lambda data, offset: int.from_bytes(data[offset : offset + size].tobytes(), "big")


def _store_function(size: int) -> Callable[[NDArray[np.uint8], int, int], None]:
    """Return a function that stores the lowest `size` bytes of a number, most significant byte first."""
    return lambda out, offset, value: store_number(out, offset, size, value & (1 << 8 * size) - 1)


load8, load16, load32, load64 = map(_load_function, (1, 2, 4, 8))
store8, store16, store32, store64 = map(_store_function, (1, 2, 4, 8))


def copy(
    out: NDArray[np.uint8], out_offset: int, data: NDArray[np.uint8], data_offset: int, count: int
) -> None:
    """Copy `count` bytes."""
    part = data[data_offset : data_offset + count]
    out[out_offset : out_offset + count] = part if isinstance(out, np.ndarray) else part.tolist()


def load_number(data: NDArray[np.uint8], offset: int, count: int) -> int:
    """Return `count` bytes as a number, most significant byte first."""
    return int.from_bytes(data[offset : offset + count].tobytes(), "big")


def store_number(out: Any, offset: int, count: int, value: int) -> None:
    """Store a number of `count` bytes, most significant byte first."""
    data = value.to_bytes(count, "big")
    out[offset : offset + count] = np.frombuffer(data, np.uint8) if isinstance(out, np.ndarray) else data


def shl(value: int, count: int) -> int:
    """Return `value` shifted left, modulo 2**64; 0 for shifts of 64 bits and more."""
    return value << count & (1 << 64) - 1 if count < 64 else 0


def shr(value: int, count: int) -> int:
    """Return `value` shifted right; 0 for shifts of 64 bits and more."""
    return value >> count if count < 64 else 0


def clamp(value: int, low: int, high: int) -> int:
    """Return the number in low..high nearest to `value`, all signed 64-bit."""
    return min(max(value, low), high)


# --- numbers that a program takes one after the other ---------------------------------------------


def next_number(memory: MutableSequence[int], cell: int) -> int:
    """Return 0, 1, 2 and so on, of which the next one is in the memory."""
    number = memory[cell]
    memory[cell] = (number + _ONE) & _WORD
    return number


#: Inputs whose numbers `round_robin_consistent` keeps; beyond them, it forgets the oldest.
_MOST_INPUTS = 1 << 16


def _consistent_number(
    numbers: dict[tuple[int, bytes], int],
    memory: MutableSequence[int],
    cell: int,
    data: list[int],
    count: int,
) -> int:
    """Return the number that the first `count` bytes already have, or give them the next one."""
    key = cell, bytes(data[:count])
    if key not in numbers:
        if len(numbers) == _MOST_INPUTS:
            del numbers[next(iter(numbers))]
        numbers[key] = next_number(memory, cell)
    return numbers[key]


def random_number(memory: MutableSequence[int], cell: int, low: int, high: int) -> int:
    """Return a random number from `low` to `high` by SplitMix64, whose state is in the memory."""
    state = (memory[cell] + HASH_FACTOR) & _WORD
    memory[cell] = state
    state = ((state ^ (state >> _MIX_30)) * _MIX_1) & _WORD
    state = ((state ^ (state >> _MIX_27)) * _MIX_2) & _WORD
    state = state ^ (state >> _MIX_31)
    count = (high - low + _ONE) & _WORD
    return state if count == _ZERO else low + state % count


# --- lookups in the table memory, whose layout `compiler.layout.TablePlan` describes ---------------
# Each returns the index of the matching row's first word, or `default` if no row matches.


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
    hashed = ((key ^ (key >> HASH_FOLD)) * HASH_FACTOR) & _WORD
    slot = (hashed ^ (hashed >> HASH_SHIFT)) & slot_mask
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
        hashed = ((hashed ^ (hashed >> HASH_FOLD)) * HASH_FACTOR) & _WORD
        hashed = hashed ^ (hashed >> HASH_SHIFT)
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
    limbs: int,
    default: int,
) -> int:
    """Find the first row that matches a key of `words` words with masks and `ranges` ranges of `limbs` limbs.

    An end of a range is compared limb by limb, the most significant first, until one differs.
    """
    row = region + _ONE
    for _ in range(memory[region]):
        matches = True
        at = row + key_offset
        for i in range(words):
            if (keys[i] & memory[at + _ONE]) != memory[at]:
                matches = False
            at = at + _TWO
        for i in range(ranges):
            is_low = is_high = True  # whether the limbs so far equal those of the range's lower, upper end
            for limb in range(words + i * limbs, words + (i + 1) * limbs):
                if (is_low and keys[limb] < memory[at]) or (is_high and memory[at + _ONE] < keys[limb]):
                    matches = False
                is_low = is_low and keys[limb] == memory[at]
                is_high = is_high and keys[limb] == memory[at + _ONE]
                at = at + _TWO
        if matches:
            return row
        row = row + row_words
    return default
