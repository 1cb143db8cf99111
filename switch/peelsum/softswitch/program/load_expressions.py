"""Converts the type-value objects of BMv2 JSON to expressions: fields, constants, operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peelsum.softswitch.errors import BadProgram, UnsupportedConstruct
from peelsum.softswitch.program.model import FieldDeclaration, Header, intrinsic
from peelsum.softswitch.program.operations import (
    ActionParam,
    Binary,
    Bool,
    Const,
    Expr,
    FieldRef,
    Inputs,
    IsValid,
    Lookahead,
    Param,
    StackCount,
    Ternary,
    Unary,
)

VALID = "$valid$"
_UNARY = frozenset({"~", "not", "d2b", "b2d"})
_BINARY = frozenset(
    [
        *("+", "-", "*", "&", "|", "^", "<<", ">>", "==", "!=", "<", "<=", ">", ">="),
        *("and", "or", "two_comp_mod", "usat_cast", "sat_cast"),
    ]
)


@dataclass(frozen=True)
class Scope:
    """Resolves the names of one program and, within an action, its parameters."""

    headers: Mapping[str, Header]
    stacks: Mapping[str, tuple[str, ...]]
    calculations: Mapping[str, Mapping[str, Any]]
    aliases: Mapping[str, FieldRef]
    signed: frozenset[tuple[int, int]]
    """(action number, parameter index) of each parameter for which the program has a negative argument."""
    params: Sequence[ActionParam] = ()

    def inputs(self, calculation: Mapping[str, Any], where: str) -> Inputs:
        """Return a calculation's inputs: fields and constants."""
        inputs: list[tuple[FieldRef | None, int, int]] = []
        for item in calculation["input"]:
            if item["type"] == "field":
                field = self.field(item["value"])
                inputs.append((field, 0, self.declared(field).bits))
            elif item["type"] == "hexstr":
                bits = int(item["bitwidth"])
                inputs.append((None, bits_of(item["value"], bits), bits))
            else:
                raise UnsupportedConstruct(
                    f"{where}: input {item['type']}: not supported; use fields and constants"
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

    def last(self, stack: str, field: str) -> Expr:
        """Return a field of the element of a stack that was filled last."""
        candidates = [self.field((header, field)) for header in self.stacks[self.stack(stack)]]
        return _select_by_index(StackCount(stack), 1, candidates, Const(0))

    def field(self, value: Sequence[str]) -> FieldRef:
        """Return the field that a [header, field] pair names. Raises BadProgram if it is not declared."""
        header, name = value
        if self.headers[self.header(header)].field(name) is None:
            raise BadProgram(f"field {header}.{name}: is not declared; compile the program again")
        return FieldRef(header, name)

    def declared(self, ref: FieldRef) -> FieldDeclaration:
        """Return a field's declaration."""
        field = self.headers[ref.header].field(ref.field)
        assert field is not None  # `field` checked
        return field

    def intrinsic(self, name: str) -> FieldRef | None:
        """Return the field that v1model calls `name`, or None."""
        return intrinsic(self.headers, self.aliases, name)

    def expression(self, item: Mapping[str, Any]) -> Expr:
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
                    return Unary("b2d", IsValid(self.header(value[0])))
                return self.field(value)
            case "stack_field":
                return self.last(*value)
            case "hexstr":
                return Const(int(value, 16))
            case "bool":
                return Bool(bool(value))
            case "runtime_data" | "local":
                param = self.params[int(value)]
                return Param(int(value), param.bits, signed=param.signed)
            case "lookahead":
                offset, bits = int(value[0]), int(value[1])
                if offset < 0 or bits < 1:
                    raise BadProgram(f"lookahead: {bits} bits after {offset}; compile the program again")
                return Lookahead(offset, bits)
        raise UnsupportedConstruct(f"{kind} {value} in an expression: not supported; leave it out")

    def _operation(self, item: Mapping[str, Any]) -> Expr:
        """Return the expression of an operator and its operands."""
        op = item["op"]
        if op == "valid":
            return self._validity(item["right"])
        if op == "last_stack_index":
            # Unsigned, and so the largest number if the stack is empty.
            last = Binary("-", StackCount(self.stack(item["right"]["value"])), Const(1))
            return Binary("&", last, Const((1 << 64) - 1))
        if op == "size_stack":
            return StackCount(self.stack(item["right"]["value"]))
        if op == "access_field":  # of a stack element whose index is computed at run time
            refs, index = self.element_fields(item)
            return _select_by_index(index, 0, refs, Const(0))
        if op == "?":
            branches = (self.expression(item["left"]), self.expression(item["right"]))
            return Ternary(self.expression(item["cond"]), *branches)
        if op in _UNARY:
            return Unary(op, self.expression(item["right"]))
        if op in _BINARY:
            return Binary(op, self.expression(item["left"]), self.expression(item["right"]))
        raise UnsupportedConstruct(f"operator {op}: not supported; leave it out of the program")

    def _validity(self, item: Mapping[str, Any]) -> Expr:
        """Return whether a header is valid, or the stack element that is selected at run time."""
        element = _stack_element(item)
        if element is None:
            return IsValid(self.header(item["value"]))
        validities = [IsValid(header) for header in self.stacks[self.stack(element["left"]["value"])]]
        return _select_by_index(self.expression(element["right"]), 0, validities, Bool(False))

    def element_fields(self, item: Mapping[str, Any]) -> tuple[tuple[FieldRef, ...], Expr]:
        """Return the fields from which an `access_field` selects, one per stack element, and the index."""
        element = _stack_element(item["left"])
        if element is None:
            raise UnsupportedConstruct("operator access_field: use it on elements of header stacks only")
        headers = [self.headers[name] for name in self.stacks[self.stack(element["left"]["value"])]]
        refs = tuple(FieldRef(header.name, header.fields[int(item["right"])].name) for header in headers)
        return refs, self.expression(element["right"])


def bits_of(text: str, bits: int) -> int:
    """Return a constant that p4c wrote, e.g.

    "-0x03"; a negative number in two's complement of `bits` bits.
    """
    number = int(text, 16)
    return number % (1 << bits) if number < 0 else number


def _stack_element(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the operation in `item` that selects an element of a header stack; None for anything else."""
    while item.get("type") == "expression":
        item = item["value"]
    is_element = item.get("op") in ("dereference_header_stack", "dereference_stack")
    return item if is_element else None


def _select_by_index(index: Expr, first: int, candidates: Sequence[Expr], default: Expr) -> Expr:
    """Return an expression with the value of `candidates[index - first]`, or of `default` out of range."""
    expression = default
    for number in range(len(candidates) - 1, -1, -1):
        expression = Ternary(Binary("==", index, Const(first + number)), candidates[number], expression)
    return expression
