"""Actions and parser states of BMv2 JSON -> their typed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peelsum.target.errors import BadProgram, UnsupportedConstruct
from peelsum.target.load_expressions import VALID, Scope
from peelsum.target.operations import (
    Action,
    ActionParam,
    AddHeader,
    Assign,
    Const,
    CopyHeader,
    CountAt,
    Exit,
    FieldRef,
    Jump,
    JumpIfZero,
    Lookahead,
    MarkToDrop,
    Primitive,
    ReadRegister,
    RemoveHeader,
    WriteRegister,
)
from peelsum.target.program import (
    Advance,
    Extract,
    Parser,
    ParserOp,
    ParserState,
    Require,
    Transition,
    Verify,
)

_NOTHING = frozenset({"no_op"})


def load_action(item: Mapping[str, Any], scope: Scope) -> Action:
    """One action; primitives that do nothing stay as jumps to the next, so that jump targets hold."""
    params = tuple(ActionParam(part["name"], int(part["bitwidth"])) for part in item["runtime_data"])
    inside = scope.within(params)
    body = tuple(
        load_primitive(primitive, inside, f"action {item['name']}", number)
        for number, primitive in enumerate(item["primitives"])
    )
    return Action(int(item["id"]), item["name"], params, body)


def load_primitive(item: Mapping[str, Any], scope: Scope, where: str, number: int = 0) -> Primitive:
    """One primitive. Raises UnsupportedConstruct naming it and `where` it is used."""
    op, args = item["op"], item["parameters"]
    match op:
        case "assign" | "modify_field":
            return Assign(_target(args[0], scope, where), scope.expression(args[1]))
        case "register_read":
            return ReadRegister(_target(args[0], scope, where), args[1]["value"], scope.expression(args[2]))
        case "register_write":
            return WriteRegister(args[0]["value"], scope.expression(args[1]), scope.expression(args[2]))
        case "count":
            return CountAt(args[0]["value"], scope.expression(args[1]))
        case "add_header":
            return AddHeader(scope.header(args[0]["value"]))
        case "remove_header":
            return RemoveHeader(scope.header(args[0]["value"]))
        case "assign_header" | "copy_header":
            return CopyHeader(scope.header(args[0]["value"]), scope.header(args[1]["value"]))
        case "mark_to_drop" | "drop":
            return MarkToDrop()
        case "exit":
            return Exit()
        case "_jump":
            return Jump(_constant(args[0], where))
        case "_jump_if_zero":
            return JumpIfZero(scope.expression(args[0]), _constant(args[1], where))
    if op in _NOTHING:
        return Jump(number + 1)
    raise UnsupportedConstruct(f"{where}: primitive {op}: this target has none; leave it out of the program")


def _target(item: Mapping[str, Any], scope: Scope, where: str) -> FieldRef:
    if item["type"] == "expression" and item["value"].get("type") == "field":
        item = item["value"]
    if item["type"] != "field":
        raise UnsupportedConstruct(f"{where}: assigns to a {item['type']}; only to single fields is run")
    if item["value"][1] == VALID:
        raise UnsupportedConstruct(
            f"{where}: assigns to {item['value'][0]}.{VALID}; use setValid or setInvalid"
        )
    return scope.field(item["value"])


def _constant(item: Mapping[str, Any], where: str) -> int:
    if item["type"] != "hexstr":
        raise BadProgram(f"{where}: jumps to a computed place; compile the program again")
    return int(item["value"], 16)


# --- parser ---------------------------------------------------------------------------------------


def load_parser(item: Mapping[str, Any], scope: Scope) -> Parser:
    """A parser with all its states."""
    states = {state["name"]: _state(state, scope) for state in item["parse_states"]}
    if item["init_state"] not in states:
        raise BadProgram(f"parser {item['name']}: no state {item['init_state']}; compile the program again")
    return Parser(item["init_state"], states)


def _state(item: Mapping[str, Any], scope: Scope) -> ParserState:
    where = f"parser state {item['name']}"
    ops = [op for part in item["parser_ops"] for op in _parser_op(part, scope, where)]
    key: list[FieldRef | Lookahead] = []
    for part in item["transition_key"]:
        if part["type"] == "field" and part["value"][1] != VALID:
            key.append(scope.field(part["value"]))
        elif part["type"] == "lookahead":
            key.append(Lookahead(*map(int, part["value"])))
        else:
            raise UnsupportedConstruct(
                f"{where}: selects on {part['type']} {part['value']}; only on fields is run"
            )
    ahead = max((part.offset + part.bits for part in key if isinstance(part, Lookahead)), default=0)
    if ahead:
        ops.append(Require(ahead))
    widths = [part.bits if isinstance(part, Lookahead) else scope.bits(part) for part in key]
    transitions = tuple(_transition(part, widths, where) for part in item["transitions"])
    return ParserState(item["name"], tuple(ops), tuple(key), transitions)


def _transition(item: Mapping[str, Any], widths: Sequence[int], where: str) -> Transition:
    following = item["next_state"]
    if item["type"] == "default":
        return Transition(None, None, following)
    if item["type"] != "hexstr":
        raise UnsupportedConstruct(f"{where}: transition on a {item['type']}; only on values is run")
    mask = None if item.get("mask") is None else _split(int(item["mask"], 16), widths)
    return Transition(_split(int(item["value"], 16), widths), mask, following)


def _split(value: int, widths: Sequence[int]) -> tuple[int, ...]:
    """A concatenation of byte-padded fields, taken apart."""
    parts = []
    for bits in reversed(widths):
        padded = -(-bits // 8) * 8
        parts.append(value & (1 << padded) - 1)
        value >>= padded
    return tuple(reversed(parts))


def _parser_op(item: Mapping[str, Any], scope: Scope, where: str) -> list[ParserOp]:
    args = item["parameters"]
    match item["op"]:
        case "extract" if args[0]["type"] == "regular":
            return [Extract(scope.header(args[0]["value"]))]
        case "set":
            value = scope.expression(args[1])
            needed = [Require(value.offset + value.bits)] if isinstance(value, Lookahead) else []
            return [*needed, Assign(_target(args[0], scope, where), value)]
        case "verify":
            return [Verify(scope.expression(args[0]), scope.expression(args[1]))]
        case "shift":
            return [Advance(int(args[0]))]
        case "advance":
            bits = scope.expression(args[0])
            if not isinstance(bits, Const) or bits.value % 8:
                raise UnsupportedConstruct(
                    f"{where}: advances by a computed or odd number of bits; use whole bytes"
                )
            return [Advance(bits.value // 8)]
        case "primitive":
            return [load_primitive(args[0], scope, where)]
    shown = args[0].get("type") if args and isinstance(args[0], dict) else ""
    raise UnsupportedConstruct(
        f"{where}: {item['op']} {shown}: this target has none; leave it out of the program"
    )
