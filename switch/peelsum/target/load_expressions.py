"""Type-value objects of BMv2 JSON -> expressions: fields, constants, operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peelsum.target.errors import BadProgram, UnsupportedConstruct
from peelsum.target.operations import (
    ActionParam,
    Binary,
    Bool,
    Const,
    Expr,
    FieldRef,
    IsValid,
    Lookahead,
    Param,
    Ternary,
    Unary,
)
from peelsum.target.program import Field, Header

VALID = "$valid$"
_UNARY = frozenset({"~", "not", "d2b", "b2d"})
_BINARY = frozenset(
    [
        *("+", "-", "*", "&", "|", "^", "<<", ">>", "==", "!=", "<", "<=", ">", ">="),
        *("and", "or", "two_comp_mod", "usat_cast", "sat_cast"),
    ]
)


class Scope:
    """What names mean in one program, and within an action what its parameters are."""

    def __init__(self, headers: Mapping[str, Header], params: Sequence[ActionParam] = ()) -> None:
        self.headers = headers
        self.params = params

    def within(self, params: Sequence[ActionParam]) -> Scope:
        """The same names inside an action."""
        return Scope(self.headers, params)

    def header(self, name: str) -> str:
        """`name`, which must be a header instance."""
        if name not in self.headers:
            raise BadProgram(f"header {name}: is not declared; compile the program again")
        return name

    def field(self, value: Sequence[str]) -> FieldRef:
        """The field that a [header, field] pair names."""
        header, name = value
        if self.headers[self.header(header)].field(name) is None:
            raise BadProgram(f"field {header}.{name}: is not declared; compile the program again")
        return FieldRef(header, name)

    def bits(self, ref: FieldRef) -> int:
        """Width of a field."""
        return self._declared(ref).bits

    def _declared(self, ref: FieldRef) -> Field:
        found = self.headers[ref.header].field(ref.field)
        assert found is not None  # `field` checked
        return found

    def expression(self, item: Mapping[str, Any]) -> Expr:
        """The expression that a type-value object stands for. Raises UnsupportedConstruct by its name."""
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
                return Lookahead(int(value[0]), int(value[1]))
        raise UnsupportedConstruct(f"{kind} {value} in an expression: this target has none; leave it out")

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
        raise UnsupportedConstruct(f"operator {op}: this target has none; leave it out of the program")
