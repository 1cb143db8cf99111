"""Converts the actions and parser states of BMv2 JSON to typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from peelsum.softswitch.errors import BadProgram, UnsupportedConstruct
from peelsum.softswitch.program.load_expressions import VALID, Scope
from peelsum.softswitch.program.model import (
    Advance,
    Extract,
    ExtractNext,
    Field,
    Parser,
    ParserOp,
    ParserState,
    Require,
    Transition,
    Verify,
)
from peelsum.softswitch.program.operations import (
    HASHES,
    Action,
    ActionParam,
    AddHeader,
    Assign,
    AssignChosen,
    Binary,
    Clone,
    Const,
    CopyHeader,
    CopyStack,
    CountAt,
    Exit,
    Expr,
    FieldRef,
    Hash,
    Jump,
    JumpIfZero,
    Lookahead,
    Pop,
    Primitive,
    Push,
    ReadRegister,
    Recirculate,
    RemoveHeader,
    Resubmit,
    WriteRegister,
    walk,
)
from peelsum.wire import DROP_PORT


def load_action(item: Mapping[str, Any], scope: Scope) -> Action:
    """Return one action, whose jumps are numbers of statements in its body.

    In BMv2 JSON they are numbers of primitives, of which one may become several statements, or none.
    """
    params = tuple(
        ActionParam(part["name"], int(part["bitwidth"]), (int(item["id"]), index) in scope.signed)
        for index, part in enumerate(item["runtime_data"])
    )
    inside = replace(scope, params=params)
    primitives = [load_primitive(part, inside, f"action {item['name']}") for part in item["primitives"]]
    firsts = list(accumulate(map(len, primitives), initial=0))
    body = tuple(
        replace(statement, to=firsts[min(statement.to, len(primitives))])
        if isinstance(statement, (Jump, JumpIfZero))
        else statement
        for statements in primitives
        for statement in statements
    )
    return Action(int(item["id"]), item["name"], params, body)


def load_primitive(item: Mapping[str, Any], scope: Scope, where: str) -> tuple[Primitive, ...]:
    """Return a primitive's statements. Raises UnsupportedConstruct with its name and `where` it is used."""
    op, args = item["op"], item["parameters"]
    match op:
        case "mark_to_drop":
            header = _header(args[0], scope, where)
            return _dropped(scope.field((header, "egress_spec")), scope.intrinsic(f"{header}.mcast_grp"))
        case "drop":
            spec = scope.field(("standard_metadata", "egress_spec"))
            return _dropped(spec, scope.intrinsic("intrinsic_metadata.mcast_grp"))
        case "no_op" | "log_msg":
            return ()
    return (_single(op, args, scope, where),)


def _dropped(spec: FieldRef, group: FieldRef | None) -> tuple[Primitive, ...]:
    """Return the statements that drop a packet, unless later ones choose a port or a multicast group."""
    drop = Assign(spec, Const(DROP_PORT))
    return (drop,) if group is None else (drop, Assign(group, Const(0)))


