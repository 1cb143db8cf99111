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
    PipelineGraph,
    TableDeclaration,
    TableKey,
    successors,
)
from peelsum.softswitch.program.operations import Action, FieldRef

#: Action number of the default action of tables without one, as in P4_14. It does nothing.
NO_ACTION = -1
_KINDS = ("exact", "lpm", "ternary", "range")


def load_pipeline(item: Mapping[str, Any], scope: Scope, actions: Mapping[int, Action]) -> PipelineGraph:
    """Return one pipeline with its tables and conditionals."""
    for call in item.get("action_calls", ()):
        raise UnsupportedConstruct(f"action call {call.get('name')}: not supported; recompile with p4c")
    for profile in item.get("action_profiles", ()):
        raise UnsupportedConstruct(f"action profile {profile.get('name')}: not supported; use a plain table")
    nodes: dict[str, TableDeclaration | Conditional] = {}
    for node in item["tables"]:
        nodes[node["name"]] = _table(node, scope, actions)
    for node in item["conditionals"]:
        condition = scope.expression(node["expression"])
        nodes[node["name"]] = Conditional(node["name"], condition, node["true_next"], node["false_next"])
    _check_successors(item["name"], item["init_table"], nodes)
    return PipelineGraph(item["name"], item["init_table"], nodes)


def _check_successors(
    name: str, first: str | None, nodes: Mapping[str, TableDeclaration | Conditional]
) -> None:
    """Raise BadProgram if a node of a pipeline leads to one that is not declared."""
    for target in [first, *(after for node in nodes.values() for after in successors(node))]:
        if target is not None and target not in nodes:
            raise BadProgram(
                f"pipeline {name}: leads to {target}, which is not declared; compile the program again"
            )


def _table(item: Mapping[str, Any], scope: Scope, actions: Mapping[int, Action]) -> TableDeclaration:
    """Return a table. Raises UnsupportedConstruct for action profiles, meters and time-outs."""
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
    action, params = _action_call(default, actions, name)
    if "action_ids" in item:
        numbers = tuple(int(number) for number in item["action_ids"])
    else:  # of P4_14, where names of actions are unique
        ids = {action_of_number.name: number for number, action_of_number in actions.items()}
        numbers = tuple(ids[text] for text in item["actions"])
    for number in numbers:
        _find_action(actions, number, name)
    successors_by_name = item["next_tables"]
    numbers_by_name = dict(zip(item["actions"], numbers, strict=True))
    if action == NO_ACTION and "base_default_next" in item:
        successors_by_name = {**successors_by_name, "NoAction": item["base_default_next"]}
        numbers_by_name = {**numbers_by_name, "NoAction": NO_ACTION}
    next_by_hit = None
    if "__HIT__" in successors_by_name or "__MISS__" in successors_by_name:
        base = item.get("base_default_next")
        next_by_hit = (successors_by_name.get("__HIT__", base), successors_by_name.get("__MISS__", base))
    entries = item.get("entries")
    return TableDeclaration(
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
        next_by_action={
            numbers_by_name[key]: value for key, value in successors_by_name.items() if key in numbers_by_name
        },
        next_by_hit=next_by_hit,
    )


def _key(item: Mapping[str, Any], scope: Scope, table: str) -> TableKey:
    """Return a field of a table's key."""
    kind = item["match_type"]
    header, field = item["target"] if kind != "valid" else (item["target"], VALID)
    if kind == "valid":  # P4_14's match on the validity of a header
        kind = "exact"
    if kind not in _KINDS:
        raise UnsupportedConstruct(
            f"table {table}: match kind {kind}: not supported; use {', '.join(_KINDS)}"
        )
    mask = None if item.get("mask") is None else int(item["mask"], 16)
    if field == VALID:
        ref, bits = FieldRef(scope.header(header), VALID), 1
    else:
        ref = scope.field(item["target"])
        bits = scope.declared(ref).bits
    if kind == "range" and bits > 64:
        raise UnsupportedConstruct(f"table {table}: range match on {bits} bits; use up to 64")
    return TableKey(item.get("name") or f"{header}.{field}", ref, cast(MatchKind, kind), bits, mask)


def _action_call(
    item: Mapping[str, Any], actions: Mapping[int, Action], table: str
) -> tuple[int, tuple[int, ...]]:
    """Return the action's number and the arguments in an entry or a default entry."""
    number, data = int(item["action_id"]), item.get("action_data", ())
    action = _find_action(actions, number, table)
    if len(data) != len(action.params):
        raise BadProgram(
            f"table {table}: {len(data)} parameters for {action.name}, not {len(action.params)}; "
            "compile the program again"
        )
    return number, tuple(bits_of(value, param.bits) for value, param in zip(data, action.params, strict=True))


def _find_action(actions: Mapping[int, Action], number: int, table: str) -> Action:
    if number not in actions:
        raise BadProgram(f"table {table}: action {number} is not declared; compile the program again")
    return actions[number]


def _entry(
    item: Mapping[str, Any], keys: tuple[TableKey, ...], actions: Mapping[int, Action], table: str
) -> ConstEntry:
    values = tuple(_key_value(part, key, table) for part, key in zip(item["match_key"], keys, strict=True))
    action, params = _action_call(item["action_entry"], actions, table)
    return ConstEntry(values, action, params, int(item.get("priority", 0)))


def _key_value(item: Mapping[str, Any], key: TableKey, table: str) -> KeyValue:
    """Return one value of a const entry's key, in the form of its match kind."""

    def bits(name: str) -> int:
        return bits_of(item[name], key.bits)

    match item["match_type"]:
        case "exact":
            return bits("key")
        case "lpm":
            length = int(item["prefix_length"])
            prefix_mask = (1 << key.bits) - (1 << key.bits - length)
            return bits("key") & prefix_mask, length
        case "ternary":
            return bits("key") & bits("mask"), bits("mask")
    if item["start"].startswith("-") and not item["end"].startswith("-"):
        raise UnsupportedConstruct(
            f"table {table}: key {key.name}: a range from a negative number to another; split it at 0"
        )
    return bits("start"), bits("end")
