"""Converts the type-value objects of BMv2 JSON to expressions: fields, constants, operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peelsum.softswitch.errors import BadProgram, UnsupportedConstruct
from peelsum.softswitch.program.model import Field, Header
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


class Scope:
    """Resolves the names of one program and, within an action, its parameters."""

    def __init__(
        self,
        headers: Mapping[str, Header],
        params: Sequence[ActionParam] = (),
        calculations: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.headers = headers
        self.params = params
        self.calculations = calculations or {}

    def within(self, params: Sequence[ActionParam]) -> Scope:
        """Return this scope with an action's parameters."""
        return Scope(self.headers, params, self.calculations)

    def inputs(self, calculation: Mapping[str, Any], where: str) -> Inputs:
        """Return a calculation's inputs: fields and constants."""
        inputs: list[tuple[FieldRef | None, int, int]] = []
        for part in calculation["input"]:
            if part["type"] == "field":
                ref = self.field(part["value"])
                inputs.append((ref, 0, self.bits(ref)))
            elif part["type"] == "hexstr":
                inputs.append((None, int(part["value"], 16), int(part["bitwidth"])))
            else:
                raise UnsupportedConstruct(
                    f"{where}: input {part['type']}: not supported; use fields and constants"
                )
        return tuple(inputs)

    def header(self, name: str) -> str:
        """Return `name`. Raises BadProgram unless it is a header instance."""
        if name not in self.headers:
            raise BadProgram(f"header {name}: is not declared; compile the program again")
        return name

    def field(self, value: Sequence[str]) -> FieldRef:
        """Return the field that a [header, field] pair names. Raises BadProgram if it is not declared."""
        header, name = value
        if self.headers[self.header(header)].field(name) is None:
            raise BadProgram(f"field {header}.{name}: is not declared; compile the program again")
        return FieldRef(header, name)

    def bits(self, ref: FieldRef) -> int:
        """Return a field's width."""
        return self._declared(ref).bits

    def _declared(self, ref: FieldRef) -> Field:
        found = self.headers[ref.header].field(ref.field)
        assert found is not None  # `field` checked
        return found

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
            case "hexstr":
                return Const(int(value, 16))
            case "bool":
                return Bool(bool(value))
            case "runtime_data" | "local":
                return Param(int(value), self.params[int(value)].bits)
            case "lookahead":
                offset, bits = int(value[0]), int(value[1])
                if offset < 0 or bits < 1:
                    raise BadProgram(f"lookahead: {bits} bits after {offset}; compile the program again")
                return Lookahead(offset, bits)
        raise UnsupportedConstruct(f"{kind} {value} in an expression: not supported; leave it out")

    def _operation(self, item: Mapping[str, Any]) -> Expr:
        op = item["op"]
        if op == "valid":
            return IsValid(self.header(item["right"]["value"]))
        if op == "?":
            branches = (self.expression(item["left"]), self.expression(item["right"]))
            return Ternary(self.expression(item["cond"]), *branches)
        if op in _UNARY:
            return Unary(op, self.expression(item["right"]))
        if op in _BINARY:
            return Binary(op, self.expression(item["left"]), self.expression(item["right"]))
        raise UnsupportedConstruct(f"operator {op}: not supported; leave it out of the program")
