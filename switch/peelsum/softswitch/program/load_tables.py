"""Converts the pipelines of BMv2 JSON to tables and conditionals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from peelsum.softswitch.errors import BadProgram, UnsupportedConstruct
from peelsum.softswitch.program.load_expressions import VALID, Scope, bits_of
from peelsum.softswitch.program.model import (
    Conditional,
    ConstEntry,
    KeyValue,
    MatchKind,
    Pipeline,
    Table,
    TableKey,
    successors,
)
from peelsum.softswitch.program.operations import Action, FieldRef

#: Number of the default action of tables that declare none, as P4_14's do: it does nothing.
NO_ACTION = -1
_KINDS = ("exact", "lpm", "ternary", "range")


def load_pipeline(item: Mapping[str, Any], scope: Scope, actions: Mapping[int, Action]) -> Pipeline:
    """Return one pipeline with its tables and conditionals."""
    for call in item.get("action_calls", ()):
        raise UnsupportedConstruct(f"action call {call.get('name')}: not supported; recompile with p4c")
    for profile in item.get("action_profiles", ()):
        raise UnsupportedConstruct(f"action profile {profile.get('name')}: not supported; use a plain table")
    nodes: dict[str, Table | Conditional] = {}
    for part in item["tables"]:
        nodes[part["name"]] = _table(part, scope, actions)
    for part in item["conditionals"]:
        condition = scope.expression(part["expression"])
        nodes[part["name"]] = Conditional(part["name"], condition, part["true_next"], part["false_next"])
    _check_links(item["name"], item["init_table"], nodes)
    return Pipeline(item["name"], item["init_table"], nodes)


def _check_links(name: str, start: str | None, nodes: Mapping[str, Table | Conditional]) -> None:
    for target in [start, *(after for node in nodes.values() for after in successors(node))]:
        if target is not None and target not in nodes:
            raise BadProgram(
                f"pipeline {name}: leads to {target}, which is not declared; compile the program again"
            )


def _table(item: Mapping[str, Any], scope: Scope, actions: Mapping[int, Action]) -> Table:
    name = item["name"]
    if item["type"] != "simple":
        raise UnsupportedConstruct(
            f"table {name}: of type {item['type']}, which is not supported; use a plain table"
        )
    if item.get("support_timeout"):
        raise UnsupportedConstruct(f"table {name}: idle timeout: not supported; leave it out")
    if item.get("direct_meters") is not None:
        raise UnsupportedConstruct(f"table {name}: direct meter: not supported; leave it out")
    keys = tuple(_key(part, scope, name) for part in item["key"])
    default = item.get("default_entry") or {"action_id": NO_ACTION}
    action, params = _call(default, actions, name)
    if "action_ids" in item:
        numbers = tuple(int(number) for number in item["action_ids"])
    else:  # of P4_14, where names of actions are unique
        ids = {declared.name: number for number, declared in actions.items()}
        numbers = tuple(ids[text] for text in item["actions"])
    for number in numbers:
        _declared(actions, number, name)
    given = item["next_tables"]
    by_name = dict(zip(item["actions"], numbers, strict=True))
    if action == NO_ACTION and "base_default_next" in item:
        given = {**given, "NoAction": item["base_default_next"]}
        by_name = {**by_name, "NoAction": NO_ACTION}
    by_hit = None
    if "__HIT__" in given or "__MISS__" in given:
        base = item.get("base_default_next")
        by_hit = (given.get("__HIT__", base), given.get("__MISS__", base))
    entries = item.get("entries")
    return Table(
        name=name,
        keys=keys,
        size=int(item["max_size"]),
        actions=numbers,
        default_action=action,
        default_params=params,
        const_default=bool(default.get("action_entry_const") or default.get("action_const")),
        const_entries=None
        if entries is None
        else tuple(_entry(entry, keys, actions, name) for entry in entries),
        next_by_action={by_name[key]: value for key, value in given.items() if key in by_name},
        next_by_hit=by_hit,
    )


def _key(item: Mapping[str, Any], scope: Scope, table: str) -> TableKey:
    kind = item["match_type"]
    header, field_name = item["target"] if kind != "valid" else (item["target"], VALID)
    if kind == "valid":  # P4_14's match on whether a header is there
        kind = "exact"
    if kind not in _KINDS:
        raise UnsupportedConstruct(
            f"table {table}: match kind {kind}: not supported; use {', '.join(_KINDS)}"
        )
    mask = None if item.get("mask") is None else int(item["mask"], 16)
    if field_name == VALID:
        ref, bits = FieldRef(scope.header(header), VALID), 1
    else:
        ref = scope.field(item["target"])
        bits = scope.declared(ref).bits
    if kind == "range" and bits > 64:
        raise UnsupportedConstruct(f"table {table}: range match on {bits} bits; use up to 64")
    return TableKey(item.get("name") or f"{header}.{field_name}", ref, cast(MatchKind, kind), bits, mask)


def _call(item: Mapping[str, Any], actions: Mapping[int, Action], table: str) -> tuple[int, tuple[int, ...]]:
    """Return the action's number and the parameters that an entry or a default entry gives to it."""
    number, data = int(item["action_id"]), item.get("action_data", ())
    action = _declared(actions, number, table)
    if len(data) != len(action.params):
        raise BadProgram(
            f"table {table}: {len(data)} parameters for {action.name}, not {len(action.params)}; "
            "compile the program again"
        )
    return number, tuple(bits_of(value, param.bits) for value, param in zip(data, action.params, strict=True))


def _declared(actions: Mapping[int, Action], number: int, table: str) -> Action:
    if number not in actions:
        raise BadProgram(f"table {table}: action {number} is not declared; compile the program again")
    return actions[number]


def _entry(
    item: Mapping[str, Any], keys: tuple[TableKey, ...], actions: Mapping[int, Action], table: str
) -> ConstEntry:
    values = tuple(_value(part, key, table) for part, key in zip(item["match_key"], keys, strict=True))
    action, params = _call(item["action_entry"], actions, table)
    return ConstEntry(values, action, params, int(item.get("priority", 0)))


def _value(item: Mapping[str, Any], key: TableKey, table: str) -> KeyValue:
    def bits(name: str) -> int:
        return bits_of(item[name], key.bits)

    match item["match_type"]:
        case "exact":
            return bits("key")
        case "lpm":
            length = int(item["prefix_length"])
            kept = (1 << key.bits) - (1 << key.bits - length)
            return bits("key") & kept, length
        case "ternary":
            return bits("key") & bits("mask"), bits("mask")
    if item["start"].startswith("-") and not item["end"].startswith("-"):
        raise UnsupportedConstruct(
            f"table {table}: key {key.name}: a range from a negative number to another; split it at 0"
        )
    return bits("start"), bits("end")
