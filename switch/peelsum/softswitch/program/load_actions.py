"""Converts the expressions, actions and parser states of BMv2 JSON to typed values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from itertools import accumulate
from typing import Any, TypeAlias

from peelsum.softswitch.errors import BadProgram, UnsupportedConstruct
from peelsum.softswitch.program import model
from peelsum.softswitch.program import operations as ops
from peelsum.wire import DROP_PORT

#: Most bits of a value, the same as p4c's limit. The compiler's time grows with their square.
MOST_BITS = 2048
#: Most bits of a varbit, which is only interpreted: as long as a jumbo frame.
MOST_VARBIT = 8 * 9216

#: An object of BMv2 JSON.
Json: TypeAlias = Mapping[str, Any]

VALID = "$valid$"
_UNARY = ("~", "not", "d2b", "b2d")
_ARITHMETIC = ("+", "-", "*", "&", "|", "^", "<<", ">>", "two_comp_mod", "usat_cast", "sat_cast")
_BINARY = (*_ARITHMETIC, "==", "!=", "<", "<=", ">", ">=", "and", "or")
#: Primitives of P4_14 that compute: the operator with which each combines its last two arguments.
_P4_14_OPERATORS = {
    "add": "+", "add_to_field": "+", "subtract": "-", "subtract_from_field": "-", "bit_and": "&",
    "bit_or": "|", "bit_xor": "^", "shift_left": "<<", "shift_right": ">>",
}  # fmt: skip


@contextmanager
def position_of(item: Json) -> Iterator[None]:
    """Add the position of a construct in the P4 source to the UnsupportedConstruct that the body raises."""
    try:
        yield
    except UnsupportedConstruct as error:
        source = item.get("source_info")
        if not source or " (line " in str(error):
            raise
        raise UnsupportedConstruct(f"{error} (line {source['line']} of {source['filename']})") from error


@dataclass(frozen=True)
class Scope:
    """Resolves the names of one program and, within an action, its parameters."""

    headers: Mapping[str, model.Header]
    stacks: Mapping[str, tuple[tuple[str, ...], ...]]
    unions: Mapping[str, tuple[str, ...]]
    members: Mapping[str, Sequence[str]]
    """By stack of unions, the names of a union's headers."""
    calculations: Mapping[str, Json]
    aliases: Mapping[str, ops.FieldRef]
    lengths: Mapping[str, Json]
    """By header or stack, the width of the varbit in JSON of P4_14 whose `extract` does not say it."""
    signed: frozenset[tuple[int, int]]
    """(action number, parameter index) of each parameter for which the program has a negative argument."""
    params: Sequence[ops.ActionParam] = ()
    where: str = ""
    """The action or parser state, for errors."""
    messages: list[model.Message] = attribute(default_factory=list)
    """What the program sends to the control plane; digests come first."""
    sources: dict[str | tuple[int, int], ops.Source] = attribute(default_factory=dict)
    """Where tables, conditions and statements are in the P4 source, as in `Program`."""

    def note_source(self, key: str | tuple[int, int], item: Json) -> None:
        """Store where a construct is in the P4 source, if the file says it."""
        match item.get("source_info"):
            case {"filename": str(file), "line": int(line), **others}:
                self.sources[key] = ops.Source(file, line, str(others.get("source_fragment", "")))

    def inputs(self, items: Sequence[Json], where: str) -> ops.Inputs:
        """Return the inputs of a calculation or digest: fields and constants."""
        inputs: list[tuple[ops.FieldRef | None, int, int]] = []
        for item in items:
            if item["type"] == "header":
                header = self.headers[item["value"]]
                refs = [ops.FieldRef(header.name, part.name) for part in header.fields]
                inputs += [(ref, 0, part.bits) for ref, part in zip(refs, header.fields, strict=True)]
            elif item["type"] == "field":
                field = self.field(item["value"])
                inputs.append((field, 0, self.declared(field).bits))
            elif item["type"] == "hexstr":
                bits = checked_bits(item["bitwidth"], where)
                inputs.append((None, bits_of(item["value"], bits), bits))
            else:
                raise UnsupportedConstruct(
                    f"{where}: {item['type']}: not supported; use fields, headers and constants"
                )
        return tuple(inputs)

    def header(self, name: str) -> str:
        """Return `name`. Raises BadProgram unless it is a header instance."""
        if name not in self.headers:
            raise BadProgram(f"header {name}: is not declared; compile the program again")
        return name

    def stack(self, name: str) -> str:
        """Return `name`. Raises BadProgram unless it is a header stack."""
        if name not in self.stacks:
            raise BadProgram(f"header stack {name}: is not declared; compile the program again")
        return name

    def last(self, stack: str, field: str, member: str = "") -> ops.Expr:
        """Return a field of the element of a stack that was filled last; of unions, a field of `member`."""
        headers = self.column(stack, self.member(stack, member))
        candidates = [self.field((header, field)) for header in headers]
        return _select_by_index(ops.StackCount(stack), 1, candidates, ops.Const(0))

    def column(self, stack: str, member: int = 0) -> list[str]:
        """Return the header that each element of a stack has in place `member`."""
        return [element[member] for element in self.stacks[self.stack(stack)]]

    def member(self, stack: str, name: str) -> int:
        """Return the place of the header called `name` in the unions of a stack; 0 for a header stack."""
        return self.members[self.stack(stack)].index(name) if name else 0

    def field(self, value: Sequence[str]) -> ops.FieldRef:
        """Return the field that a [header, field] pair names. Raises BadProgram if it is not declared."""
        header, name = value
        if self.headers[self.header(header)].field(name) is None:
            raise BadProgram(f"field {header}.{name}: is not declared; compile the program again")
        return ops.FieldRef(header, name)

    def declared(self, ref: ops.FieldRef) -> model.FieldDeclaration:
        """Return a field's declaration."""
        field = self.headers[ref.header].field(ref.field)
        assert field is not None  # `field` checked
        return field

    def expression(self, item: Json) -> ops.Expr:
        """Return the expression of a type-value object. Raises UnsupportedConstruct with its name."""
        kind = item.get("type")
        if kind is None and "op" in item:
            return self._operation(item)
        value = item["value"]
        match kind:
            case "expression":
                return self.expression(value)
            case "field":
                if value[1] == VALID:
                    is_name = isinstance(value[0], str)  # else it is a stack element selected at run time
                    valid = {
                        "op": "valid",
                        "right": {"type": "header", "value": value[0]} if is_name else value[0],
                    }
                    return ops.Unary("b2d", self._operation(valid))
                return self.field(value)
            case "stack_field":
                return self.last(*value)
            case "union_stack_field":
                return self.last(value[0], value[2], value[1])
            case "hexstr":
                return ops.Const(int(value, 16))
            case "bool":
                return ops.Bool(bool(value))
            case "runtime_data" | "local":
                if int(value) < 0:
                    raise BadProgram(f"{self.where}: parameter {value}; compile the program again")
                param = self.params[int(value)]
                return ops.Param(int(value), param.bits, signed=param.signed)
            case "lookahead":
                offset, bits = int(value[0]), int(value[1])
                if offset < 0 or bits < 1:
                    raise BadProgram(f"lookahead: {bits} bits after {offset}; compile the program again")
                return ops.Lookahead(offset, bits)
        raise UnsupportedConstruct(f"{kind} {value} in an expression: not supported; leave it out")

    def _operation(self, item: Json) -> ops.Expr:
        """Return the expression of an operator and its operands."""
        op = item["op"]
        if op in ("valid", "valid_union"):
            operand = _unwrapped(item["right"])
            if operand.get("type") == "header":
                return ops.IsValid(self.header(operand["value"]))
            if operand.get("type") == "header_union":
                return _any_valid(self.unions[operand["value"]])
            elements, index = self.element(operand)
            return _select_by_index(index, 0, [_any_valid(element) for element in elements], ops.Bool(False))
        if op == "last_stack_index":
            # Unsigned, and so the largest number if the stack is empty.
            last = ops.Binary("-", ops.StackCount(self.stack(item["right"]["value"])), ops.Const(1))
            return ops.Binary("&", last, ops.Const((1 << 64) - 1))
        if op == "size_stack":
            return ops.StackCount(self.stack(item["right"]["value"]))
        if op == "access_field":  # of a stack element whose index is computed at run time
            refs, index = self.element_fields(item)
            return _select_by_index(index, 0, refs, ops.Const(0))
        if op == "?":
            branches = (self.expression(item["left"]), self.expression(item["right"]))
            return ops.Ternary(self.expression(item["cond"]), *branches)
        if op in _UNARY:
            return ops.Unary(op, self.expression(item["right"]))
        if op in _BINARY:
            return ops.Binary(op, self.expression(item["left"]), self.expression(item["right"]))
        raise UnsupportedConstruct(f"operator {op}: not supported; leave it out of the program")

    def element(self, item: Json) -> tuple[list[tuple[str, ...]], ops.Expr]:
        """Return the headers of each element from which an operation selects, and the index.

        Raises UnsupportedConstruct for anything but an element of a stack, or a header of one of unions.
        """
        item = _unwrapped(item)
        match item:
            case {"type": "stack_field", "value": [stack, "last"]}:  # not a field, but the element itself
                last = ops.Binary("-", ops.StackCount(self.stack(stack)), ops.Const(1))
                return list(self.stacks[stack]), last
        if item.get("op") == "access_union_header":
            elements, index = self.element(item["left"])
            return [(element[int(item["right"])],) for element in elements], index
        if item.get("op") not in _SELECT_ELEMENT:
            raise UnsupportedConstruct(f"operator {item.get('op')}: use it on elements of stacks only")
        return list(self.stacks[self.stack(item["left"]["value"])]), self.expression(item["right"])

    def element_fields(self, item: Json) -> tuple[tuple[ops.FieldRef, ...], ops.Expr]:
        """Return the fields from which an `access_field` selects, one per stack element, and the index."""
        elements, index = self.element(item["left"])
        headers = [self.headers[header] for (header,) in elements]
        return tuple(ops.FieldRef(each.name, each.fields[int(item["right"])].name) for each in headers), index