def _single(op: str, args: Sequence[Mapping[str, Any]], scope: Scope, where: str) -> Primitive:
    match op:
        case "assign" | "modify_field":
            return _assign(args[0], scope.expression(args[1]), scope, where)
        case "add_to_field" | "subtract_from_field":  # of P4_14
            sign, field = "+" if op == "add_to_field" else "-", scope.expression(args[0])
            return _assign(args[0], Binary(sign, field, scope.expression(args[1])), scope, where)
        case "register_read":
            return ReadRegister(_target(args[0], scope, where), args[1]["value"], scope.expression(args[2]))
        case "register_write":
            return WriteRegister(args[0]["value"], scope.expression(args[1]), scope.expression(args[2]))
        case "count":
            return CountAt(args[0]["value"], scope.expression(args[1]))
        case "add_header":
            return AddHeader(_header(args[0], scope, where))
        case "remove_header":
            return RemoveHeader(_header(args[0], scope, where))
        case "assign_header" | "copy_header":
            return CopyHeader(_header(args[0], scope, where), _header(args[1], scope, where))
        case "assign_header_stack":
            return CopyStack(scope.stack(args[0]["value"]), scope.stack(args[1]["value"]))
        case "push":
            return Push(scope.stack(args[0]["value"]), _constant(args[1], where))
        case "pop":
            return Pop(scope.stack(args[0]["value"]), _constant(args[1], where))
        case "clone_ingress_pkt_to_egress" | "clone_egress_pkt_to_egress":
            return Clone(scope.expression(args[0]), _constant(args[1], where))
        case "resubmit":
            return Resubmit(_constant(args[0], where))
        case "recirculate":
            return Recirculate(_constant(args[0], where))
        case "modify_field_with_hash_based_offset":
            return _hash(args, scope, where)
        case "exit":
            return Exit()
        case "_jump":
            return Jump(_constant(args[0], where))
        case "_jump_if_zero":
            return JumpIfZero(scope.expression(args[0]), _constant(args[1], where))
    raise UnsupportedConstruct(f"{where}: primitive {op}: not supported; leave it out of the program")


def _assign(item: Mapping[str, Any], value: Expr, scope: Scope, where: str) -> Primitive:
    found = item
    while found.get("type") == "expression":
        found = found["value"]
    if found.get("op") == "access_field":
        targets, index = scope.element_fields(found)
        return AssignChosen(targets, index, value)
    return Assign(_target(item, scope, where), value)


def _hash(args: Sequence[Mapping[str, Any]], scope: Scope, where: str) -> Hash:
    calculation = scope.calculations[args[2]["value"]]
    if calculation["algo"] not in HASHES:
        raise UnsupportedConstruct(
            f"{where}: hash {calculation['algo']}: not supported; use {', '.join(HASHES)}"
        )
    inputs = scope.inputs(calculation, f"{where}: hash")
    base, size = scope.expression(args[1]), scope.expression(args[3])
    return Hash(_target(args[0], scope, where), calculation["algo"], inputs, base, size)


def _header(item: Mapping[str, Any], scope: Scope, where: str) -> str:
    if item["type"] != "header":
        raise UnsupportedConstruct(f"{where}: a whole header chosen by {item['type']}; use a constant index")
    return scope.header(item["value"])


def _target(item: Mapping[str, Any], scope: Scope, where: str) -> FieldRef:
    if item["type"] == "expression" and item["value"].get("type") == "field":
        item = item["value"]
    if item["type"] != "field":
        raise UnsupportedConstruct(f"{where}: assigns to a {item['type']}; assign to single fields")
    if item["value"][1] == VALID:
        raise UnsupportedConstruct(
            f"{where}: assigns to {item['value'][0]}.{VALID}; use setValid or setInvalid"
        )
    return scope.field(item["value"])


def _constant(item: Mapping[str, Any], where: str) -> int:
    if item["type"] != "hexstr":
        raise BadProgram(f"{where}: a {item['type']} instead of a number; compile the program again")
    return int(item["value"], 16)


# --- parser ---------------------------------------------------------------------------------------


def load_parser(item: Mapping[str, Any], scope: Scope) -> Parser:
    """Return a parser with all its states."""
    states = {state["name"]: _state(state, scope) for state in item["parse_states"]}
    if item["init_state"] not in states:
        raise BadProgram(f"parser {item['name']}: no state {item['init_state']}; compile the program again")
    return Parser(item["init_state"], states)


