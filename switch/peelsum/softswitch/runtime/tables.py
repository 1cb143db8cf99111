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
from peelsum.softswitch.runtime.plain import HASH_FACTOR, HASH_FOLD, HASH_SHIFT
from peelsum.softswitch.runtime.state import FairLock

Match: TypeAlias = tuple[KeyValue, ...]

_WORD = (1 << 64) - 1
_RANK, _ENTRY = attrgetter("rank"), attrgetter("entry")


@dataclass(slots=True, eq=False)
class _StoredEntry:
    """An entry, the number of its direct counter, its rank, and its row.

    In an exact table also its slot, and its home slot, which is the hash of its key.
    """

    entry: TableEntry
    number: int
    rank: tuple[int, int, int]
    words: list[int]
    home_slot: int = 0
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
        #: By `_identity`.
        self._stored: dict[tuple[int, ...], _StoredEntry] = {}
        self._ranked: list[_StoredEntry] = []
        self._by_number: dict[int, _StoredEntry] = {}
        self._slots: dict[int, _StoredEntry] = {}
        self._free_numbers: list[int] = []
        self._serial = 0
        self._has_priorities = any(key.kind in ("ternary", "range") for key in self.keys)
        self._write_default(default.name, self._declaration.default_params)
        self._capacity = self._declaration.capacity
        #: Why entries cannot be changed; empty if they can.
        self._unchangeable = ""
        for entry in self._declaration.const_entries or ():
            self.insert(entry.keys, entry.action, entry.params, entry.priority)
        if self._declaration.const_entries is not None:
            self._unchangeable = "its entries are const; change the program instead"
        elif not self.keys:
            self._unchangeable = "has no key and so no entries; set its default action instead"

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
            identity = self._identity(keys, priority, to_change=True)
            if identity in self._stored:
                text = ", ".join(map(str, keys))
                raise DuplicateEntry(f"table {self.name}: ({text}) already exists; modify it instead")
            if len(self._stored) >= self._capacity:
                raise TableFull(
                    f"table {self.name}: all {self.size} entries are taken; delete some or enlarge it"
                )
            code, param_words = self._action_words(action, params)
            number = self._free_numbers.pop() if self._free_numbers else len(self._stored)
            # Entries are tried by priority, then by prefix length, then by age.
            if serial is None:
                self._serial = serial = self._serial + 1
            prefix_bits = 0
            for pair, key in zip(keys, self.keys, strict=True):
                if key.kind == "lpm" and isinstance(pair, tuple):
                    prefix_bits += pair[1]
            *key_words, rank_priority = identity
            entry = TableEntry(tuple(keys), action, tuple(params), priority)
            words, rank = [code, number, *param_words, *key_words], (-rank_priority, -prefix_bits, serial)
            self._stored[identity] = stored = _StoredEntry(entry, number, rank, words)
            self._by_number[number] = stored
            insort(self._ranked, stored, key=_RANK)
            if self._counts is not None:
                self._counts[2 * number : 2 * number + 2] = 0
            if self._meter is not None:
                self._meter.write(number, None)
            if self._hits is not None:
                self._hits[number] = 0
            self._add_row(stored)

    def serial(self, keys: Match, priority: int = 0) -> int:
        """Return the number by which an entry is tried after older ones. Raises as `entry` does."""
        with self._lock:
            return self._stored[self._existing_identity(keys, priority)].rank[2]

    def modify(
        self, keys: Match, action: ActionChoice, params: Sequence[int] = (), priority: int = 0
    ) -> None:
        """Set an entry's action and parameters. Raises InvalidEntry or NoSuchEntry."""
        with self._lock:
            stored = self._stored[self._existing_identity(keys, priority, to_change=True)]
            self._release(stored)  # first, because a full action profile then has room for a new action set
            try:
                chosen = self._action_words(action, params)
            except SoftswitchError:
                self._set_action(stored, *self._action_words(stored.entry.action, stored.entry.params))
                raise
            stored.entry = TableEntry(tuple(keys), action, tuple(params), priority)
            self._set_action(stored, *chosen)

    def _set_action(self, stored: _StoredEntry, code: int, words: list[int]) -> None:
        stored.words[ROW_ACTION] = code
        stored.words[ROW_PARAMS : self._plan.key_offset] = words
        self._write_row(stored)

    def delete(self, keys: Match, priority: int = 0) -> None:
        """Remove an entry. Raises InvalidEntry or NoSuchEntry."""
        with self._lock:
            identity = self._existing_identity(keys, priority, to_change=True)
            stored = self._stored[identity]
            self._remove_row(stored)
            self._release(stored)
            del self._stored[identity], self._ranked[bisect_left(self._ranked, stored.rank, key=_RANK)]
            del self._by_number[stored.number]
            self._free_numbers.append(stored.number)

    def entries(self) -> list[TableEntry]:
        """Return all entries, in the order in which they are tried."""
        with self._lock:
            return list(map(_ENTRY, self._ranked))

    def entry(self, keys: Match, priority: int = 0) -> TableEntry:
        """Return the entry with these keys. Raises InvalidEntry or NoSuchEntry."""
        with self._lock:
            return self._stored[self._existing_identity(keys, priority)].entry

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
        return self._counts, 2 * self._stored[self._existing_identity(keys, priority)].number

    # --- direct meters and idle time-outs -----------------------------------------------------------

    def read_meter(self, keys: Match, priority: int = 0) -> Rates | None:
        """Return the rates of an entry's direct meter; None if it is not configured, so that all is green.

        Raises NoSuchEntry, or InvalidEntry if the table has no direct meter.
        """
        with self._lock:
            return self._direct_meter().read(self._stored[self._existing_identity(keys, priority)].number)

    def write_meter(self, keys: Match, rates: Rates | None, priority: int = 0) -> None:
        """Configure an entry's direct meter. Raises as `read_meter` does."""
        with self._lock:
            self._direct_meter().write(self._stored[self._existing_identity(keys, priority)].number, rates)

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

    def _identity(self, keys: Match, priority: int, *, to_change: bool = False) -> tuple[int, ...]:
        """Return what identifies an entry: the words of its key in a row, and its priority, 0 without any.

        to_change: whether the entry is to be changed. Raises InvalidEntry for keys that do not fit, or if
        entries cannot be changed.
        """
        if to_change and self._unchangeable:
            raise InvalidEntry(f"table {self.name}: {self._unchangeable}")
        if len(keys) != len(self.keys):
            raise InvalidEntry(f"table {self.name}: {len(keys)} keys given; it has {len(self.keys)}")
        values: list[int] = []
        masks: list[int] = []  # or the ends of ranges
        for value_or_pair, key in zip(keys, self.keys, strict=True):
            if key_error := _key_error(value_or_pair, key):
                raise InvalidEntry(f"table {self.name}: key {key.name}: {key_error}")
            all_ones = (1 << key.bits) - 1
            value, mask = (value_or_pair, all_ones) if isinstance(value_or_pair, int) else value_or_pair
            values.append(value)
            masks.append(all_ones ^ all_ones >> mask if key.kind == "lpm" else mask)
        words: list[int] = []
        for parts in self._plan.words:  # as generated code packs a packet's
            value = mask = 0
            for part in parts:
                value |= (values[part.key] >> part.bits_below & _WORD) << part.shift
                mask |= (masks[part.key] >> part.bits_below & _WORD) << part.shift
            words += [value] if self._plan.exact else [value, mask]
        for number in self._plan.ranges:
            for shift in range(64 * (self._plan.range_limbs - 1), -1, -64):
                words += [values[number] >> shift & _WORD, masks[number] >> shift & _WORD]
        return *words, priority if self._has_priorities else 0

    def _existing_identity(self, keys: Match, priority: int, *, to_change: bool = False) -> tuple[int, ...]:
        """Return what identifies an entry that there is. Raises NoSuchEntry, or as `_identity` does."""
        identity = self._identity(keys, priority, to_change=to_change)
        if identity not in self._stored:
            text = ", ".join(map(str, keys))
            raise NoSuchEntry(f"table {self.name}: no entry ({text}); insert it first")
        return identity

    def _action_words(
        self, action: ActionChoice, params: Sequence[int], *, is_default: bool = False
    ) -> tuple[int, list[int]]:
        """Return the code in a row, and the words of the action's arguments or of the choice in a profile."""
        if self._profile is not None and not is_default:
            if isinstance(action, str):
                raise InvalidEntry(
                    f"table {self.name}: entries have members or groups of {self._profile.name}, not actions"
                )
            return 1, [self._profile.acquire(action)]
        if not isinstance(action, str):
            raise InvalidEntry(f"table {self.name}: has no action profile; give an action")
        if action not in self._actions:
            known = ", ".join(sorted(self._actions))
            raise InvalidEntry(f"table {self.name}: no action {action}; it has {known}")
        words = argument_words(self._actions[action], params)
        unused = self._plan.key_offset - ROW_PARAMS - len(words)
        return self._actions[action].number + 1, words + [0] * unused

    def _release(self, stored: _StoredEntry) -> None:
        """End an entry's use of its action profile."""
        if self._profile is not None and not isinstance(stored.entry.action, str):
            self._profile.release(stored.entry.action, stored.words[ROW_PARAMS])

    # --- memory -----------------------------------------------------------------------------------

    def _write_default(self, action: str, params: tuple[int, ...]) -> None:
        code, words = self._action_words(action, params, is_default=True)
        self._default = (action, params)
        row = self._plan.default_row
        self._memory[row : row + self._plan.key_offset] = np.array([code, 0, *words], np.uint64)

    def _add_row(self, stored: _StoredEntry) -> None:
        """Write the row of a new entry to the memory.

        An exact table is searched by open addressing with linear probing: an entry takes its home slot, or
        the first free one after it. In another table, the rows behind the new one move.
        """
        if self._plan.exact:
            slot_mask = self._plan.capacity - 1
            slot = stored.home_slot = hash_words(stored.words[self._plan.key_offset :]) & slot_mask
            while slot in self._slots:
                slot = slot + 1 & slot_mask
            self._slots[slot], stored.slot = stored, slot
        else:
            memory, count, step = self._memory, len(self._ranked), self._plan.row_words
            row, end = self._row(stored), self._plan.region + 1 + count * step
            memory[row + step : end] = memory[row : end - step]
            memory[self._plan.region] = count
        self._write_row(stored)

    def _write_row(self, stored: _StoredEntry) -> None:
        row = self._row(stored)
        self._memory[row : row + self._plan.row_words] = np.array(stored.words, np.uint64)

    def _remove_row(self, stored: _StoredEntry) -> None:
        """Remove an entry from the memory; in a hash table, move those that a lookup would no longer find."""
        memory, step, row = self._memory, self._plan.row_words, self._row(stored)
        if not self._plan.exact:
            count = len(self._ranked)
            end = self._plan.region + 1 + count * step
            memory[row : end - step] = memory[row + step : end]
            memory[self._plan.region] = count - 1
            return
        slot_mask = self._plan.capacity - 1
        free_slot = slot = stored.slot
        while (other := self._slots.get(slot := slot + 1 & slot_mask)) is not None:
            if slot - other.home_slot & slot_mask >= slot - free_slot & slot_mask:
                self._slots[free_slot], other.slot = other, free_slot
                self._write_row(other)
                free_slot = slot
        del self._slots[free_slot]
        row = self._plan.region + free_slot * step
        memory[row : row + step] = 0

    def _row(self, stored: _StoredEntry) -> int:
        """Return the index of an entry's row in the memory."""
        if self._plan.exact:
            return self._plan.region + stored.slot * self._plan.row_words
        position = bisect_left(self._ranked, stored.rank, key=_RANK)
        return self._plan.region + 1 + position * self._plan.row_words


def hash_words(words: Sequence[int]) -> int:
    """Return the hash of a packed key, as `find_exact` and `find_exact1` of generated code compute it."""
    hashed = 0
    for word in words:
        hashed ^= word
        hashed = (hashed ^ hashed >> HASH_FOLD) * HASH_FACTOR & _WORD
        hashed ^= hashed >> HASH_SHIFT
    return hashed


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
        words += [value] if param.bits <= 64 else limbs(value, param.bits)
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