#: Operators that select an element of a stack.
_SELECT_ELEMENT = ("dereference_header_stack", "dereference_stack", "dereference_union_stack")


def _any_valid(headers: Sequence[str]) -> ops.Expr:
    condition: ops.Expr = ops.IsValid(headers[0])
    for header in headers[1:]:
        condition = ops.Binary("or", condition, ops.IsValid(header))
    return condition


def bits_of(text: str, bits: int) -> int:
    """Return a constant that p4c wrote, as "-0x03"; a negative one in two's complement of `bits` bits."""
    number = int(text, 16)
    return number % (1 << bits) if number < 0 else number


def _unwrapped(item: Json) -> Json:
    while item.get("type") == "expression":
        item = item["value"]
    return item


def _select_by_index(
    index: ops.Expr, first: int, candidates: Sequence[ops.Expr], default: ops.Expr
) -> ops.Expr:
    """Return an expression with the value of `candidates[index - first]`, or of `default` out of range."""
    expression = default
    for number in range(len(candidates) - 1, -1, -1):
        expression = ops.Ternary(
            ops.Binary("==", index, ops.Const(first + number)), candidates[number], expression
        )
    return expression


def checked_bits(bits: Any, what: str, most: int = MOST_BITS) -> int:
    """Return a width in bits. Raises UnsupportedConstruct, which names `what` has it, if it is too large."""
    if not 1 <= int(bits) <= most:
        raise UnsupportedConstruct(f"{what}: {bits} bits; use 1 to {most}")
    return int(bits)


