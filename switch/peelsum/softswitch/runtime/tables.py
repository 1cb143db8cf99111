"""A table's entries for the control plane, and their rows in the memory that generated code searches.

`Table` checks entries, refuses duplicates, and keeps the entries in the order in which they are tried.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.layout import ROW_ACTION, ROW_PARAMS, TablePlan, limbs
from peelsum.softswitch.errors import (
    DuplicateEntry,
    InvalidEntry,
    NoSuchEntry,
    SoftswitchError,
    TableFull,
)
from peelsum.softswitch.program.model import ActionChoice, KeyValue, Program, TableEntry, TableKey
from peelsum.softswitch.program.operations import Action
from peelsum.softswitch.runtime.action_profiles import ProfileState
from peelsum.softswitch.runtime.meters import MeterCells, Rates
from peelsum.softswitch.runtime.plain import hash_words
from peelsum.softswitch.runtime.state import FairLock

Match: TypeAlias = tuple[KeyValue, ...]

_WORD = (1 << 64) - 1
_RANK = attrgetter("rank")


@dataclass(slots=True, eq=False)
class _StoredEntry:
    """An entry, the number of its direct counter, its rank, and its row; in an exact table also its slot."""

    entry: TableEntry
    number: int
    rank: tuple[int, int, int]
    words: list[int]
    slot: int = 0


class Table:
    """One table of a running switch. Every method holds the switch's lock."""

    def __init__(
        self,
        program: Program,
        plan: TablePlan,
        memory: NDArray[np.uint64],
        counts: NDArray[np.uint64] | None,
        lock: FairLock,
        *,
        profile: ProfileState | None = None,
        meter: MeterCells | None = None,
        hits: NDArray[np.uint64] | None = None,
    ) -> None:
        """counts: packets and bytes of each entry, by its number, in turn; None without direct counter.

        profile: the table's action profile. meter: its direct meter. hits: by an entry's number, whether a
        packet has hit the entry; None without idle time-outs.
        """
        self._profile, self._meter, self._hits = profile, meter, hits
        self._plan, self._memory, self._counts, self._lock = plan, memory, counts, lock
        self._declaration = plan.table
        #: The table's full name, as in P4Info.
        self.name = plan.table.name
        #: The match key's fields, in order.
        self.keys = plan.table.keys
        #: The number of entries that the table can hold.
        self.size = plan.table.size
        self._actions = {program.actions[n].name: program.actions[n] for n in self._declaration.actions}
        default = program.actions[self._declaration.default_action]
        self._actions[default.name] = default  # of a table without default action, not its own NoAction
        self._stored: dict[tuple[Match, int], _StoredEntry] = {}
        self._ranked: list[_StoredEntry] = []
        self._by_number: dict[int, _StoredEntry] = {}
        self._slots: dict[int, _StoredEntry] = {}
        self._free_numbers: list[int] = []
        self._serial = 0
        self._has_priorities = any(key.kind in ("ternary", "range") for key in self.keys)
        self._write_default(default.name, self._declaration.default_params)
        for entry in self._declaration.const_entries or ():
            self._insert(entry)

    def __len__(self) -> int:
        return len(self._stored)

    # --- control ----------------------------------------------------------------------------------

    def insert(
        self,
        keys: Match,
        action: ActionChoice,
        params: Sequence[int] = (),
        priority: int = 0,
        *,
        serial: int | None = None,
    ) -> None:
        """Add an entry. Raises InvalidEntry, DuplicateEntry or TableFull; NoSuchEntry for an unknown member.

        `keys` has one item per key field: an int (exact), (value, mask) (ternary), (value, prefix length)
        (lpm) or (low, high) (range). serial: that of an entry that was deleted and comes back in its place.
        """
        with self._lock:
            self._check_mutable()
            self._insert(TableEntry(tuple(keys), action, tuple(params), priority), serial)

    def serial(self, keys: Match, priority: int = 0) -> int:
        """Return the number by which an entry is tried after older ones. Raises as `entry` does."""
        with self._lock:
            return self._find(tuple(keys), priority).rank[2]

    def modify(
        self, keys: Match, action: ActionChoice, params: Sequence[int] = (), priority: int = 0
    ) -> None:
        """Set an entry's action and parameters. Raises InvalidEntry or NoSuchEntry."""
        with self._lock:
            self._check_mutable()
            entry = TableEntry(tuple(keys), action, tuple(params), priority)
            stored = self._find(entry.keys, priority)
            self._release(stored)  # first, because a full action profile then has room for a new action set
            try:
                chosen = self._entry_words(action, entry.params)
            except SoftswitchError:
                self._set_action(stored, *self._entry_words(stored.entry.action, stored.entry.params))
                raise
            stored.entry = entry
            self._set_action(stored, *chosen)

    def _set_action(self, stored: _StoredEntry, code: int, words: list[int]) -> None:
        stored.words[ROW_ACTION] = code
        stored.words[ROW_PARAMS : self._plan.key_offset] = words
        self._update_row(stored)

    def delete(self, keys: Match, priority: int = 0) -> None:
        """Remove an entry. Raises InvalidEntry or NoSuchEntry."""
        with self._lock:
            self._check_mutable()
            stored = self._find(tuple(keys), priority)
            self._remove_row(stored)
            self._release(stored)
            del self._stored[self._identity(tuple(keys), priority)], self._ranked[self._position(stored)]
            del self._by_number[stored.number]
            self._free_numbers.append(stored.number)

    def entries(self) -> list[TableEntry]:
        """Return all entries, in the order in which they are tried."""
        with self._lock:
            return [stored.entry for stored in self._ranked]

    def entry(self, keys: Match, priority: int = 0) -> TableEntry:
        """Return the entry with these keys. Raises InvalidEntry or NoSuchEntry."""
        with self._lock:
            return self._find(tuple(keys), priority).entry

    def entry_with_number(self, number: int) -> TableEntry:
        """Return the entry whose row in the memory has this number."""
        with self._lock:
            return self._by_number[number].entry

    @property
    def default(self) -> tuple[str, tuple[int, ...]]:
        """The action and its arguments for packets that match no entry."""
        with self._lock:
            return self._default

    def set_default(self, action: str, params: Sequence[int] = ()) -> None:
        """Replace the default action. Raises InvalidEntry, e.g. if the program declares it const."""
        with self._lock:
            if self._profile is not None:
                raise InvalidEntry(
                    f"table {self.name}: has an action profile and so no default action; insert an entry"
                )
            if self._declaration.const_default:
                raise InvalidEntry(
                    f"table {self.name}: the default action is const; change the program instead"
                )
            self._write_default(action, tuple(params))

    # --- direct counters --------------------------------------------------------------------------

    def read_counter(self, keys: Match, priority: int = 0) -> tuple[int, int]:
        """Return the packets and bytes that hit an entry.

        Raises NoSuchEntry, or InvalidEntry if the table has no direct counter.
        """
        with self._lock:
            cells, at = self._counter_cells(keys, priority)
            return int(cells[at]), int(cells[at + 1])

    def write_counter(self, keys: Match, packets: int, octets: int, priority: int = 0) -> None:
        """Set an entry's direct counter. Raises as `read_counter` does."""
        with self._lock:
            cells, at = self._counter_cells(keys, priority)
            cells[at], cells[at + 1] = packets & _WORD, octets & _WORD

    def _counter_cells(self, keys: Match, priority: int) -> tuple[NDArray[np.uint64], int]:
        if self._counts is None:
            raise InvalidEntry(f"table {self.name}: has no direct counter; declare one in the program")
        return self._counts, 2 * self._find(tuple(keys), priority).number

    # --- direct meters and idle time-outs -----------------------------------------------------------

    def read_meter(self, keys: Match, priority: int = 0) -> Rates | None:
        """Return the rates of an entry's direct meter; None if it is not configured, so that all is green.

        Raises NoSuchEntry, or InvalidEntry if the table has no direct meter.
        """
        with self._lock:
            return self._direct_meter().read(self._find(tuple(keys), priority).number)

    def write_meter(self, keys: Match, rates: Rates | None, priority: int = 0) -> None:
        """Configure an entry's direct meter. Raises as `read_meter` does."""
        with self._lock:
            self._direct_meter().write(self._find(tuple(keys), priority).number, rates)

    def _direct_meter(self) -> MeterCells:
        if self._meter is None:
            raise InvalidEntry(f"table {self.name}: has no direct meter; declare one in the program")
        return self._meter

    def take_hits(self) -> list[TableEntry]:
        """Return the entries that packets have hit since the last call, in a table with idle time-outs."""
        if self._hits is None:
            return []
        numbers = np.flatnonzero(self._hits)
        if not len(numbers):
            return []
        self._hits[numbers] = 0
        with self._lock:  # for a short time, though the table may be large
            hit = map(self._by_number.get, numbers.tolist())
            return [stored.entry for stored in hit if stored is not None]

    # --- rules ------------------------------------------------------------------------------------

    def _check_mutable(self) -> None:
        """Raise InvalidEntry if entries are const, or the table has no key."""
        if self._declaration.const_entries is not None:
            raise InvalidEntry(f"table {self.name}: its entries are const; change the program instead")
        if not self.keys:
            raise InvalidEntry(
                f"table {self.name}: has no key and so no entries; set its default action instead"
            )

    def _insert(self, entry: TableEntry, serial: int | None = None) -> None:
        """Add an entry, of the program or of the control plane."""
        self._check_keys(entry.keys)
        identity = self._identity(entry.keys, entry.priority)
        if identity in self._stored:
            keys = ", ".join(map(str, entry.keys))
            raise DuplicateEntry(f"table {self.name}: ({keys}) already exists; modify it instead")
        if len(self._stored) >= self._declaration.capacity:
            raise TableFull(
                f"table {self.name}: all {self.size} entries are taken; delete some or enlarge it"
            )
        code, params = self._entry_words(entry.action, entry.params)
        number = self._free_numbers.pop() if self._free_numbers else len(self._stored)
        # Entries are tried by priority, then by prefix length, then by age.
        if serial is None:
            self._serial = serial = self._serial + 1
        prefix_bits = 0
        for pair, key in zip(entry.keys, self.keys, strict=True):
            if key.kind == "lpm" and isinstance(pair, tuple):
                prefix_bits += pair[1]
        rank = (-entry.priority if self._has_priorities else 0, -prefix_bits, serial)
        words = [code, number, *params, *self._match_words(entry.keys)]
        self._stored[identity] = stored = _StoredEntry(entry, number, rank, words)
        self._by_number[number] = stored
        insort(self._ranked, stored, key=_RANK)
        if self._counts is not None:
            self._counts[2 * number : 2 * number + 2] = 0
        if self._meter is not None:
            self._meter.write(number, None)
        if self._hits is not None:
            self._hits[number] = 0
        self._write_row(stored)

    def _find(self, keys: Match, priority: int) -> _StoredEntry:
        self._check_keys(keys)
        stored = self._stored.get(self._identity(keys, priority))
        if stored is None:
            text = ", ".join(map(str, keys))
            raise NoSuchEntry(f"table {self.name}: no entry ({text}); insert it first")
        return stored

    def _identity(self, keys: Match, priority: int) -> tuple[Match, int]:
        return keys, priority if self._has_priorities else 0

    def _check_keys(self, keys: Match) -> None:
        if len(keys) != len(self.keys):
            raise InvalidEntry(f"table {self.name}: {len(keys)} keys given; it has {len(self.keys)}")
        for key_value, key in zip(keys, self.keys, strict=True):
            key_error = _key_error(key_value, key)
            if key_error:
                raise InvalidEntry(f"table {self.name}: key {key.name}: {key_error}")

    def _entry_words(self, action: ActionChoice, params: Sequence[int]) -> tuple[int, list[int]]:
        """Return the code in an entry's row, and the words of its arguments or of its choice in a profile."""
        if self._profile is None:
            if not isinstance(action, str):
                raise InvalidEntry(f"table {self.name}: has no action profile; give an action")
            return self._action_words(action, params)
        if isinstance(action, str):
            raise InvalidEntry(
                f"table {self.name}: entries have members or groups of {self._profile.name}, not actions"
            )
        return 1, [self._profile.acquire(action)]

    def _release(self, stored: _StoredEntry) -> None:
        """End an entry's use of its action profile."""
        if self._profile is not None and not isinstance(stored.entry.action, str):
            self._profile.release(stored.entry.action, stored.words[ROW_PARAMS])

    def _action_words(self, name: str, params: Sequence[int]) -> tuple[int, list[int]]:
        """Return an action's code in a row, and the words of its arguments. Raises InvalidEntry."""
        if name not in self._actions:
            known = ", ".join(sorted(self._actions))
            raise InvalidEntry(f"table {self.name}: no action {name}; it has {known}")
        words = argument_words(self._actions[name], params)
        return self._actions[name].number + 1, words + [0] * (self._plan.param_words - len(words))

    # --- memory -----------------------------------------------------------------------------------

    def _write_default(self, action: str, params: tuple[int, ...]) -> None:
        code, words = self._action_words(action, params)
        self._default = (action, params)
        row = self._plan.default_row
        self._memory[row : row + self._plan.key_offset] = np.array([code, 0, *words], np.uint64)

    def _match_words(self, keys: Match) -> list[int]:
        """Return the words of a key in a row: values, with masks and ranges if it is not exact."""
        values: list[int] = []
        masks: list[int] = []  # or the ends of ranges
        for value_or_pair, key in zip(keys, self.keys, strict=True):
            all_ones = (1 << key.bits) - 1
            value, second = (value_or_pair, 0) if isinstance(value_or_pair, int) else value_or_pair
            values.append(value)
            match key.kind:
                case "exact":
                    masks.append(all_ones)
                case "lpm":
                    masks.append(all_ones ^ all_ones >> second)
                case _:
                    masks.append(second)
        if self._plan.exact:
            return self._plan.key_words(values)
        packed = zip(self._plan.key_words(values), self._plan.key_words(masks), strict=True)
        words = [word for pair in packed for word in pair]
        for number in self._plan.ranges:
            words += [values[number], masks[number]]
        return words

    def _write_row(self, stored: _StoredEntry) -> None:
        if self._plan.exact:
            slot = self._home_slot(stored)
            while slot in self._slots:
                slot = slot + 1 & self._plan.capacity - 1
            self._write_hashed_row(stored, slot)
            return
        memory, count = self._memory, len(self._ranked)
        row, end, step = self._row(self._position(stored)), self._row(count), self._plan.row_words
        memory[row + step : end] = memory[row : end - step]
        memory[row : row + step] = np.array(stored.words, np.uint64)
        memory[self._plan.region] = count

    def _update_row(self, stored: _StoredEntry) -> None:
        row = self._slot_row(stored.slot) if self._plan.exact else self._row(self._position(stored))
        self._memory[row : row + self._plan.row_words] = np.array(stored.words, np.uint64)

    def _remove_row(self, stored: _StoredEntry) -> None:
        """Remove an entry from the memory; in a hash table, move those that a lookup would no longer find."""
        memory, step = self._memory, self._plan.row_words
        if not self._plan.exact:
            count = len(self._ranked)
            row, end = self._row(self._position(stored)), self._row(count)
            memory[row : end - step] = memory[row + step : end]
            memory[self._plan.region] = count - 1
            return
        slot_mask = self._plan.capacity - 1
        free_slot = slot = stored.slot
        while (other := self._slots.get(slot := slot + 1 & slot_mask)) is not None:
            if slot - self._home_slot(other) & slot_mask >= slot - free_slot & slot_mask:
                self._write_hashed_row(other, free_slot)
                free_slot = slot
        del self._slots[free_slot]
        row = self._slot_row(free_slot)
        memory[row : row + step] = 0

    def _position(self, stored: _StoredEntry) -> int:
        return bisect_left(self._ranked, stored.rank, key=_RANK)

    def _row(self, position: int) -> int:
        return self._plan.region + 1 + position * self._plan.row_words

    # Open addressing with linear probing: an entry takes its home slot, or the first free one after it.

    def _home_slot(self, stored: _StoredEntry) -> int:
        return hash_words(stored.words[self._plan.key_offset :]) & self._plan.capacity - 1

    def _slot_row(self, slot: int) -> int:
        return self._plan.region + slot * self._plan.row_words

    def _write_hashed_row(self, stored: _StoredEntry, slot: int) -> None:
        self._slots[slot], stored.slot = stored, slot
        self._update_row(stored)


