"""Table lookups over the table memory, for plain Python and for Numba (see `native`).

Each lookup returns the index of the matching row's first word, or `default`. `layout.TablePlan` describes the
memory.
"""

from __future__ import annotations

from collections.abc import Sequence

_ZERO, _ONE, _TWO = 0, 1, 2
_WORD = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
_SHIFT = 29
#: A short key fills the top bits of its word, so without folding the product's low bits would be zero.
_FOLD = 32


def hash_words(words: Sequence[int]) -> int:
    """Return the hash of packed key words, as the lookups below compute it."""
    mixed = 0
    for word in words:
        mixed ^= word
        mixed = (mixed ^ mixed >> _FOLD) * _FACTOR & _WORD
        mixed ^= mixed >> _SHIFT
    return mixed


def find_exact1(
    memory: Sequence[int], region: int, last: int, row_words: int, at: int, key: int, default: int
) -> int:
    """Look up a key of one word in a hash table of `last + 1` rows; a row's key starts at its word `at`."""
    mixed = ((key ^ (key >> _FOLD)) * _FACTOR) & _WORD
    slot = (mixed ^ (mixed >> _SHIFT)) & last
    while True:
        row = region + slot * row_words
        if memory[row] == _ZERO:
            return default
        if memory[row + at] == key:
            return row
        slot = (slot + _ONE) & last


def find_exact(
    memory: Sequence[int],
    region: int,
    last: int,
    row_words: int,
    at: int,
    keys: Sequence[int],
    count: int,
    default: int,
) -> int:
    """Look up a key of `count` words as `find_exact1` does."""
    mixed = _ZERO
    for i in range(count):
        mixed = mixed ^ keys[i]
        mixed = ((mixed ^ (mixed >> _FOLD)) * _FACTOR) & _WORD
        mixed = mixed ^ (mixed >> _SHIFT)
    slot = mixed & last
    while True:
        row = region + slot * row_words
        if memory[row] == _ZERO:
            return default
        same = True
        for i in range(count):
            if memory[row + at + i] != keys[i]:
                same = False
        if same:
            return row
        slot = (slot + _ONE) & last


def find_first1(memory: Sequence[int], region: int, row_words: int, at: int, key: int, default: int) -> int:
    """Find the first row whose value equals a key of one word under the row's mask."""
    row = region + _ONE
    for _ in range(memory[region]):
        if (key & memory[row + at + _ONE]) == memory[row + at]:
            return row
        row = row + row_words
    return default


def find_first(
    memory: Sequence[int],
    region: int,
    row_words: int,
    at: int,
    keys: Sequence[int],
    words: int,
    ranges: int,
    default: int,
) -> int:
    """Find the first row that matches `words` words under their masks and then `ranges` ranges."""
    row = region + _ONE
    for _ in range(memory[region]):
        same = True
        part = row + at
        for i in range(words):
            if (keys[i] & memory[part + _ONE]) != memory[part]:
                same = False
            part = part + _TWO
        for i in range(ranges):
            if keys[words + i] < memory[part] or memory[part + _ONE] < keys[words + i]:
                same = False
            part = part + _TWO
        if same:
            return row
        row = row + row_words
    return default