def load_action(item: Json, scope: Scope) -> ops.Action:
    """Return one action. The targets of its jumps are indices of statements in its body.

    In BMv2 JSON they are indices of primitives, and a primitive may become several statements, or none.
    """
    where = item.get("where", f"action {item['name']}")
    params = tuple(
        ops.ActionParam(
            str(part["name"]), checked_bits(part["bitwidth"], where), (int(item["id"]), index) in scope.signed
        )
        for index, part in enumerate(item["runtime_data"])
    )
    action_scope = replace(scope, params=params, where=where)
    primitives = []
    for part in item["primitives"]:
        with position_of(part):
            primitives.append(_primitive(part, action_scope))
    first_statements = list(accumulate(map(len, primitives), initial=0))
    body = tuple(
        replace(statement, to=first_statements[min(statement.to, len(primitives))])
        if isinstance(statement, (ops.Jump, ops.JumpIfZero))
        else statement
        for statements in primitives
        for statement in statements
    )
    number = int(item["id"])
    for first, statements, part in zip(first_statements, primitives, item["primitives"], strict=False):
        for statement_number in range(first, first + len(statements)):
            scope.note_source((number, statement_number), part)
    return ops.Action(number, str(item["name"]), params, body)


def _primitive(item: Json, scope: Scope) -> tuple[ops.Primitive, ...]:
    """Return a primitive's statements. Raises UnsupportedConstruct with its name and where it is used."""
    match item["op"]:
        case "no_op":
            return ()
        case "assign_union":
            target, source = (scope.unions[part["value"]] for part in item["parameters"])
            return tuple(map(ops.CopyHeader, target, source))
        case "mark_to_drop" | "drop" as op:
            # Drop the packet, unless later statements choose a port or a multicast group.
            metadata, group_metadata = "standard_metadata", "intrinsic_metadata"
            if op == "mark_to_drop":
                metadata = group_metadata = _header_name(item["parameters"][0], scope)
            spec = scope.field((metadata, "egress_spec"))
            group = model.intrinsic(scope.headers, scope.aliases, f"{group_metadata}.mcast_grp")
            drop = ops.Assign(spec, ops.Const(DROP_PORT))
            return (drop,) if group is None else (drop, ops.Assign(group, ops.Const(0)))
    return (_single_primitive(item["op"], item["parameters"], scope),)


