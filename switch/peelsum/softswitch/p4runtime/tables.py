"""Entities of tables: converts P4Runtime's table entries to the switch's entries and back.

The switch stores the entries. Their metadata, which it does not interpret, and their idle time-outs are
stored here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import starmap
from math import inf
from threading import Lock
from time import time_ns
from typing import Any, Generic, NamedTuple, TypeVar

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.errors import NoSuchEntry
from peelsum.softswitch.p4runtime.info import (
    EntryKey,
    PipelineInfo,
    TableInfo,
    counter_values,
    decode_entry_action,
    decode_entry_key,
    decode_key,
    decode_rates,
    encode_action,
    encode_match,
    encode_rates,
)
from peelsum.softswitch.p4runtime.profiles import ProfileEntries
from peelsum.softswitch.p4runtime.status import (
    Change,
    check_modifies,
    denied,
    invalid,
    unimplemented,
)
from peelsum.softswitch.program.model import TableEntry
from peelsum.softswitch.runtime.meters import Rates

_NO_METADATA = p4r.TableEntry()


_Entry = TypeVar("_Entry", bound=Hashable)


@dataclass(slots=True)
class _Timer:
    """The time-out of an entry (0: none), when it was last hit, and when its time-out began to run."""

    timeout_ns: int
    last_hit: int
    started: int


class IdleTimeouts(Generic[_Entry]):
    """The timers of entries, which start with the entry, and again when it is hit or has expired.

    clock: returns nanoseconds. Any thread may call the methods.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock, self._lock = clock, Lock()
        self._timers: dict[_Entry, _Timer] = {}
        #: When `expired` looks at all timers again: no time-out ends earlier.
        self._next_look: float = 0

    def start(self, entry: _Entry, timeout_ns: int) -> None:
        """Start the timer of an entry that was inserted or modified; a modified one keeps its last hit."""
        with self._lock:
            now = self._clock()
            previous = self._timers.get(entry)
            self._timers[entry] = _Timer(timeout_ns, previous.last_hit if previous else now, now)
            self._next_look = min(self._next_look, now + (timeout_ns or inf))

    def remove(self, entry: _Entry) -> None:
        """Remove the timer of an entry that was deleted."""
        with self._lock:
            self._timers.pop(entry, None)

    def record_hits(self, entries: Iterable[_Entry]) -> None:
        """Record that packets have hit entries now."""
        with self._lock:
            now = self._clock()
            for timer in (self._timers[entry] for entry in entries if entry in self._timers):
                timer.last_hit = timer.started = now

    def since_last_hit(self, entry: _Entry) -> int:
        """Return the nanoseconds since an entry was last hit, or inserted if it never was."""
        with self._lock:
            return self._clock() - self._timers[entry].last_hit if entry in self._timers else 0

    def expired(self) -> list[_Entry]:
        """Return the entries that have expired, and restart their timers."""
        with self._lock:
            now, entries, earliest = self._clock(), [], inf
            if now < self._next_look:
                return []
            for entry, timer in self._timers.items():
                if timer.timeout_ns:
                    if now - timer.started >= timer.timeout_ns:
                        timer.started = now
                        entries.append(entry)
                    earliest = min(earliest, timer.started + timer.timeout_ns)
            # With very many timers, looks take a tenth of the time at most.
            self._next_look = max(earliest, now + 10 * (self._clock() - now))
            return entries


class _Row(NamedTuple):
    """An entry when it was read, and what was requested of it."""

    entry: TableEntry
    metadata: p4r.TableEntry
    counts: tuple[int, int] | None
    rates: Rates | None
    idle_ns: int | None


