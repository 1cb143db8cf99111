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
    FieldDeclaration,
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
    Assign,
    AssignIndexed,
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
    Primitive,
    ReadRegister,
    Recirculate,
    Resubmit,
    SetValidity,
    ShiftStack,
    WriteRegister,
    walk,
)
from peelsum.wire import DROP_PORT


def load_action(item: Mapping[str, Any], scope: Scope) -> Action:
    """Return one action. The targets of its jumps are indices of statements in its body.

    In BMv2 JSON they are indices of primitives, and a primitive may become several statements, or none.
    """
    params = tuple(
        ActionParam(part["name"], int(part["bitwidth"]), (int(item["id"]), index) in scope.signed)
        for index, part in enumerate(item["runtime_data"])
    )
    action_scope = replace(scope, params=params)
    primitives = [load_primitive(part, action_scope, f"action {item['name']}") for part in item["primitives"]]
    first_statements = list(accumulate(map(len, primitives), initial=0))
    body = tuple(
        replace(statement, to=first_statements[min(statement.to, len(primitives))])
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
            header = _header_name(args[0], scope, where)
            return _drop_statements(
                scope.field((header, "egress_spec")), scope.intrinsic(f"{header}.mcast_grp")
            )
        case "drop":
            spec = scope.field(("standard_metadata", "egress_spec"))
            return _drop_statements(spec, scope.intrinsic("intrinsic_metadata.mcast_grp"))
        case "no_op" | "log_msg":
            return ()
    return (_single_primitive(op, args, scope, where),)


def _drop_statements(egress_spec: FieldRef, group: FieldRef | None) -> tuple[Primitive, ...]:
    """Return the statements that drop a packet, unless later ones choose a port or a multicast group."""
    drop = Assign(egress_spec, Const(DROP_PORT))
    return (drop,) if group is None else (drop, Assign(group, Const(0)))


def _single_primitive(op: str, args: Sequence[Mapping[str, Any]], scope: Scope, where: str) -> Primitive:
    """Return the statement of a primitive that becomes exactly one."""
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
        case "add_header" | "remove_header":
            return SetValidity(_header_name(args[0], scope, where), op == "add_header")
        case "assign_header" | "copy_header":
            return CopyHeader(_header_name(args[0], scope, where), _header_name(args[1], scope, where))
        case "assign_header_stack":
            return CopyStack(scope.stack(args[0]["value"]), scope.stack(args[1]["value"]))
        case "push" | "pop":
            places = _constant(args[1], where)
            return ShiftStack(scope.stack(args[0]["value"]), places if op == "push" else -places)
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
    """Return an assignment to a field, or to a field of a stack element that is selected at run time."""
    operand = item
    while operand.get("type") == "expression":
        operand = operand["value"]
    if operand.get("op") == "access_field":
        targets, index = scope.element_fields(operand)
        return AssignIndexed(targets, index, value)
    return Assign(_target(item, scope, where), value)


def _hash(args: Sequence[Mapping[str, Any]], scope: Scope, where: str) -> Hash:
    """Return the statement that stores a hash. Raises UnsupportedConstruct for other algorithms."""
    calculation = scope.calculations[args[2]["value"]]
    if calculation["algo"] not in HASHES:
        raise UnsupportedConstruct(
            f"{where}: hash {calculation['algo']}: not supported; use {', '.join(HASHES)}"
        )
    inputs = scope.inputs(calculation, f"{where}: hash")
    base, size = scope.expression(args[1]), scope.expression(args[3])
    return Hash(_target(args[0], scope, where), calculation["algo"], inputs, base, size)


def _header_name(item: Mapping[str, Any], scope: Scope, where: str) -> str:
    if item["type"] != "header":
        raise UnsupportedConstruct(f"{where}: a header selected by {item['type']}; use a constant index")
    return scope.header(item["value"])


def _target(item: Mapping[str, Any], scope: Scope, where: str) -> FieldRef:
    """Return the field that a primitive assigns to. Raises UnsupportedConstruct for other targets."""
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
    states = {state["name"]: _parser_state(state, scope) for state in item["parse_states"]}
    if item["init_state"] not in states:
        raise BadProgram(f"parser {item['name']}: no state {item['init_state']}; compile the program again")
    return Parser(item["init_state"], states)


def _parser_state(item: Mapping[str, Any], scope: Scope) -> ParserState:
    where = f"parser state {item['name']}"
    ops = [op for part in item["parser_ops"] for op in _parser_operations(part, scope, where)]
    key_parts = [_key_expression(part, scope, where) for part in item["transition_key"]]
    # A parser compares the bits of a field, whether it is signed or not.
    key = tuple(
        Binary("&", part, Const((1 << field.bits) - 1)) if field.signed else part for part, field in key_parts
    )
    ops += _lookahead_checks(key)
    declared = [field for _, field in key_parts]
    transitions = tuple(_transition(part, declared, where) for part in item["transitions"])
    return ParserState(item["name"], tuple(ops), key, transitions)


def _key_expression(item: Mapping[str, Any], scope: Scope, where: str) -> tuple[Expr, FieldDeclaration]:
    """Return the expression of one part of a state's key, and a declaration with its width and sign."""
    kind, value = item["type"], item["value"]
    if kind == "field" and value[1] != VALID:
        return scope.field(value), scope.declared(scope.field(value))
    if kind == "stack_field":
        stack, name = value
        return scope.last(stack, name), scope.declared(scope.field((scope.stacks[stack][0], name)))
    if kind == "lookahead":
        lookahead = Lookahead(*map(int, value))
        return lookahead, FieldDeclaration(kind, lookahead.bits)
    raise UnsupportedConstruct(f"{where}: selects on {kind} {value}; select on fields")


def _lookahead_checks(expressions: Any) -> list[ParserOp]:
    """Return a check that the packet is long enough for the lookaheads in `expressions`, if there are any."""
    ends = [node.offset + node.bits for node in walk(expressions) if isinstance(node, Lookahead)]
    return [Require(max(ends))] if ends else []


def _transition(item: Mapping[str, Any], key: Sequence[FieldDeclaration], where: str) -> Transition:
    """Return a transition, with its value and mask split into one number per key field."""
    next_state = item["next_state"]
    # Compilers before version 2.6 of the format write no type.
    kind = item.get("type", "default" if item["value"] == "default" else "hexstr")
    if kind == "default":
        return Transition(None, None, next_state)
    if kind != "hexstr":
        raise UnsupportedConstruct(f"{where}: transition on a {kind}; use values")
    mask = None if item.get("mask") is None else _split(int(item["mask"], 16), key)
    return Transition(_split(int(item["value"], 16), key), mask, next_state)


def _split(value: int, key: Sequence[FieldDeclaration]) -> tuple[int, ...]:
    """Split the value of a transition into one number per field; each field takes whole bytes.

    p4c shifts each field to its place and adds them up, so a negative field borrows from the field before it.
    If the whole value is negative, which BMv2 refuses, this is undone: each field gets the program's number.
    """
    negative = value < 0
    field_values = []
    for field in reversed(key):
        padded = -(-field.bits // 8) * 8
        field_value = value % (1 << padded)
        value >>= padded
        if negative:
            value += field.signed and field_value >> padded - 1
            field_value %= 1 << field.bits
        field_values.append(field_value)
    return tuple(reversed(field_values))


def _parser_operations(item: Mapping[str, Any], scope: Scope, where: str) -> list[ParserOp]:
    """Return the operations of an item in a state: extract, set, verify, advance, or a primitive."""
    args = item["parameters"]
    match item["op"]:
        case "extract" if args[0]["type"] == "regular":
            return [Extract(scope.header(args[0]["value"]))]
        case "extract" if args[0]["type"] == "stack":
            return [ExtractNext(scope.stack(args[0]["value"]))]
        case "set":
            value = scope.expression(args[1])
            return [*_lookahead_checks(value), _assign(args[0], value, scope, where)]
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
    argument_type = args[0].get("type") if args and isinstance(args[0], dict) else ""
    raise UnsupportedConstruct(
        f"{where}: {item['op']} {argument_type}: not supported; leave it out of the program"
    )