def _single_primitive(op: str, args: Sequence[Json], scope: Scope) -> ops.Primitive:
    match op:
        case "assign" | "modify_field":
            return _assign(args[0], scope.expression(args[1]), scope)
        case _ if op in _P4_14_OPERATORS:
            left, right = map(scope.expression, args[-2:])
            return _assign(args[0], ops.Binary(_P4_14_OPERATORS[op], left, right), scope)
        case "register_read":
            return ops.ReadRegister(_target(args[0], scope), args[1]["value"], scope.expression(args[2]))
        case "register_write":
            return ops.WriteRegister(args[0]["value"], scope.expression(args[1]), scope.expression(args[2]))
        case "count":
            return ops.CountAt(args[0]["value"], scope.expression(args[1]))
        case "add_header" | "remove_header":
            return _with_header(args[0], scope, lambda header: ops.SetValidity(header, op == "add_header"))
        case "assign_header" | "copy_header":
            return _with_header(
                args[0],
                scope,
                lambda target: _with_header(args[1], scope, lambda source: ops.CopyHeader(target, source)),
            )
        case "assign_VL":
            return ops.AssignVarbit(_target(args[0], scope), _target(args[1], scope))
        case "assign_header_stack" | "assign_union_stack":
            return ops.CopyStack(scope.stack(args[0]["value"]), scope.stack(args[1]["value"]))
        case "push" | "pop":
            places = _constant(args[1], scope)
            return ops.ShiftStack(scope.stack(args[0]["value"]), places if op == "push" else -places)
        case "clone_ingress_pkt_to_egress" | "clone_egress_pkt_to_egress":
            return ops.Clone(scope.expression(args[0]), _constant(args[1], scope))
        case "resubmit":
            return ops.Resubmit(_constant(args[0], scope))
        case "recirculate":
            return ops.Recirculate(_constant(args[0], scope))
        case "modify_field_with_hash_based_offset":
            return _hash(args, scope)
        case "execute_meter":
            return ops.ExecuteMeter(_target(args[2], scope), args[0]["value"], scope.expression(args[1]))
        case "modify_field_rng_uniform":
            return ops.Random(_target(args[0], scope), scope.expression(args[1]), scope.expression(args[2]))
        case "truncate":
            return ops.Truncate(scope.expression(args[0]))
        case "generate_digest":
            return ops.SendDigest(_constant(args[1], scope))
        case "log_msg":
            values = tuple(_logged_value(part, scope) for part in args[1]["value"])
            return ops.Log(_message(model.Message("log", str(args[0]["value"]), values), scope))
        case "assert" | "assume":
            condition = ops.Unary("d2b", scope.expression(args[0]))
            message = model.Message("assert", f"{op} of {scope.where}", ())
            return ops.Assert(condition, _message(message, scope))
        case "exit":
            return ops.Exit()
        case "_jump":
            return ops.Jump(_constant(args[0], scope))
        case "_jump_if_zero":
            return ops.JumpIfZero(scope.expression(args[0]), _constant(args[1], scope))
    raise UnsupportedConstruct(f"{scope.where}: primitive {op}: not supported; leave it out of the program")


def _hash(args: Sequence[Json], scope: Scope) -> ops.Hash:
    target, base, calculation, size = args
    declared = scope.calculations[calculation["value"]]
    algorithm = hash_name(declared["algo"], scope.where)
    inputs = scope.inputs(declared["input"], f"{scope.where}: input of a hash")
    return ops.Hash(_target(target, scope), algorithm, inputs, scope.expression(base), scope.expression(size))


