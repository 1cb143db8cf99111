"""Table lookups in the table memory, whose layout `compiler.layout.TablePlan` describes.

They run in plain Python and, as `native` compiles them, in Numba. Each returns the index of the matching
row's first word, or `default` if no row matches.
"""

from __future__ import annotations

from collections.abc import Sequence

_ZERO, _ONE, _TWO = 0, 1, 2
_WORD = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
_SHIFT = 29
#: Keys shorter than a word fill its top bits, so without this shift the product's low bits would be zero.
_FOLD = 32


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