def _state(item: Mapping[str, Any], scope: Scope) -> ParserState:
    where = f"parser state {item['name']}"
    ops = [op for part in item["parser_ops"] for op in _parser_op(part, scope, where)]
    parts = [_key_part(part, scope, where) for part in item["transition_key"]]
    # A parser compares the bits of a field, whether it is signed or not.
    key = tuple(
        Binary("&", part, Const((1 << field.bits) - 1)) if field.signed else part for part, field in parts
    )
    ops += _required(key)
    declared = [field for _, field in parts]
    transitions = tuple(_transition(part, declared, where) for part in item["transitions"])
    return ParserState(item["name"], tuple(ops), key, transitions)


def _key_part(item: Mapping[str, Any], scope: Scope, where: str) -> tuple[Expr, Field]:
    """Return a part of a state's key as an expression, and the field that gives its width and sign."""
    kind, value = item["type"], item["value"]
    if kind == "field" and value[1] != VALID:
        return scope.field(value), scope.declared(scope.field(value))
    if kind == "stack_field":
        stack, name = value
        return scope.last(stack, name), scope.declared(scope.field((scope.stacks[stack][0], name)))
    if kind == "lookahead":
        ahead = Lookahead(*map(int, value))
        return ahead, Field(kind, ahead.bits)
    raise UnsupportedConstruct(f"{where}: selects on {kind} {value}; select on fields")


def _required(expressions: Any) -> list[ParserOp]:
    """Return the check that the packet has the bits that some expressions look ahead to, if any do."""
    ends = [node.offset + node.bits for node in walk(expressions) if isinstance(node, Lookahead)]
    return [Require(max(ends))] if ends else []


def _transition(item: Mapping[str, Any], key: Sequence[Field], where: str) -> Transition:
    following = item["next_state"]
    # Compilers before version 2.6 of the format write no type.
    kind = item.get("type", "default" if item["value"] == "default" else "hexstr")
    if kind == "default":
        return Transition(None, None, following)
    if kind != "hexstr":
        raise UnsupportedConstruct(f"{where}: transition on a {kind}; use values")
    mask = None if item.get("mask") is None else _split(int(item["mask"], 16), key)
    return Transition(_split(int(item["value"], 16), key), mask, following)


def _split(value: int, key: Sequence[Field]) -> tuple[int, ...]:
    """Split a concatenation of byte-padded fields into the fields' bits.

    p4c adds fields up, each shifted to its place, so that a negative one also changes those before it. If the
    whole is negative, which BMv2 does not load, each field gets the number in the program.
    """
    negative = value < 0
    parts = []
    for field in reversed(key):
        padded = -(-field.bits // 8) * 8
        part = value % (1 << padded)
        value >>= padded
        if negative:
            value += field.signed and part >> padded - 1
            part %= 1 << field.bits
        parts.append(part)
    return tuple(reversed(parts))


def _parser_op(item: Mapping[str, Any], scope: Scope, where: str) -> list[ParserOp]:
    args = item["parameters"]
    match item["op"]:
        case "extract" if args[0]["type"] == "regular":
            return [Extract(scope.header(args[0]["value"]))]
        case "extract" if args[0]["type"] == "stack":
            return [ExtractNext(scope.stack(args[0]["value"]))]
        case "set":
            value = scope.expression(args[1])
            return [*_required(value), _assign(args[0], value, scope, where)]
        case "verify":
            return [Verify(scope.expression(args[0]), scope.expression(args[1]))]
        case "shift" | "advance":
            bits = Const(8 * int(args[0])) if item["op"] == "shift" else scope.expression(args[0])
            if not isinstance(bits, Const) or bits.value % 8:
                raise UnsupportedConstruct(
                    f"{where}: advances by a computed or odd number of bits; use whole bytes"
                )
            if bits.value < 0:
                raise BadProgram(f"{where}: advances by {bits.value // 8} bytes; compile the program again")
            return [Advance(bits.value // 8)]
        case "primitive":
            return list(load_primitive(args[0], scope, where))
    shown = args[0].get("type") if args and isinstance(args[0], dict) else ""
    raise UnsupportedConstruct(f"{where}: {item['op']} {shown}: not supported; leave it out of the program")