def hash_name(algorithm: str, where: str) -> str:
    """Return the name of a hash algorithm. Raises UnsupportedConstruct for one that is not in BMv2."""
    if algorithm not in ops.HASHES:
        raise UnsupportedConstruct(
            f"{where}: hash {algorithm}: not supported; use one of {', '.join(ops.HASHES)}"
        )
    return algorithm


def _logged_value(item: Json, scope: Scope) -> tuple[ops.Expr, int, bool]:
    """Return a value in a line of the log, with its width and sign."""
    value = scope.expression(item)
    if isinstance(value, ops.FieldRef):
        declared = scope.declared(value)
        return value, declared.bits, declared.signed
    return value, 64, False


def _message(message: model.Message, scope: Scope) -> int:
    scope.messages.append(message)
    return len(scope.messages) - 1


def _assign(item: Json, value: ops.Expr, scope: Scope) -> ops.Primitive:
    """Return an assignment to a field, or to a field of a stack element that is selected at run time."""
    operand = _unwrapped(item)
    if operand.get("op") == "access_field":
        targets, index = scope.element_fields(operand)
        return ops.RunIndexed(index, tuple(ops.Assign(target, value) for target in targets))
    return ops.Assign(_target(item, scope), value)


def _with_header(item: Json, scope: Scope, primitive: Callable[[str], ops.Primitive]) -> ops.Primitive:
    """Return `primitive(header)` for a header, which may be a stack element that is selected at run time."""
    if item["type"] == "expression":
        elements, index = scope.element(item)
        return ops.RunIndexed(index, tuple(primitive(header) for (header,) in elements))
    return primitive(_header_name(item, scope))


def _header_name(item: Json, scope: Scope) -> str:
    if item["type"] != "header":
        raise UnsupportedConstruct(
            f"{scope.where}: a header selected by {item['type']}; use a constant index"
        )
    return scope.header(item["value"])


def _target(item: Json, scope: Scope) -> ops.FieldRef:
    """Return the field that a primitive assigns to. Raises UnsupportedConstruct for other targets."""
    if item["type"] == "expression" and item["value"].get("type") == "field":
        item = item["value"]
    if item["type"] != "field":
        raise UnsupportedConstruct(f"{scope.where}: assigns to a {item['type']}; assign to single fields")
    if item["value"][1] == VALID:
        raise UnsupportedConstruct(
            f"{scope.where}: assigns to {item['value'][0]}.{VALID}; use setValid or setInvalid"
        )
    return scope.field(item["value"])


def _constant(item: Json, scope: Scope) -> int:
    if item["type"] != "hexstr":
        raise BadProgram(f"{scope.where}: a {item['type']} instead of a number; compile the program again")
    return int(item["value"], 16)


# --- parser ---------------------------------------------------------------------------------------


def load_parser(item: Json, scope: Scope) -> model.Parser:
    """Return a parser with all its states."""
    states = {}
    for part in item["parse_states"]:
        name = part["name"]
        state_scope = replace(scope, where=f"parser state {name}")
        operations: list[model.ParserOp] = []
        for op in part["parser_ops"]:
            with position_of(op):
                operations += _parser_operations(op, state_scope)
        key_parts = [_key_expression(key_part, state_scope) for key_part in part["transition_key"]]
        # A parser compares the bits of a field, whether it is signed or not.
        key = tuple(
            ops.Binary("&", value, ops.Const((1 << field.bits) - 1)) if field.signed else value
            for value, field in key_parts
        )
        operations += _lookahead_checks(key)
        declared = [field for _, field in key_parts]
        transitions = tuple(_transition(step, key, declared, state_scope) for step in part["transitions"])
        states[name] = model.ParserState(name, tuple(operations), key, transitions)
    if item["init_state"] not in states:
        raise BadProgram(f"parser {item['name']}: no state {item['init_state']}; compile the program again")
    return model.Parser(item["init_state"], states)


