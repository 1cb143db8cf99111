"""Rows of tables whose key is one number: multicast groups, ports, registers.

In BF Runtime a multicast group is a list of nodes, and a node a list of ports. Here a group has one node,
with its own number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finsy.proto import p4r

from peelsum.control.bfruntime.messages import Update
from peelsum.control.bfruntime.schema import Field, Schema, Table


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
