"""Adds `Observe` statements to a program, so that the interpreter reports a packet's way through it.

Each parser state, operation, table, condition, action and statement is a point, reported just before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from peelsum.softswitch.program import model
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.load_actions import VALID


class Point(NamedTuple):
    """What a packet reaches: a part of the program. `name` is that of a state, table, action or pipeline."""

    kind: Literal["state", "select", "statement", "condition", "table", "action", "start", "end"]
    name: str
    node: Any
    source: ops.Source | None
    values: Mapping[str, Any]
    """Of a statement: what it works on, e.g. its register."""
    operands: tuple[str, ...]
    """The names of the numbers that are reported here."""


class Observation:
    """The points of a program, and the program with the statements that report them, except in pipelines."""

    def __init__(self, program: model.Program) -> None:
        self._original = program
        self.points: list[Point] = []
        self.program = replace(
            program,
            actions={number: self._action(action) for number, action in program.actions.items()},
            parser=replace(
                program.parser,
                states={name: self._state(state) for name, state in program.parser.states.items()},
            ),
        )

    def pipeline_point(self, kind: Literal["start", "end"], name: str) -> ops.Observe:
        """Return the statement that reports the start or the end of a pipeline."""
        return self._observe(kind, name)

    def node_point(self, node: model.TableDeclaration | model.Conditional) -> ops.Observe:
        """Return the statement that reports a table and the packet's key, or a condition and its outcome."""
        source = self._original.sources.get(node.name)
        if isinstance(node, model.Conditional):
            outcome = {"outcome": ops.Unary("b2d", node.condition)}
            return self._observe("condition", node.name, node, outcome, source)
        key = {str(number): _key_value(self._original, part) for number, part in enumerate(node.keys)}
        return self._observe("table", node.name, node, key, source)

    def _observe(
        self,
        kind: Any,
        name: str,
        node: Any = None,
        operands: Mapping[str, ops.Expr] | None = None,
        source: ops.Source | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> ops.Observe:
        """Return the statement that reports a new point."""
        operands = operands or {}
        self.points.append(Point(kind, name, node, source, values or {}, tuple(operands)))
        return ops.Observe(len(self.points) - 1, tuple(operands.values()))

    def _statement(self, node: Any, source: ops.Source | None = None) -> ops.Observe:
        values, operands = _described(self._original, node)
        return self._observe("statement", type(node).__name__, node, operands, source, values)

    def _state(self, state: model.ParserState) -> model.ParserState:
        operations: list[model.ParserOp] = [self._observe("state", state.name)]
        for operation in state.ops:
            if not isinstance(operation, model.Require):
                operations.append(self._statement(operation))
            operations.append(operation)
        key = {str(number): part for number, part in enumerate(state.key)}
        operations.append(self._observe("select", state.name, state, key))
        return replace(state, ops=tuple(operations))

    def _action(self, action: ops.Action) -> ops.Action:
        params = {
            part.name: ops.Param(number, part.bits, "", part.signed)
            for number, part in enumerate(action.params)
        }
        body: list[ops.Primitive] = [self._observe("action", action.name, action, params)]
        for index, statement in enumerate(action.body):
            body.append(self._statement(statement, self._original.sources.get((action.number, index))))
            if isinstance(statement, (ops.Jump, ops.JumpIfZero)):
                statement = replace(statement, to=1 + 2 * statement.to)
            body.append(statement)
        return replace(action, body=tuple(body))


def _key_value(program: model.Program, key: model.TableKey) -> ops.Expr:
    """Return a packet's value for a field of a key; fields of invalid headers are 0."""
    header, is_valid = key.target.header, ops.IsValid(key.target.header)
    if key.target.field == VALID:
        return ops.Unary("b2d", is_valid)
    masked: ops.Expr = key.target
    if key.mask is not None:
        masked = ops.Binary("&", masked, ops.Const(key.mask))
    return masked if program.headers[header].metadata else ops.Ternary(is_valid, masked, ops.Const(0))


def _described(program: model.Program, node: Any) -> tuple[dict[str, Any], dict[str, ops.Expr]]:
    """Return what a statement works on, and the expressions whose values say what it does."""
    match node:
        case ops.ReadRegister(register=str(name), index=index):
            return {"register": name}, {"index": index}
        case ops.WriteRegister(register=str(name), index=index):
            return {"register": name}, {"index": index}
        case ops.CountAt(name, index):
            return {"counter": name}, {"index": index}
        case ops.ExecuteMeter(_, name, index):
            return {"meter": name}, {"index": index}
        case ops.Clone(session):
            return {}, {"session": ops.Binary("&", session, ops.Const((1 << 15) - 1))}
        case ops.Truncate(length):
            return {}, {"length": length}
        case ops.JumpIfZero(condition):
            return {}, {"outcome": condition}
        case ops.Assert(condition) | model.Verify(condition):
            return {}, {"outcome": ops.Unary("b2d", condition)}
        case ops.SendDigest(number):
            return {"digest": program.messages[number].text}, {}
        case ops.Log(number):
            message = program.messages[number]
            return {"text": message.text}, {str(n): part[0] for n, part in enumerate(message.values)}
    return {}, {}
