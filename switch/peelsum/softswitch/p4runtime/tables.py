"""Entities of tables: converts P4Runtime's table entries to the switch's entries and back.

The switch stores the entries. Only their metadata, which it does not interpret, is stored here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.errors import NoSuchEntry
from peelsum.softswitch.p4runtime.info import (
    PipelineInfo,
    TableInfo,
    counter_values,
    decode_match,
    encode_match,
    to_bytes,
    to_int,
    wildcard,
)
from peelsum.softswitch.p4runtime.status import denied, invalid, unimplemented
from peelsum.softswitch.program.model import KeyValue, TableEntry
from peelsum.softswitch.runtime.tables import Match

#: What identifies an entry: table, key, priority.
_EntryKey: TypeAlias = tuple[str, Match, int]


_NO_METADATA = p4r.TableEntry()
#: An entry when it was read, its metadata, and its packets and bytes if they were requested.
_Row: TypeAlias = tuple[TableEntry, p4r.TableEntry, tuple[int, int] | None]


class TableEntries:
    """The tables of one pipeline."""

    def __init__(self, info: PipelineInfo, switch: Switch) -> None:
        self._info = info
        self._switch = switch
        self._actions = {action.name: action for action in info.actions.values()}
        #: Entries of P4Runtime that have only the metadata.
        self._metadata: dict[_EntryKey, p4r.TableEntry] = {}
        self._initial_defaults = {
            table.name: switch.tables[table.name].default for table in info.tables.values()
        }

    # Writing

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.TableEntry) -> None:
        """Insert, modify or delete an entry. Raises RequestError or SoftswitchError, with no change."""
        table = self._table(entry.table_id)
        _check_extras(entry, table)
        if table.is_const:
            raise denied(f"table {table.name} is const: change the program instead")
        if entry.is_default_action:
            self._write_default(kind, entry, table)
            return
        entry_key = self._entry_key(entry, table)
        _, key, priority = entry_key
        state = self._switch.tables[table.name]
        if kind == p4r.Update.DELETE:
            state.delete(key, priority)
            self._metadata.pop(entry_key, None)
            return
        action, params = self._action(entry, table, table.entry_actions, "an entry")
        write_entry = state.insert if kind == p4r.Update.INSERT else state.modify
        write_entry(key, action, params, priority)
        self._store_metadata(entry_key, entry)
        if entry.HasField("counter_data"):
            state.write_counter(key, *counter_values(entry.counter_data, table.name), priority)

    def _write_default(
        self, kind: p4r.Update.Type.ValueType, entry: p4r.TableEntry, table: TableInfo
    ) -> None:
        """Set a table's default action, or reset it to the program's if the entry has no action."""
        if kind != p4r.Update.MODIFY:
            raise invalid(f"table {table.name}: a default action cannot be inserted or deleted; modify it")
        if entry.match or entry.priority:
            raise invalid(
                f"table {table.name}: a default action has neither match nor priority; leave both out"
            )
        if table.const_default:
            raise denied(f"table {table.name}: the default action is const; change the program")
        state = self._switch.tables[table.name]
        if entry.HasField("action"):
            state.set_default(*self._action(entry, table, table.default_actions, "the default"))
        else:
            state.set_default(*self._initial_defaults[table.name])
        self._store_metadata((table.name, (), 0), entry)

    def _store_metadata(self, entry_key: _EntryKey, entry: p4r.TableEntry) -> None:
        """Store the metadata that a controller wrote with an entry, if any."""
        self._metadata.pop(entry_key, None)
        if entry.metadata or entry.controller_metadata:
            self._metadata[entry_key] = p4r.TableEntry(
                metadata=entry.metadata, controller_metadata=entry.controller_metadata
            )

    def _table(self, table_id: int) -> TableInfo:
        table = self._info.tables.get(table_id)
        if table is None:
            raise invalid(f"table_id: no table {table_id:#x} in the P4Info; use one of its ids")
        return table

    def _entry_key(self, entry: p4r.TableEntry, table: TableInfo) -> _EntryKey:
        """Return what identifies an entry. Raises RequestError for a wrong priority or match."""
        if table.needs_priority and entry.priority <= 0:
            raise invalid(
                f"table {table.name}: priority {entry.priority} must be positive; larger goes first"
            )
        if not table.needs_priority and entry.priority:
            raise invalid(f"table {table.name}: entries cannot overlap, so priority must be 0")
        return table.name, decode_key(entry.match, table), entry.priority

    def _action(
        self, entry: p4r.TableEntry, table: TableInfo, allowed: frozenset[int], where: str
    ) -> tuple[str, tuple[int, ...]]:
        """Return the action in an entry and its arguments. Raises RequestError if it is not `allowed`."""
        kind = entry.action.WhichOneof("type")
        if kind != "action":
            raise invalid(
                f"table {table.name}: the action is {kind or 'missing'}; it must be a direct action"
            )
        action = self._info.actions.get(entry.action.action.action_id)
        if action is None or action.id not in table.entry_actions | table.default_actions:
            raise invalid(
                f"table {table.name}: has no action {entry.action.action.action_id:#x}; use one of its own"
            )
        if action.id not in allowed:
            raise denied(f"table {table.name}: {action.name} cannot be {where}'s action")
        params = entry.action.action.params
        values_by_id = {param.param_id: param.value for param in params}
        if len(values_by_id) != len(params):
            raise invalid(f"action {action.name}: a parameter is given twice; give each once")
        values: list[int] = []
        for param in action.params:
            if param.id not in values_by_id:
                raise invalid(f"action {action.name}: parameter {param.name} is missing; give its value")
            values.append(to_int(values_by_id.pop(param.id), param.bits, f"{action.name}.{param.name}"))
        if values_by_id:
            raise invalid(f"action {action.name}: has no parameter {min(values_by_id)}; use the P4Info's ids")
        return action.name, tuple(values)

    # Direct counters

    def write_counter(self, kind: p4r.Update.Type.ValueType, entry: p4r.DirectCounterEntry) -> None:
        """Set the counter of one entry. Raises RequestError or SoftswitchError."""
        if kind != p4r.Update.MODIFY:
            raise invalid("direct_counter_entry: exists as long as its table entry; modify it")
        table = self._counted_table(entry.table_entry.table_id)
        if not entry.HasField("data"):
            raise invalid(f"table {table.name}: counter data is missing; give packets and bytes")
        _, key, priority = self._entry_key(entry.table_entry, table)
        values = counter_values(entry.data, table.name)
        self._switch.tables[table.name].write_counter(key, *values, priority)

    def read_counters(self, selector: p4r.DirectCounterEntry) -> Iterator[p4r.DirectCounterEntry]:
        """Return the direct counters of the entries that `selector` selects now."""
        table_selector = p4r.TableEntry(counter_data=p4r.CounterData())
        table_selector.MergeFrom(selector.table_entry)
        if table_selector.table_id:
            tables = [self._counted_table(table_selector.table_id)]
        else:
            tables = [table for table in self._info.tables.values() if table.direct_counter is not None]

        def counter_of(entry: p4r.TableEntry) -> p4r.DirectCounterEntry:
            counter = p4r.DirectCounterEntry(table_entry=entry, data=entry.counter_data)
            counter.table_entry.ClearField("counter_data")
            return counter

        return map(counter_of, self._entries(table_selector, tables))

    def _counted_table(self, table_id: int) -> TableInfo:
        table = self._table(table_id)
        if table.direct_counter is None:
            raise invalid(f"table {table.name}: has no direct counter; declare one in the program")
        return table

    # Reading

    def read(self, selector: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """Return the entries or default actions that `selector` selects now; table_id 0 selects all."""
        if selector.HasField("time_since_last_hit"):
            raise unimplemented("time_since_last_hit")
        if selector.match and not selector.table_id:
            raise invalid("match: has no meaning without table_id; give both")
        tables = [self._table(selector.table_id)] if selector.table_id else self._info.tables.values()
        if selector.is_default_action:
            return iter([self._default(table) for table in tables])
        return self._entries(selector, tables)

    def _entries(self, selector: p4r.TableEntry, tables: Iterable[TableInfo]) -> Iterator[p4r.TableEntry]:
        """Return the entries of some tables that a selector selects, encoded when consumed."""
        rows_of_tables = [(table, self._rows(selector, table)) for table in tables]
        entries = (self._entry(table, row) for table, rows in rows_of_tables for row in rows)

        def is_selected(entry: p4r.TableEntry) -> bool:
            """Return whether it has the selector's priority, action and metadata, as far as they are set."""
            requested_action, action = selector.action.action, entry.action.action
            return (
                selector.priority in (0, entry.priority)
                and requested_action.action_id in (0, action.action_id)
                and selector.metadata in (b"", entry.metadata)
                and selector.controller_metadata in (0, entry.controller_metadata)
            )

        return filter(is_selected, entries)

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
        return [
            (
                entry,
                self._metadata.get((table.name, entry.keys, entry.priority), _NO_METADATA),
                state.read_counter(entry.keys, entry.priority) if counts else None,
            )
            for entry in entries
        ]

    def _entry(self, table: TableInfo, row: _Row) -> p4r.TableEntry:
        """Return a row as P4Runtime's entry."""
        stored, metadata, counts = row
        matches = map(encode_match, stored.keys, table.fields)
        entry = p4r.TableEntry(
            table_id=table.id,
            match=[match for match in matches if match is not None],
            priority=stored.priority if table.needs_priority else 0,
            action=self._encode_action(stored.action, stored.params),
            is_const=table.is_const,
        )
        entry.MergeFrom(metadata)
        if counts is not None:
            entry.counter_data.packet_count, entry.counter_data.byte_count = counts
        return entry

    def _default(self, table: TableInfo) -> p4r.TableEntry:
        """Return a table's default action as P4Runtime's entry."""
        action, params = self._switch.tables[table.name].default
        entry = p4r.TableEntry(
            table_id=table.id,
            is_default_action=True,
            # A table that declares no default action has one that P4Info does not know.
            action=self._encode_action(action, params) if action in self._actions else None,
            is_const=table.const_default,
        )
        entry.MergeFrom(self._metadata.get((table.name, (), 0), _NO_METADATA))
        return entry

    def _encode_action(self, name: str, params: Sequence[int]) -> p4r.TableAction:
        action = self._actions[name]
        values = [
            p4r.Action.Param(param_id=param.id, value=to_bytes(value))
            for param, value in zip(action.params, params, strict=True)
        ]
        return p4r.TableAction(action=p4r.Action(action_id=action.id, params=values))