def _key_expression(item: Json, scope: Scope) -> tuple[ops.Expr, model.FieldDeclaration]:
    """Return the expression of one part of a state's key, and a declaration with its width and sign."""
    kind, value = item["type"], item["value"]
    if kind == "field" and value[1] != VALID:
        return scope.field(value), scope.declared(scope.field(value))
    if kind == "stack_field":
        stack, name = value
        return scope.last(stack, name), scope.declared(scope.field((scope.column(stack)[0], name)))
    if kind == "union_stack_field":
        stack, member, name = value
        column = scope.column(stack, scope.member(stack, member))
        return scope.last(stack, name, member), scope.declared(scope.field((column[0], name)))
    if kind == "lookahead":
        lookahead = ops.Lookahead(*map(int, value))
        return lookahead, model.FieldDeclaration(kind, lookahead.bits)
    if kind == "hexstr":  # of a variable whose value p4c knows; BMv2 does not load such a program
        return ops.Const(int(value, 16)), model.FieldDeclaration(kind, 4 * len(value.removeprefix("0x")))
    raise UnsupportedConstruct(f"{scope.where}: selects on {kind} {value}; select on fields")


def _lookahead_checks(expressions: Any) -> list[model.ParserOp]:
    """Return a check that the packet is long enough for the lookaheads in `expressions`, if there are any."""
    ends = [node.offset + node.bits for node in ops.walk(expressions) if isinstance(node, ops.Lookahead)]
    return [model.Require(max(ends))] if ends else []


def _transition(
    item: Json, key: Sequence[ops.Expr], declared: Sequence[model.FieldDeclaration], scope: Scope
) -> model.Transition:
    """Return a transition, with its value and mask split into one number per key field."""
    next_state = item["next_state"]
    # Compilers before version 2.6 of the format write no type.
    kind = item.get("type", "default" if item["value"] == "default" else "hexstr")
    if kind == "default":
        return model.Transition(None, None, next_state)
    mask = None if item.get("mask") is None else _split(int(item["mask"], 16), declared)
    if kind == "parse_vset":
        if mask is not None:
            raise UnsupportedConstruct(f"{scope.where}: value set {item['value']} with a mask; leave it out")
        number: ops.Expr = ops.Const(0)  # the key's fields side by side
        for part, field in zip(key, declared, strict=True):
            number = ops.Binary("|", ops.Binary("<<", number, ops.Const(field.bits)), part)
        return model.Transition(None, None, next_state, ops.InValueSet(item["value"], number))
    if kind != "hexstr":
        raise UnsupportedConstruct(f"{scope.where}: transition on a {kind}; use values")
    return model.Transition(_split(int(item["value"], 16), declared), mask, next_state)


def _split(value: int, key: Sequence[model.FieldDeclaration]) -> tuple[int, ...]:
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


def _parser_operations(item: Json, scope: Scope) -> list[model.ParserOp]:
    """Return the operations of an item in a state: extract, set, verify, advance, or a primitive."""
    args = item["parameters"]
    match item["op"]:
        case "extract" | "extract_VL":
            length = args[1] if item["op"] == "extract_VL" else scope.lengths.get(str(args[0]["value"]))
            bits = None if length is None else scope.expression(length)
            checks = [] if bits is None else _lookahead_checks(bits)
            match args[0]["type"], args[0]["value"]:
                case "regular", str() as header:
                    return [*checks, model.Extract(scope.header(header), bits)]
                case "stack", str() as stack:
                    return [*checks, model.ExtractNext(scope.stack(stack), 0, bits)]
                case "union_stack", [stack, member]:
                    return [*checks, model.ExtractNext(stack, scope.member(stack, member), bits)]
        case "set" if args[0]["type"] == "field" and args[0]["value"][1] == VALID:
            # Of a header that p4c of 2017 declares for a lookahead. In BMv2 it does not become valid either.
            return []
        case "set":
            value = scope.expression(args[1])
            return [*_lookahead_checks(value), _assign(args[0], value, scope)]
        case "verify":
            return [model.Verify(scope.expression(args[0]), scope.expression(args[1]))]
        case "shift" | "advance":
            bits = ops.Const(8 * int(args[0])) if item["op"] == "shift" else scope.expression(args[0])
            if isinstance(bits, ops.Const) and bits.value < 0:
                raise BadProgram(
                    f"{scope.where}: advances by {bits.value // 8} bytes; compile the program again"
                )
            return [*_lookahead_checks(bits), model.Advance(bits)]
        case "primitive":
            return list(_primitive(args[0], scope))
    argument_type = args[0].get("type") if args and isinstance(args[0], dict) else ""
    raise UnsupportedConstruct(
        f"{scope.where}: {item['op']} {argument_type}: not supported; leave it out of the program"
    )
