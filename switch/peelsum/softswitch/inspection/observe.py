"""Adds `Observe` statements to a program, so that the interpreter reports a packet's way through it.

Each parser state, operation, table, condition, action and statement is a point, observed just before it runs.
In a pipeline, each point is an added table without a key; its only action reports the point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from peelsum.softswitch.program import model
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.load_actions import VALID


class Point(NamedTuple):
    """What a packet reaches: a part of the program. `name` is that of a state, table, action or pipeline."""

    kind: Literal["state", "select", "statement", "condition", "table", "action", "start", "end"]
    name: str
    node: Any = None
    source: ops.Source | None = None


class ObservedProgram:
    """A program with `Observe` statements, and the points that they report."""

    def __init__(self, program: model.Program) -> None:
        self.original = program
        self.points: list[Point] = []
        self._actions = {number: self._action(action) for number, action in program.actions.items()}
        states = {name: self._state(state) for name, state in program.parser.states.items()}
        pipelines = [
            self._pipeline(replace(graph, name=name))  # a missing pipeline has another name
            for name, graph in (("ingress", program.ingress), ("egress", program.egress))
        ]
        self.program = replace(
            program,
            parser=replace(program.parser, states=states),
            ingress=pipelines[0],
            egress=pipelines[1],
            actions=self._actions,
        )

    def _observe(self, point: Point, operands: Iterable[ops.Expr] = ()) -> ops.Observe:
        """Return the statement that reports a new point. The parser's states make all fields readable."""
        self.points.append(point)
        headers = self.original.headers.values() if point.kind == "state" else ()
        fields = (ops.FieldRef(header.name, field.name) for header in headers for field in header.fields)
        return ops.Observe(len(self.points) - 1, tuple(operands), tuple(fields))

    def _statement(self, node: Any, source: ops.Source | None = None) -> ops.Observe:
        return self._observe(Point("statement", type(node).__name__, node, source), _operands(self, node))

    def _state(self, state: model.ParserState) -> model.ParserState:
        operations: list[model.ParserOp] = [self._observe(Point("state", state.name))]
        for operation in state.ops:
            if not isinstance(operation, model.Require):
                operations.append(self._statement(operation))
            operations.append(operation)
        operations.append(self._observe(Point("select", state.name, state), state.key))
        return replace(state, ops=tuple(operations))

    def _action(self, action: ops.Action) -> ops.Action:
        params = (ops.Param(index, part.bits, "", part.signed) for index, part in enumerate(action.params))
        body: list[ops.Primitive] = [self._observe(Point("action", action.name, action), params)]
        for index, statement in enumerate(action.body):
            body.append(self._statement(statement, self.original.sources.get((action.number, index))))
            if isinstance(statement, (ops.Jump, ops.JumpIfZero)):
                statement = replace(statement, to=1 + 2 * statement.to)
            body.append(statement)
        return replace(action, body=tuple(body))

    def _pipeline(self, graph: model.PipelineGraph) -> model.PipelineGraph:
        """Return a pipeline in which each node is observed, and its start and end."""
        nodes: dict[str, model.TableDeclaration | model.Conditional] = {}
        end = f"{graph.name} end"

        def observe(point: Point, operands: Iterable[ops.Expr], next_node: str | None, name: str) -> str:
            number = max(self._actions, default=0) + 1
            self._actions[number] = ops.Action(number, name, (), (self._observe(point, operands),))
            nodes[name] = model.TableDeclaration(
                name, (), 0, (number,), number, (), True, None, {number: next_node}, None
            )
            return name

        def before(name: str | None) -> str:
            return end if name is None else f"{name} observed"

        observe(Point("end", graph.name), (), None, end)
        for name, node in graph.nodes.items():
            source = self.original.sources.get(name)
            if isinstance(node, model.Conditional):
                operands: list[ops.Expr] = [ops.Unary("b2d", node.condition)]
                observe(Point("condition", name, node, source), operands, name, before(name))
                nodes[name] = replace(node, if_true=before(node.if_true), if_false=before(node.if_false))
                continue
            operands = [_key_value(self.original, key) for key in node.keys]
            observe(Point("table", name, node, source), operands, name, before(name))
            numbers = {*node.actions, node.default_action}
            hits = node.next_by_hit
            nodes[name] = replace(
                node,
                next_by_action={number: before(node.next_by_action.get(number)) for number in numbers},
                next_by_hit=None if hits is None else (before(hits[0]), before(hits[1])),
            )
        start = observe(Point("start", graph.name), (), before(graph.start), f"{graph.name} start")
        return replace(graph, start=start, nodes=nodes)


def _key_value(program: model.Program, key: model.TableKey) -> ops.Expr:
    """Return a packet's value for a field of a key; fields of invalid headers are 0."""
    header, is_valid = key.target.header, ops.IsValid(key.target.header)
    if key.target.field == VALID:
        return ops.Unary("b2d", is_valid)
    masked: ops.Expr = key.target
    if key.mask is not None:
        masked = ops.Binary("&", masked, ops.Const(key.mask))
    return masked if program.headers[header].metadata else ops.Ternary(is_valid, masked, ops.Const(0))


_UNARY = {"not": "!", "~": "~", "d2b": "", "b2d": ""}
_NAMES = {"and": "&&", "or": "||"}


def field_name(header: str, field: str) -> str:
    """Return what a user calls a field. p4c collects metadata in a header called scalars."""
    if field == VALID:
        return f"{header}.isValid()"
    return field if header == "scalars" else f"{header}.{field}"


def expression_text(expression: ops.Expr) -> str:
    """Return an expression as in P4, without the brackets around all of it."""
    match expression:
        case ops.FieldRef(header, field):
            return field_name(header, field)
        case ops.IsValid(header):
            return field_name(header, VALID)
        case ops.Const(value) | ops.Bool(value):
            return str(value).lower() if isinstance(value, bool) else str(value)
        case ops.Hit(table):
            return f"{table}.hit"
        case ops.InValueSet(value_set):
            return f"in {value_set}"
        case ops.Lookahead(offset, bits):
            return f"lookahead[{offset}:{offset + bits - 1}]"
        case ops.StackCount(stack):
            return f"{stack}.nextIndex"
        case ops.Unary(op, operand):
            text = expression_text(operand)
            return f"{_UNARY[op]}({text})" if _UNARY[op] and " " in text else _UNARY[op] + text
        case ops.Ternary(ops.Binary("==", ops.StackCount(stack)), ops.FieldRef(_, field)):
            return f"{stack}.last.{field}"
        case ops.Ternary(condition, left, right):
            return " ".join(
                (expression_text(condition), "?", expression_text(left), ":", expression_text(right))
            )
        case ops.Binary(op, left, right):
            texts = (f"({text})" if " " in text else text for text in map(expression_text, (left, right)))
            return f" {_NAMES.get(op, op)} ".join(texts)
    return type(expression).__name__


def _operands(observed: ObservedProgram, node: Any) -> Sequence[ops.Expr]:
    """Return the expressions of a statement whose values say what it does."""
    match node:
        case ops.ReadRegister(index=index) | ops.WriteRegister(index=index) | ops.CountAt(index=index):
            return [index]
        case ops.ExecuteMeter(index=operand) | ops.Clone(session=operand) | ops.Truncate(length=operand):
            return [operand]
        case ops.JumpIfZero(condition=operand):
            return [operand]
        case ops.Assert(condition=condition) | model.Verify(condition=condition):
            return [ops.Unary("b2d", condition)]
        case ops.Log(number):
            return [value for value, _, _ in observed.original.messages[number].values]
    return []
