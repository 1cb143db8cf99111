"""Table lookups over the table memory, written once for plain Python and for Numba.

`number` makes the constants of either (int, or unsigned 64-bit: Numba turns a mix of the two into floats).
Each lookup returns where the matching row starts, or `default`. Layout of the memory: `layout.TablePlan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_WORD = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
_SHIFT = 29
#: Keys lie at the upper end of their word: without folding it, a product's lower bits would all be zero.
_FOLD = 32


def hash_words(words: Sequence[int]) -> int:
    """The hash of packed key words, as the lookups below compute it."""
    mixed = 0
    for word in words:
        mixed ^= word
        mixed = (mixed ^ mixed >> _FOLD) * _FACTOR & _WORD
        mixed ^= mixed >> _SHIFT
    return mixed


def make_lookups(number: Callable[[int], Any]) -> tuple[Callable[..., Any], ...]:
    """(find_exact1, find_exact, find_first1, find_first)."""
    zero, one, two = map(number, (0, 1, 2))
    fold, factor, shift, whole = map(number, (_FOLD, _FACTOR, _SHIFT, _WORD))

    def find_exact1(
        memory: Any, region: Any, last: Any, row_words: Any, at: Any, key: Any, default: Any
    ) -> Any:
        mixed = ((key ^ (key >> fold)) * factor) & whole
        slot = (mixed ^ (mixed >> shift)) & last
        while True:
            row = region + slot * row_words
            if memory[row] == zero:
                return default
            if memory[row + at] == key:
                return row
            slot = (slot + one) & last

    def find_exact(
        memory: Any, region: Any, last: Any, row_words: Any, at: Any, keys: Any, count: Any, default: Any
    ) -> Any:
        mixed = zero
        for i in range(count):
            mixed = mixed ^ keys[i]
            mixed = ((mixed ^ (mixed >> fold)) * factor) & whole
            mixed = mixed ^ (mixed >> shift)
        slot = mixed & last
        while True:
            row = region + slot * row_words
            if memory[row] == zero:
                return default
            same = True
            for i in range(count):
                if memory[row + at + i] != keys[i]:
                    same = False
            if same:
                return row
            slot = (slot + one) & last

    def find_first1(memory: Any, region: Any, row_words: Any, at: Any, key: Any, default: Any) -> Any:
        row = region + one
        for _ in range(memory[region]):
            if (key & memory[row + at + one]) == memory[row + at]:
                return row
            row = row + row_words
        return default

    def find_first(
        memory: Any, region: Any, row_words: Any, at: Any, keys: Any, words: Any, ranges: Any, default: Any
    ) -> Any:
        row = region + one
        for _ in range(memory[region]):
            same = True
            part = row + at
            for i in range(words):
                if (keys[i] & memory[part + one]) != memory[part]:
                    same = False
                part = part + two
            for i in range(ranges):
                if keys[words + i] < memory[part] or memory[part + one] < keys[words + i]:
                    same = False
                part = part + two
            if same:
                return row
            row = row + row_words
        return default

    return find_exact1, find_exact, find_first1, find_first
