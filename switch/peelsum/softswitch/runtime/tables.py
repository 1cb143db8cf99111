"""A table's entries for the control plane, mirrored into the memory that generated code looks up.

`Table` checks entries, refuses duplicates and keeps the order in which entries are tried.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.layout import ROW_ACTION, ROW_PARAMS, TablePlan, limbs
from peelsum.softswitch.errors import DuplicateEntry, InvalidEntry, NoSuchEntry, TableFull
from peelsum.softswitch.program.model import KeyValue, Program, TableKey
from peelsum.softswitch.program.operations import Action
from peelsum.softswitch.runtime.locks import FairLock
from peelsum.softswitch.runtime.lookups import hash_words

Match: TypeAlias = tuple[KeyValue, ...]

_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A table entry. If several match a packet, the largest `priority` wins, then the longest prefix.

    Only tables with ternary or range keys use priorities. Among equals, the oldest entry wins.
    """

    keys: Match
    action: str
    params: tuple[int, ...]
    priority: int


@dataclass(slots=True, eq=False)
class _Held:
    """An entry with the number of its direct counter, its rank and its row; `slot` is its place if hashed."""

    entry: Entry
    number: int
    order: tuple[int, int, int]
    words: list[int]
    slot: int = 0


class Table:
    """One table of a running switch. Every method holds the switch's lock."""

    def __init__(self, program: Program, plan: TablePlan, memory: NDArray[np.uint64], lock: FairLock) -> None:
        self._plan = plan
        self._memory = memory
        self._lock = lock
        self._spec = plan.table
        self._actions = {program.actions[n].name: program.actions[n] for n in self._spec.actions}
        default = program.actions[self._spec.default_action]
        self._actions.setdefault(default.name, default)
        self._held: dict[tuple[Match, int], _Held] = {}
        self._in_order: list[_Held] = []
        self._slots: dict[int, _Held] = {}
        self._free_numbers: list[int] = []
        self._serial = 0
        self._needs_priority = any(key.kind in ("ternary", "range") for key in self._spec.keys)
        self._counts: NDArray[np.uint64] | None = None
        self._put_default(default, self._spec.default_params)
        const_entries = self._spec.const_entries or ()
        last = max((entry.priority for entry in const_entries), default=0)
        for const in const_entries:
            priority = last + 1 - const.priority if self._needs_priority else 0
            self._insert(Entry(const.keys, program.actions[const.action].name, const.params, priority))

    @property
    def name(self) -> str:
        """The table's full name, as in P4Info."""
        return self._spec.name

    @property
    def keys(self) -> tuple[TableKey, ...]:
        """The match key's fields, in order."""
        return self._spec.keys

    @property
    def size(self) -> int:
        """The number of entries that the table can hold."""
        return self._spec.size

    def __len__(self) -> int:
        return len(self._held)

    # --- control ----------------------------------------------------------------------------------

    def insert(self, keys: Match, action: str, params: Sequence[int] = (), priority: int = 0) -> None:
        """Add an entry. Raises InvalidEntry, DuplicateEntry or TableFull.

        `keys` has one item per key field: an int (exact), (value, mask) (ternary), (value, prefix length)
        (lpm) or (low, high) (range).
        """
        with self._lock:
            self._refuse_if_const()
            self._insert(Entry(tuple(keys), action, tuple(params), priority))

    def modify(self, keys: Match, action: str, params: Sequence[int] = (), priority: int = 0) -> None:
        """Set an entry's action and parameters. Raises InvalidEntry or NoSuchEntry."""
        with self._lock:
            self._refuse_if_const()
            entry = Entry(tuple(keys), action, tuple(params), priority)
            held = self._find(entry.keys, priority)
            code, words = self._action_words(action, entry.params)
            held.entry = entry
            held.words[ROW_ACTION] = code
            held.words[ROW_PARAMS : self._plan.key_offset] = words
            self._rewrite(held)

    def delete(self, keys: Match, priority: int = 0) -> None:
        """Remove an entry. Raises InvalidEntry or NoSuchEntry."""
        with self._lock:
            self._refuse_if_const()
            held = self._find(tuple(keys), priority)
            self._take_out(held)
            del self._held[self._identity(held.entry)], self._in_order[self._position(held)]
            self._free_numbers.append(held.number)

    def entries(self) -> list[Entry]:
        """Return all entries, in the order in which they are tried."""
        with self._lock:
            return [held.entry for held in self._in_order]

    def entry(self, keys: Match, priority: int = 0) -> Entry:
        """Return the entry with these keys. Raises InvalidEntry or NoSuchEntry."""
        with self._lock:
            return self._find(tuple(keys), priority).entry

    @property
    def default(self) -> tuple[str, tuple[int, ...]]:
        """Action and parameters for packets that match no entry."""
        with self._lock:
            return self._default

    def set_default(self, action: str, params: Sequence[int] = ()) -> None:
        """Replace the default action. Raises InvalidEntry, e.g. if the program declares it const."""
        with self._lock:
            if self._spec.const_default:
                raise InvalidEntry(
                    f"table {self.name}: the default action is const; change the program instead"
                )
            self._put_default(self._action(action), tuple(params))

    # --- direct counters --------------------------------------------------------------------------

    def attach_counts(self, counts: NDArray[np.uint64]) -> None:
        """Use `counts[2 i]` (packets) and `counts[2 i + 1]` (bytes) as the counter of entry number i."""
        self._counts = counts

    def read_counter(self, keys: Match, priority: int = 0) -> tuple[int, int]:
        """Return the packets and bytes that hit an entry.

        Raises NoSuchEntry, or InvalidEntry if the table has no direct counter.
        """
        with self._lock:
            cells, at = self._cells(keys, priority)
            return int(cells[at]), int(cells[at + 1])

    def write_counter(self, keys: Match, packets: int, octets: int, priority: int = 0) -> None:
        """Set an entry's direct counter. Raises as `read_counter` does."""
        with self._lock:
            cells, at = self._cells(keys, priority)
            cells[at], cells[at + 1] = packets & _WORD, octets & _WORD

    def _cells(self, keys: Match, priority: int) -> tuple[NDArray[np.uint64], int]:
        if self._counts is None:
            raise InvalidEntry(f"table {self.name}: has no direct counter; declare one in the program")
        return self._counts, 2 * self._find(tuple(keys), priority).number

    # --- rules ------------------------------------------------------------------------------------

    def _refuse_if_const(self) -> None:
        if self._spec.const_entries is not None:
            raise InvalidEntry(f"table {self.name}: its entries are const; change the program instead")
        if not self._spec.keys:
            raise InvalidEntry(
                f"table {self.name}: has no key and so no entries; set its default action instead"
            )

    def _insert(self, entry: Entry) -> None:
        self._check_keys(entry.keys)
        code, params = self._action_words(entry.action, entry.params)
        if self._identity(entry) in self._held:
            raise DuplicateEntry(f"table {self.name}: {_shown(entry.keys)} already exists; modify it instead")
        room = len(self._spec.const_entries) if self._spec.const_entries is not None else self.size
        if len(self._held) >= room:
            raise TableFull(
                f"table {self.name}: all {self.size} entries are taken; delete some or enlarge it"
            )
        number = self._free_numbers.pop() if self._free_numbers else len(self._held)
        held = _Held(
            entry, number, self._order(entry), [code, number, *params, *self._match_words(entry.keys)]
        )
        self._held[self._identity(entry)] = held
        insort(self._in_order, held, key=lambda other: other.order)
        if self._counts is not None:
            self._counts[2 * number : 2 * number + 2] = 0
        self._place(held)

    def _find(self, keys: Match, priority: int) -> _Held:
        self._check_keys(keys)
        held = self._held.get((keys, priority if self._needs_priority else 0))
        if held is None:
            raise NoSuchEntry(f"table {self.name}: no entry {_shown(keys)}; insert it first")
        return held

    def _identity(self, entry: Entry) -> tuple[Match, int]:
        return entry.keys, entry.priority if self._needs_priority else 0

    def _order(self, entry: Entry) -> tuple[int, int, int]:
        self._serial += 1
        prefixes = sum(
            part[1]
            for part, key in zip(entry.keys, self._spec.keys, strict=True)
            if key.kind == "lpm" and isinstance(part, tuple)
        )
        return (
            (-entry.priority, -prefixes, self._serial)
            if self._needs_priority
            else (-prefixes, 0, self._serial)
        )

    def _check_keys(self, keys: Match) -> None:
        if len(keys) != len(self._spec.keys):
            raise InvalidEntry(f"table {self.name}: {len(keys)} keys given; it has {len(self._spec.keys)}")
        for part, key in zip(keys, self._spec.keys, strict=True):
            problem = _problem(part, key)
            if problem:
                raise InvalidEntry(f"table {self.name}: key {key.name}: {problem}")

    def _action(self, name: str) -> Action:
        if name not in self._actions:
            known = ", ".join(sorted(self._actions))
            raise InvalidEntry(f"table {self.name}: no action {name}; it has {known}")
        return self._actions[name]

    def _action_words(self, name: str, params: Sequence[int]) -> tuple[int, list[int]]:
        action = self._action(name)
        if len(params) != len(action.params):
            raise InvalidEntry(f"action {name}: {len(params)} parameters given; it has {len(action.params)}")
        words: list[int] = []
        for param, value in zip(action.params, params, strict=True):
            if not 0 <= value < 1 << param.bits:
                raise InvalidEntry(f"action {name}: {param.name}: {value} does not fit {param.bits} bits")
            words += limbs(value, param.bits)
        return action.number + 1, words + [0] * (self._plan.param_words - len(words))

    # --- memory -----------------------------------------------------------------------------------

    def _put_default(self, action: Action, params: tuple[int, ...]) -> None:
        code, words = self._action_words(action.name, params)
        self._default = (action.name, params)
        row = self._plan.default_row
        self._memory[row : row + self._plan.key_offset] = np.array([code, 0, *words], np.uint64)

    def _match_words(self, keys: Match) -> list[int]:
        values, masks = zip(*map(_value_and_mask, keys, self._spec.keys), strict=True)
        if self._plan.exact:
            return self._plan.key_words(values)
        packed = zip(self._plan.key_words(values), self._plan.key_words(masks), strict=True)
        words = [word for pair in packed for word in pair]
        for number in self._plan.ranges:
            words += [values[number], masks[number]]
        return words

    def _place(self, held: _Held) -> None:
        """Write a new entry to the memory."""
        if self._plan.exact:
            slot = self._home(held)
            while slot in self._slots:
                slot = slot + 1 & self._plan.capacity - 1
            self._put_hashed(held, slot)
            return
        memory, count = self._memory, len(self._in_order)
        row, end, step = self._row(self._position(held)), self._row(count), self._plan.row_words
        memory[row + step : end] = memory[row : end - step]
        memory[row : row + step] = np.array(held.words, np.uint64)
        memory[self._plan.region] = count

    def _rewrite(self, held: _Held) -> None:
        """Write a changed entry's row to the memory."""
        row = self._slot_row(held.slot) if self._plan.exact else self._row(self._position(held))
        self._memory[row : row + self._plan.row_words] = np.array(held.words, np.uint64)

    def _take_out(self, held: _Held) -> None:
        """Remove an entry from the memory."""
        if self._plan.exact:
            self._take_out_hashed(held)
            return
        memory, count = self._memory, len(self._in_order)
        row, end, step = self._row(self._position(held)), self._row(count), self._plan.row_words
        memory[row : end - step] = memory[row + step : end]
        memory[self._plan.region] = count - 1

    def _position(self, held: _Held) -> int:
        return bisect_left(self._in_order, held.order, key=lambda other: other.order)

    def _row(self, position: int) -> int:
        return self._plan.region + 1 + position * self._plan.row_words

    # Open addressing with linear probing: an entry takes the first free slot from its home on.

    def _home(self, held: _Held) -> int:
        return hash_words(held.words[self._plan.key_offset :]) & self._plan.capacity - 1

    def _slot_row(self, slot: int) -> int:
        return self._plan.region + slot * self._plan.row_words

    def _put_hashed(self, held: _Held, slot: int) -> None:
        self._slots[slot], held.slot = held, slot
        self._rewrite(held)

    def _take_out_hashed(self, held: _Held) -> None:
        """Empty an entry's slot. Move later entries up that a probe would now miss, until a free slot."""
        last = self._plan.capacity - 1
        hole = slot = held.slot
        while (other := self._slots.get(slot := slot + 1 & last)) is not None:
            if slot - self._home(other) & last >= slot - hole & last:
                self._put_hashed(other, hole)
                hole = slot
        del self._slots[hole]
        row = self._slot_row(hole)
        self._memory[row : row + self._plan.row_words] = 0


