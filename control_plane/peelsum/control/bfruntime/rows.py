"""Turn P4Runtime's entities into BF Runtime's, and back, and build rows of tables that only a Tofino has.

The compiler gives tables, actions and fields the same ids in both. BF Runtime wants each value in its field's
whole width, and the fields of a prefix that matches everything. There a multicast group is a list of nodes,
and a node a list of ports. Here a group has one node, with its own number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finsy.proto import p4r

from peelsum.control.bfruntime.messages import Entity, Update
from peelsum.control.bfruntime.schema import Field, Schema, Table

_VERBS = {p4r.Update.INSERT: "INSERT", p4r.Update.MODIFY: "MODIFY", p4r.Update.DELETE: "DELETE"}


def table_update(update: p4r.Update, schema: Schema) -> Any:
    """Return the Update for one of a table's rows. Raises KeyError for what the program does not declare."""
    row = update.entity.table_entry
    entity = _entity(row)
    if not row.is_default_action:
        _add_key(entity, row, schema)
    if update.type != p4r.Update.DELETE:
        entity.table_entry.data.CopyFrom(_data(row.action.action, schema.numbered(row.table_id)))
    return Update(type=_VERBS[update.type], entity=entity)


def table_query(row: p4r.TableEntry, schema: Schema) -> Any:
    """Return what selects the row with a match, or all rows of a table if there is none."""
    entity = _entity(row)
    if row.match:
        _add_key(entity, row, schema)
    return entity


def row_of(entity: Any, schema: Schema) -> p4r.Entity:
    """Return a row that a switch sent in P4Runtime's form."""
    sent = entity.table_entry
    keys = schema.numbered(sent.table_id).key
    row = p4r.TableEntry(table_id=sent.table_id)
    for field in sent.key.fields:
        if field.field_id in keys and (match := _match(field)) is not None:
            row.match.append(match)
    row.action.action.action_id = sent.data.action_id
    for field in sent.data.fields:
        row.action.action.params.add(param_id=field.field_id, value=_short(field.stream))
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


def _set_key(sent: Any, field: Field, match: p4r.FieldMatch | None) -> None:
    if field.match == "LPM":
        value = match.lpm.value if match is not None else b""
        sent.lpm.value = field.encoded(int.from_bytes(value, "big"))
        sent.lpm.prefix_len = match.lpm.prefix_len if match is not None else 0
    else:
        value = match.exact.value if match is not None else b""
        sent.exact.value = field.encoded(int.from_bytes(value, "big"))


def _match(field: Any) -> p4r.FieldMatch | None:
    """Return a key's field; None for a prefix that matches everything, which P4Runtime leaves out."""
    if field.WhichOneof("match_type") == "lpm":
        if not field.lpm.prefix_len:
            return None
        value, bits = _short(field.lpm.value), field.lpm.prefix_len
        return p4r.FieldMatch(field_id=field.field_id, lpm=p4r.FieldMatch.LPM(value=value, prefix_len=bits))
    value = _short(field.exact.value)
    return p4r.FieldMatch(field_id=field.field_id, exact=p4r.FieldMatch.Exact(value=value))


def _data(action: p4r.Action, table: Table) -> Any:
    data = Entity().table_entry.data
    data.action_id = action.action_id
    fields = table.actions[action.action_id]
    for param in action.params:
        stream = fields[param.param_id].encoded(int.from_bytes(param.value, "big"))
        data.fields.add(field_id=param.param_id, stream=stream)
    return data


def _short(value: bytes) -> bytes:
    """Return a value as P4Runtime writes it, without leading zero bytes."""
    return value.lstrip(b"\0") or b"\0"


def group_updates(update: p4r.Update, schema: Schema) -> list[Any]:
    """Return the Updates for a change of a group: of its node, and of the group if it comes or goes."""
    entry = update.entity.packet_replication_engine_entry.multicast_group_entry
    group, node = schema.table("$pre.mgid"), schema.table("$pre.node")
    number, ports = entry.multicast_group_id, [int(one.egress_port) for one in entry.replicas]
    if update.type == p4r.Update.DELETE:
        return [row("DELETE", group, number), row("DELETE", node, number)]
    of_node = {"$MULTICAST_RID": 0, "$MULTICAST_LAG_ID": [], "$DEV_PORT": ports}
    if update.type == p4r.Update.MODIFY:
        return [row("MODIFY", node, number, of_node)]
    of_group = {
        "$MULTICAST_NODE_ID": [number],
        "$MULTICAST_NODE_L1_XID_VALID": [False],
        "$MULTICAST_NODE_L1_XID": [0],
    }
    return [row("INSERT", node, number, of_node), row("INSERT", group, number, of_group)]


def ports_of(data: Any, node: Table) -> list[int]:
    """Return the ports of a node's data."""
    wanted = node.data["$DEV_PORT"].number
    return [port for field in data.fields if field.field_id == wanted for port in field.int_arr_val.val]


def row(verb: str, table: Table, number: int, data: Mapping[str, object] | None = None) -> Any:
    """Return the Update of a row; `data` has values by the last part of their fields' names."""
    (key,) = table.key.values()
    update = _update(verb, table, data or {})
    update.entity.table_entry.key.fields.add(field_id=key.number).exact.value = key.encoded(number)
    return update


def default_row(table: Table, data: Mapping[str, object]) -> Any:
    """Return the Update of a table's default row, as register parameters have one."""
    update = _update("MODIFY", table, data)
    update.entity.table_entry.is_default_entry = True
    return update


def _update(verb: str, table: Table, data: Mapping[str, object]) -> Any:
    update = Update(type=verb)
    update.entity.table_entry.table_id = table.number
    for name, value in data.items():
        field = table.data[name]
        _set(update.entity.table_entry.data.fields.add(field_id=field.number), field, value)
    return update


def _set(sent: Any, field: Field, value: object) -> None:
    match value:
        case bool():
            sent.bool_val = value
        case int():
            sent.stream = field.encoded(value)
        case str():
            sent.str_val = value
        case [bool(), *_]:
            sent.bool_arr_val.val.extend(value)
        case list():
            sent.int_arr_val.val.extend(value)
            sent.int_arr_val.SetInParent()