class TableEntries:
    """The tables of one pipeline. clock: returns nanoseconds, for idle time-outs."""

    def __init__(
        self, info: PipelineInfo, switch: Switch, profiles: ProfileEntries, clock: Callable[[], int]
    ) -> None:
        self._info = info
        self._switch = switch
        self._profiles = profiles
        self._idle: IdleTimeouts[EntryKey] = IdleTimeouts(clock)
        self._idle_tables = {table.name: table for table in info.tables.values() if table.idle_timeout}
        self._actions = {action.name: action for action in info.actions.values()}
        #: Entries of P4Runtime that have only what a controller wrote and the switch does not store.
        self._metadata: dict[EntryKey, p4r.TableEntry] = {}
        self._initial_defaults = {
            table.name: switch.tables[table.name].default for table in info.tables.values()
        }

    # Writing

    def write(self, change: Change, entry: p4r.TableEntry, serial: int | None = None) -> None:
        """Insert, modify or delete an entry. Raises RequestError or SoftswitchError, with no change.

        serial: for an insertion, as for `Table.insert`.
        """
        table = self._info.tables[entry.table_id]
        _check_extras(entry, table)
        if table.is_const:
            raise denied(f"table {table.name} is const: change the program instead")
        if entry.is_default_action:
            self._write_default(change, entry, table)
            return
        entry_key = _, key, priority = decode_entry_key(entry, table)
        state = self._switch.tables[table.name]
        if change == p4r.Update.DELETE:
            state.delete(key, priority)
            self._metadata.pop(entry_key, None)
            self._idle.remove(entry_key)
            return
        action, params = decode_entry_action(entry, table, self._profiles.decode_choice)
        if change == p4r.Update.INSERT:
            state.insert(key, action, params, priority, serial=serial)
        else:
            state.modify(key, action, params, priority)
        self._store_metadata(entry_key, entry)
        if table.idle_timeout:
            self._idle.start(entry_key, entry.idle_timeout_ns)
        if table.direct_meter is not None:
            state.write_meter(key, decode_rates(entry, "meter_config"), priority)
        if entry.HasField("counter_data"):
            state.write_counter(key, *counter_values(entry.counter_data, table.name), priority)

    def serial(self, entry: p4r.TableEntry) -> int:
        """Return the serial number of an entry that exists. Raises RequestError or SoftswitchError."""
        name, key, priority = decode_entry_key(entry, self._info.tables[entry.table_id])
        return self._switch.tables[name].serial(key, priority)

    def _write_default(self, change: Change, entry: p4r.TableEntry, table: TableInfo) -> None:
        """Set a table's default action, or reset it to the program's if the entry has no action."""
        check_modifies(change, f"default action of table {table.name}")
        if entry.match or entry.priority:
            raise invalid(
                f"table {table.name}: a default action has neither match nor priority; leave both out"
            )
        if table.const_default:
            raise denied(f"table {table.name}: the default action is const; change the program")
        state = self._switch.tables[table.name]
        if entry.HasField("action"):
            action, params = decode_entry_action(entry, table, self._profiles.decode_choice)
            state.set_default(action if isinstance(action, str) else "", params)
        else:
            state.set_default(*self._initial_defaults[table.name])
        self._store_metadata((table.name, (), 0), entry)

    def _store_metadata(self, entry_key: EntryKey, entry: p4r.TableEntry) -> None:
        self._metadata.pop(entry_key, None)
        if entry.metadata or entry.controller_metadata or entry.idle_timeout_ns:
            self._metadata[entry_key] = p4r.TableEntry(
                metadata=entry.metadata,
                controller_metadata=entry.controller_metadata,
                idle_timeout_ns=entry.idle_timeout_ns,
            )

    # Direct counters and meters

    def write_counter(self, change: Change, entry: p4r.DirectCounterEntry) -> None:
        """Set the counter of one entry. Raises RequestError or SoftswitchError."""
        name, key, priority = self._written_key(change, entry, "direct_counter")
        if not entry.HasField("data"):
            raise invalid(f"table {name}: counter data is missing; give packets and bytes")
        self._switch.tables[name].write_counter(key, *counter_values(entry.data, name), priority)

    def write_meter(self, change: Change, entry: p4r.DirectMeterEntry) -> None:
        """Configure the meter of one entry; without a config, it colours all green. Raises as above."""
        name, key, priority = self._written_key(change, entry, "direct_meter")
        if entry.HasField("counter_data"):
            raise unimplemented(f"counters of meters of table {name}")
        self._switch.tables[name].write_meter(key, decode_rates(entry, "config"), priority)

    def _written_key(self, change: Change, entry: Any, resource: str) -> EntryKey:
        """Return what identifies the entry whose counter or meter is written. Raises RequestError."""
        check_modifies(change, f"{resource}_entry")
        return decode_entry_key(entry.table_entry, self._table_with(resource, entry.table_entry.table_id))

    def _table_with(self, resource: str, table_id: int) -> TableInfo:
        """Return a table that has a direct counter or meter. Raises RequestError if it has none."""
        table = self._info.tables[table_id]
        if getattr(table, resource) is None:
            name = resource.replace("_", " ")
            raise invalid(f"table {table.name}: has no {name}; declare one in the program")
        return table

    def read_counters(self, selector: p4r.DirectCounterEntry) -> Iterator[p4r.DirectCounterEntry]:
        """Return the direct counters of the entries that `selector` selects now."""
        entries = self._with_values("direct_counter", "counter_data", selector.table_entry)
        return (p4r.DirectCounterEntry(table_entry=entry, data=data) for entry, data in entries)

    def read_meters(self, selector: p4r.DirectMeterEntry) -> Iterator[p4r.DirectMeterEntry]:
        """Return the direct meters of the entries that `selector` selects now."""
        entries = self._with_values("direct_meter", "meter_config", selector.table_entry)
        return (p4r.DirectMeterEntry(table_entry=entry, config=config) for entry, config in entries)

    def _with_values(
        self, resource: str, field: Any, selector: p4r.TableEntry
    ) -> Iterator[tuple[p4r.TableEntry, Any]]:
        """Return the selected entries of tables with a direct counter or meter, and its value in `field`."""
        request = p4r.TableEntry()
        request.CopyFrom(selector)
        getattr(request, field).SetInParent()
        if request.table_id:
            tables = [self._table_with(resource, request.table_id)]
        else:
            tables = [table for table in self._info.tables.values() if getattr(table, resource) is not None]

        def split(entry: p4r.TableEntry) -> tuple[p4r.TableEntry, Any]:
            value = getattr(entry, field) if entry.HasField(field) else None
            entry.ClearField(field)
            return entry, value

        return map(split, self._entries(request, tables))

    # Idle time-outs

    def expired(self) -> p4r.IdleTimeoutNotification | None:
        """Return a notification of the entries that have expired; None if there are none."""
        self._record_hits()
        notification = p4r.IdleTimeoutNotification(timestamp=time_ns())
        for name, key, priority in self._idle.expired():
            table = self._idle_tables[name]
            matches = map(encode_match, key, table.fields)
            entry = notification.table_entry.add(
                table_id=table.id, match=[match for match in matches if match is not None], priority=priority
            )
            entry.MergeFrom(self._metadata.get((name, key, priority), _NO_METADATA))
        return notification if notification.table_entry else None

    def _record_hits(self) -> None:
        """Restart the timers of entries that packets have hit since the last call."""
        for name in self._idle_tables:
            entries = self._switch.tables[name].take_hits()
            self._idle.record_hits((name, entry.keys, entry.priority) for entry in entries)

    # Reading

    def read(self, selector: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """Return the entries or default actions that `selector` selects now; table_id 0 selects all."""
        if selector.match and not selector.table_id:
            raise invalid("match: has no meaning without table_id; give both")
        known = self._info.tables
        tables = [known[selector.table_id]] if selector.table_id else list(known.values())
        if selector.HasField("time_since_last_hit"):
            if selector.is_default_action or (selector.table_id and not tables[0].idle_timeout):
                raise invalid("time_since_last_hit: there are no idle time-outs for this; leave it out")
            self._record_hits()
        if selector.is_default_action:
            return iter([self._default(table) for table in tables])
        return self._entries(selector, tables)

    def _entries(self, selector: p4r.TableEntry, tables: Iterable[TableInfo]) -> Iterator[p4r.TableEntry]:
        """Return the entries of some tables that a selector selects, encoded when consumed."""
        rows = [(table, row) for table in tables for row in self._rows(selector, table)]

        def is_selected(entry: p4r.TableEntry) -> bool:
            """Return whether it has the selector's priority, action and metadata, as far as they are set."""
            requested_action, action = selector.action.action, entry.action.action
            return (
                selector.priority in (0, entry.priority)
                and requested_action.action_id in (0, action.action_id)
                and selector.metadata in (b"", entry.metadata)
                and selector.controller_metadata in (0, entry.controller_metadata)
            )

        return filter(is_selected, starmap(self._entry, rows))

    def _rows(self, selector: p4r.TableEntry, table: TableInfo) -> list[_Row]:
        """Return the rows of a table that have the selector's key, or all if it has none."""
        state = self._switch.tables[table.name]
        counts = selector.HasField("counter_data") and table.direct_counter is not None
        if not selector.match:
            entries = state.entries()
        else:
            key = decode_key(selector.match, table)
            try:
                entries = [state.entry(key, selector.priority)]
            except NoSuchEntry:
                entries = []
        rates = selector.HasField("meter_config") and table.direct_meter is not None
        idle = selector.HasField("time_since_last_hit") and table.idle_timeout
        rows = []
        for entry in entries:
            key, priority = entry.keys, entry.priority
            entry_key = (table.name, key, priority)
            rows.append(
                _Row(
                    entry,
                    self._metadata.get(entry_key, _NO_METADATA),
                    state.read_counter(key, priority) if counts else None,
                    state.read_meter(key, priority) if rates else None,
                    self._idle.since_last_hit(entry_key) if idle else None,
                )
            )
        return rows

    def _entry(self, table: TableInfo, row: _Row) -> p4r.TableEntry:
        stored = row.entry
        matches = map(encode_match, stored.keys, table.fields)
        if isinstance(stored.action, str):
            action = p4r.TableAction(action=encode_action(self._actions[stored.action], stored.params))
        else:
            action = self._profiles.encode_choice(stored.action)
        entry = p4r.TableEntry(
            table_id=table.id,
            match=[match for match in matches if match is not None],
            priority=stored.priority if table.needs_priority else 0,
            action=action,
            is_const=table.is_const,
            meter_config=encode_rates(row.rates),
        )
        entry.MergeFrom(row.metadata)
        if row.counts is not None:
            entry.counter_data.packet_count, entry.counter_data.byte_count = row.counts
        if row.idle_ns is not None:
            entry.time_since_last_hit.elapsed_ns = row.idle_ns
        return entry

    def _default(self, table: TableInfo) -> p4r.TableEntry:
        action, params = self._switch.tables[table.name].default
        entry = p4r.TableEntry(
            table_id=table.id,
            is_default_action=True,
            # A table that declares no default action has one that P4Info does not know.
            action=p4r.TableAction(action=encode_action(self._actions[action], params))
            if action in self._actions
            else None,
            is_const=table.const_default,
        )
        entry.MergeFrom(self._metadata.get((table.name, (), 0), _NO_METADATA))
        return entry


def _check_extras(entry: p4r.TableEntry, table: TableInfo) -> None:
    """Raise RequestError for meters, counters and time-outs that the table does not have."""
    if entry.HasField("meter_config") or entry.HasField("meter_counter_data"):
        if table.direct_meter is None or entry.is_default_action:
            raise invalid(f"table {table.name}: has no direct meter for meter_config; leave it out")
        if entry.HasField("meter_counter_data"):
            raise unimplemented(f"counters of meters of table {table.name}")
        rates = decode_rates(entry, "meter_config")
        if rates is not None:
            rates.check(table.direct_meter)
    if entry.HasField("counter_data"):
        if table.direct_counter is None or entry.is_default_action:
            raise invalid(f"table {table.name}: has no direct counter for counter_data; leave it out")
        counter_values(entry.counter_data, table.name)
    # The next two messages are BMv2's, because a public test of BMv2 compares them.
    if entry.HasField("time_since_last_hit"):
        raise invalid("has_time_since_last_hit must not be set in WriteRequest")
    if entry.idle_timeout_ns and (not table.idle_timeout or entry.is_default_action):
        raise invalid("idle_timeout_ns must be set to 0 for tables which do not support idle timeout")
    if entry.idle_timeout_ns < 0:
        raise invalid(f"table {table.name}: idle_timeout_ns {entry.idle_timeout_ns} must not be negative")