def _problem(part: KeyValue, key: TableKey) -> str | None:
    """Return why a key value does not fit its field; None if it does."""
    top = (1 << key.bits) - 1
    if key.kind == "exact":
        if not isinstance(part, int):
            return f"{part} is not a single value, as an exact match needs"
        return None if 0 <= part <= top else f"{part} does not fit {key.bits} bits"
    if not isinstance(part, tuple) or len(part) != 2:
        return f"{part} is not a pair, as {_PAIRS[key.kind]}"
    value, second = part
    if not 0 <= value <= top:
        return f"{value} does not fit {key.bits} bits"
    if key.kind == "lpm":
        if not 0 <= second <= key.bits:
            return f"prefix length {second} is not in 0..{key.bits}"
        return "has bits beyond its prefix; clear them" if value & top >> second else None
    if not 0 <= second <= top:
        return f"{second} does not fit {key.bits} bits"
    if key.kind == "ternary":
        return "has bits outside its mask; clear them" if value & ~second else None
    return f"the range {value}..{second} is empty; swap its ends" if value > second else None


_PAIRS = {
    "lpm": "(value, prefix length) for lpm",
    "ternary": "(value, mask) for ternary",
    "range": "(low, high) for range",
}


def _value_and_mask(part: KeyValue, key: TableKey) -> tuple[int, int]:
    if isinstance(part, int):
        return part, (1 << key.bits) - 1
    value, second = part
    if key.kind == "lpm":
        return value, (1 << key.bits) - (1 << key.bits - second)
    return value, second


def _shown(keys: Match) -> str:
    return "(" + ", ".join(str(part) for part in keys) + ")"
