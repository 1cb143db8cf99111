"""Convert entities between P4Runtime and BF Runtime, and build rows of tables that only a Tofino has.

Tables, actions and fields have the same ids in both. In BF Runtime, each value has its field's whole width,
and a prefix of length 0 is not omitted. A multicast group is a list of nodes, and a node is a list of ports;
here each group has one node, with the group's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finsy.proto import p4r

from peelsum.control.bfruntime.messages import Entity, Update
from peelsum.control.bfruntime.schema import Schema, TableField, TableSchema

_VERBS = {p4r.Update.INSERT: "INSERT", p4r.Update.MODIFY: "MODIFY", p4r.Update.DELETE: "DELETE"}


def table_update(update: p4r.Update, schema: Schema) -> Any:
    """Convert the update of a table's row. Raises KeyError if the program does not have the table."""
    row = update.entity.table_entry
    entity = _entity(row)
    if not row.is_default_action:
        _add_key(entity, row, schema)
    if update.type != p4r.Update.DELETE:
        entity.table_entry.data.CopyFrom(_data(row.action.action, schema.numbered(row.table_id)))
    return Update(type=_VERBS[update.type], entity=entity)


def table_query(row: p4r.TableEntry, schema: Schema) -> Any:
    """Return the entity that selects the row with a match, or all rows of the table if there is no match."""
    entity = _entity(row)
    if row.match:
        _add_key(entity, row, schema)
    return entity


def row_of(entity: Any, schema: Schema) -> p4r.Entity:
    """Convert a table's row, as received from the switch, to P4Runtime."""
    message = entity.table_entry
    keys = schema.numbered(message.table_id).key
    row = p4r.TableEntry(table_id=message.table_id)
    for field in message.key.fields:
        if field.field_id in keys and (match := _match(field)) is not None:
            row.match.append(match)
    row.action.action.action_id = message.data.action_id
    for field in message.data.fields:
        row.action.action.params.add(param_id=field.field_id, value=_without_leading_zeros(field.stream))
    return p4r.Entity(table_entry=row)


def _entity(row: p4r.TableEntry) -> Any:
    entity = Entity()
    entity.table_entry.table_id = row.table_id
    entity.table_entry.is_default_entry = row.is_default_action
    return entity


def _add_key(entity: Any, row: p4r.TableEntry, schema: Schema) -> None:
    values = {match.field_id: match for match in row.match}
    for number, field in schema.numbered(row.table_id).key.items():
        _set_key(entity.table_entry.key.fields.add(field_id=number), field, values.get(number))


def _set_key(message: Any, field: TableField, match: p4r.FieldMatch | None) -> None:
    """Set the value of a key's field, zero if there is no match."""
    if field.match == "LPM":
        value = match.lpm.value if match is not None else b""
        message.lpm.value = field.encoded(int.from_bytes(value, "big"))
        message.lpm.prefix_len = match.lpm.prefix_len if match is not None else 0
    else:
        value = match.exact.value if match is not None else b""
        message.exact.value = field.encoded(int.from_bytes(value, "big"))


def _match(field: Any) -> p4r.FieldMatch | None:
    """Convert a key's field; return None for a prefix of length 0, which P4Runtime omits."""
    if field.WhichOneof("match_type") == "lpm":
        if not field.lpm.prefix_len:
            return None
        value, bits = _without_leading_zeros(field.lpm.value), field.lpm.prefix_len
        return p4r.FieldMatch(field_id=field.field_id, lpm=p4r.FieldMatch.LPM(value=value, prefix_len=bits))
    value = _without_leading_zeros(field.exact.value)
    return p4r.FieldMatch(field_id=field.field_id, exact=p4r.FieldMatch.Exact(value=value))


def _data(action: p4r.Action, table: TableSchema) -> Any:
    """Convert an action with its parameters to a row's data."""
    data = Entity().table_entry.data
    data.action_id = action.action_id
    fields = table.actions[action.action_id]
    for param in action.params:
        stream = fields[param.param_id].encoded(int.from_bytes(param.value, "big"))
        data.fields.add(field_id=param.param_id, stream=stream)
    return data


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


def ports_of(data: Any, node: TableSchema) -> list[int]:
    """Return the ports in the data of a node."""
    field_id = node.data["$DEV_PORT"].number
    return [port for field in data.fields if field.field_id == field_id for port in field.int_arr_val.val]


def row(verb: str, table: TableSchema, number: int, data: Mapping[str, object] | None = None) -> Any:
    """Return the update of a row.

    verb: INSERT, MODIFY or DELETE. number: the row's key, in a table with one key field. data: values by the
    last part of the fields' names.
    """
    (key,) = table.key.values()
    update = _update(verb, table, data or {})
    update.entity.table_entry.key.fields.add(field_id=key.number).exact.value = key.encoded(number)
    return update


def default_row(table: TableSchema, data: Mapping[str, object]) -> Any:
    """Return the update of a table's default row, in which register parameters have their value."""
    update = _update("MODIFY", table, data)
    update.entity.table_entry.is_default_entry = True
    return update


def _update(verb: str, table: TableSchema, data: Mapping[str, object]) -> Any:
    """Return an update of a table with data, but without a key."""
    update = Update(type=verb)
    update.entity.table_entry.table_id = table.number
    for name, value in data.items():
        field = table.data[name]
        _set(update.entity.table_entry.data.fields.add(field_id=field.number), field, value)
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
