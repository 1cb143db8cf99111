"""The tables of a switch with BF Runtime, and their rows, converted from and to P4Runtime.

Tables, actions and fields have the same ids in both. In BF Runtime, each value has its field's whole width,
and a prefix of length 0 is not omitted. A multicast group is a list of nodes, and a node is a list of ports;
here each group has one node, with the group's number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from finsy.proto import p4r

from peelsum.control.bfruntime.messages import Entity, Update
from peelsum.control.errors import SwitchError

_VERBS = {p4r.Update.INSERT: "INSERT", p4r.Update.MODIFY: "MODIFY", p4r.Update.DELETE: "DELETE"}
#: The widths of the integer types, in bits.
_WIDTHS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}


@dataclass(frozen=True)
class TableField:
    """A field of a key, of an action or of a table's data."""

    number: int
    """The field's id."""
    name: str
    """The field's name."""
    bits: int
    """The width of its values in bits; 0 for strings and booleans."""
    match: str = ""
    """The match type of a key's field: `Exact`, `LPM` or `Ternary`."""

    def encoded(self, value: int) -> bytes:
        """Encode a value in the field's whole width, in network byte order."""
        return value.to_bytes((self.bits + 7) // 8, "big")


@dataclass(frozen=True)
class TableSchema:
    """One table."""

    number: int
    """The table's id."""
    name: str
    """The table's full name."""
    key: Mapping[int, TableField]
    """The fields of the key, by id."""
    data: Mapping[str, TableField]
    """The data fields that belong to no action, by the last part of their names."""
    actions: Mapping[int, Mapping[int, TableField]]
    """The parameters of each action, by id."""


class Schema:
    """The tables of a program, and those that every Tofino has."""

    def __init__(self, *texts: bytes) -> None:
        """texts: bf-rt.json of the program, and of the shared tables. Raises ValueError if one is invalid."""
        self._tables = {
            table.number: table
            for text in texts
            if text
            for table in map(_table, json.loads(text).get("tables", ()))
        }

    def table(self, name: str) -> TableSchema:
        """Return the table with this name, or with a name that ends in `.name`. Raises SwitchError."""
        for table in self._tables.values():
            if table.name == name or table.name.endswith(f".{name}"):
                return table
        raise SwitchError(
            f"switch: its bf-rt.json has no table {name}; load peelsum's program into bf_switchd"
        )

    def numbered(self, number: int) -> TableSchema:
        """Return the table with this id. Raises KeyError."""
        return self._tables[number]


def _table(declared: Mapping[str, Any]) -> TableSchema:
    data = [declaration.get("singleton", {}) for declaration in declared.get("data", ())]
    return TableSchema(
        declared["id"],
        declared["name"],
        {field.number: field for field in _fields(declared.get("key", ()))},
        {
            field.name.rpartition(".")[2]: field
            for field in _fields(declaration for declaration in data if declaration)
        },
        {
            action["id"]: {field.number: field for field in _fields(action["data"])}
            for action in declared.get("action_specs", ())
        },
    )


def _fields(declarations: Iterable[Mapping[str, Any]]) -> Iterable[TableField]:
    for declaration in declarations:
        kind = declaration["type"]
        bits = kind.get("width") or _WIDTHS.get(kind["type"], 0)
        yield TableField(declaration["id"], declaration["name"], bits, declaration.get("match_type", ""))


def table_update(update: p4r.Update, schema: Schema) -> Any:
    """Convert the update of a table's row. Raises KeyError if the program does not have the table."""
    row = update.entity.table_entry
    entity = entity_of(row, schema, with_key=not row.is_default_action)
    if update.type != p4r.Update.DELETE:
        data, action = entity.table_entry.data, row.action.action
        data.action_id = action.action_id
        fields = schema.numbered(row.table_id).actions[action.action_id]
        for param in action.params:
            stream = fields[param.param_id].encoded(int.from_bytes(param.value, "big"))
            data.fields.add(field_id=param.param_id, stream=stream)
    return Update(type=_VERBS[update.type], entity=entity)


def row_of(entity: Any, schema: Schema) -> p4r.Entity:
    """Convert a table's row, as received from the switch, to P4Runtime."""
    message = entity.table_entry
    keys = schema.numbered(message.table_id).key
    row = p4r.TableEntry(table_id=message.table_id)
    for field in message.key.fields:
        if field.field_id not in keys:
            continue
        if field.WhichOneof("match_type") != "lpm":
            value = _without_leading_zeros(field.exact.value)
            row.match.add(field_id=field.field_id, exact=p4r.FieldMatch.Exact(value=value))
        elif bits := field.lpm.prefix_len:  # P4Runtime omits a prefix of length 0
            value = _without_leading_zeros(field.lpm.value)
            lpm = p4r.FieldMatch.LPM(value=value, prefix_len=bits)
            row.match.add(field_id=field.field_id, lpm=lpm)
    row.action.action.action_id = message.data.action_id
    for field in message.data.fields:
        row.action.action.params.add(param_id=field.field_id, value=_without_leading_zeros(field.stream))
    return p4r.Entity(table_entry=row)


def entity_of(row: p4r.TableEntry, schema: Schema, *, with_key: bool) -> Any:
    """Return an entity for a row, without data. A field of the key without a match is zero.

    As a query, it selects the row with this key, or without a key all rows of the table.
    Raises KeyError if the program does not have the table.
    """
    entity = Entity()
    entity.table_entry.table_id = row.table_id
    entity.table_entry.is_default_entry = row.is_default_action
    matches = {match.field_id: match for match in row.match}
    for number, field in schema.numbered(row.table_id).key.items() if with_key else ():
        message = entity.table_entry.key.fields.add(field_id=number)
        match = matches.get(number, p4r.FieldMatch())
        if field.match == "LPM":
            message.lpm.value = field.encoded(int.from_bytes(match.lpm.value, "big"))
            message.lpm.prefix_len = match.lpm.prefix_len
        else:
            message.exact.value = field.encoded(int.from_bytes(match.exact.value, "big"))
    return entity


def _without_leading_zeros(value: bytes) -> bytes:
    """Return a value in P4Runtime's canonical form, which has no leading zero bytes."""
    return value.lstrip(b"\0") or b"\0"


def group_updates(update: p4r.Update, schema: Schema) -> list[Any]:
    """Convert the update of a multicast group into updates of its node and of the group."""
    entry = update.entity.packet_replication_engine_entry.multicast_group_entry
    group, node = schema.table("$pre.mgid"), schema.table("$pre.node")
    number, ports = entry.multicast_group_id, [int(replica.egress_port) for replica in entry.replicas]
    if update.type == p4r.Update.DELETE:
        return [row("DELETE", group, number), row("DELETE", node, number)]
    node_data = {"$MULTICAST_RID": 0, "$MULTICAST_LAG_ID": [], "$DEV_PORT": ports}
    if update.type == p4r.Update.MODIFY:
        return [row("MODIFY", node, number, node_data)]
    group_data = {
        "$MULTICAST_NODE_ID": [number],
        "$MULTICAST_NODE_L1_XID_VALID": [False],
        "$MULTICAST_NODE_L1_XID": [0],
    }
    return [row("INSERT", node, number, node_data), row("INSERT", group, number, group_data)]


def row(verb: str, table: TableSchema, number: int | None, data: Mapping[str, object] | None = None) -> Any:
    """Return the update of a row.

    verb: INSERT, MODIFY or DELETE. number: the row's key, in a table with one key field; None for the default
    row, in which register parameters have their value. data: values by the last part of the fields' names.
    """
    update = Update(type=verb)
    entry = update.entity.table_entry
    entry.table_id, entry.is_default_entry = table.number, number is None
    if number is not None:
        (key,) = table.key.values()
        entry.key.fields.add(field_id=key.number).exact.value = key.encoded(number)
    for name, value in (data or {}).items():
        field = table.data[name]
        _set(entry.data.fields.add(field_id=field.number), field, value)
    return update


def _set(message: Any, field: TableField, value: object) -> None:
    """Set a data field, in the protobuf field for the type of its value."""
    match value:
        case bool():
            message.bool_val = value
        case int():
            message.stream = field.encoded(value)
        case str():
            message.str_val = value
        case [bool(), *_]:
            message.bool_arr_val.val.extend(value)
        case list():
            message.int_arr_val.val.extend(value)
            message.int_arr_val.SetInParent()