def argument_words(action: Action, params: Sequence[int]) -> list[int]:
    """Return the words of an action's arguments. Raises InvalidEntry if they do not fit its parameters."""
    if len(params) != len(action.params):
        raise InvalidEntry(
            f"action {action.name}: {len(params)} parameters given; it has {len(action.params)}"
        )
    words: list[int] = []
    for param, value in zip(action.params, params, strict=True):
        if not 0 <= value < 1 << param.bits:
            raise InvalidEntry(f"action {action.name}: {param.name}: {value} does not fit {param.bits} bits")
        words += limbs(value, param.bits)
    return words


def _key_error(value_or_pair: KeyValue, key: TableKey) -> str | None:
    """Return the error of a key value that does not fit its field; None if it fits."""
    largest = (1 << key.bits) - 1
    if key.kind == "exact":
        if not isinstance(value_or_pair, int):
            return f"{value_or_pair} is not a single value, as an exact match needs"
        return None if 0 <= value_or_pair <= largest else f"{value_or_pair} does not fit {key.bits} bits"
    if not isinstance(value_or_pair, tuple) or len(value_or_pair) != 2:
        return f"{value_or_pair} is not a pair, as {_PAIR_FORMS[key.kind]}"
    value, second = value_or_pair
    if not 0 <= value <= largest:
        return f"{value} does not fit {key.bits} bits"
    if key.kind == "lpm":
        if not 0 <= second <= key.bits:
            return f"prefix length {second}; give 0 to {key.bits}"
        return "has bits beyond its prefix; clear them" if value & largest >> second else None
    if not 0 <= second <= largest:
        return f"{second} does not fit {key.bits} bits"
    if key.kind == "ternary":
        return "has bits outside its mask; clear them" if value & ~second else None
    return f"the range {value}..{second} is empty; swap its ends" if value > second else None


_PAIR_FORMS = {
    "lpm": "(value, prefix length) for lpm",
    "ternary": "(value, mask) for ternary",
    "range": "(low, high) for range",
}