def decode_key(matches: Sequence[p4r.FieldMatch], table: TableInfo) -> Match:
    """Return the switch's key for match fields; omitted ones are wildcards. Raises RequestError."""
    matches_by_id: dict[int, p4r.FieldMatch] = {}
    for match in matches:
        if match.field_id in matches_by_id:
            raise invalid(f"table {table.name}: match field {match.field_id} is given twice; give it once")
        matches_by_id[match.field_id] = match
    key: list[KeyValue] = []
    for field in table.fields:
        match_field = matches_by_id.pop(field.id, None)
        key_part = wildcard(field) if match_field is None else decode_match(match_field, field)
        if key_part is None:
            raise invalid(f"table {table.name}: exact field {field.name} is missing; give its value")
        key.append(key_part)
    if matches_by_id:
        raise invalid(f"table {table.name}: has no match field {min(matches_by_id)}; use the P4Info's ids")
    return tuple(key)


def _check_extras(entry: p4r.TableEntry, table: TableInfo) -> None:
    """Raise RequestError for meters, counters and time-outs that the table does not have."""
    for extra in ("meter_config", "meter_counter_data"):
        if entry.HasField(extra):
            raise invalid(f"table {table.name}: has no direct meter for {extra}; leave it out")
    if entry.HasField("counter_data"):
        if table.direct_counter is None or entry.is_default_action:
            raise invalid(f"table {table.name}: has no direct counter for counter_data; leave it out")
        counter_values(entry.counter_data, table.name)
    if entry.idle_timeout_ns or entry.HasField("time_since_last_hit"):
        raise unimplemented(f"idle timeout of table {table.name}")
