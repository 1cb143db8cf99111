"""Converts control flow graphs (pipelines, parsers, jumps inside actions) to nested statements.

BMv2 JSON names each node's successors; generated code needs blocks. Pipelines and actions with loops are
refused. A parser may loop, e.g. over a header stack, and then becomes a state machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias

from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.model import (
    Conditional,
    Parser,
    ParserOp,
    Pipeline,
    Program,
    Table,
    successors,
)
from peelsum.softswitch.program.model import ParserState as State
from peelsum.softswitch.program.operations import (
    Action,
    Binary,
    Bool,
    Const,
    Exit,
    Expr,
    Hit,
    Jump,
    JumpIfZero,
    Param,
    Unary,
    walk,
)

# --- statements -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class If:
    """Run `then` if `condition` holds, else `orelse`."""

    condition: Expr
    then: Block
    orelse: Block = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """Look a packet up in `table` and run the arm of the action found. Arms: action number, statements."""

    table: str
    arms: tuple[tuple[int, Block], ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """End the pipeline if the packet executed an `Exit`."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Run `body` `count` times; its element references advance by their step in each iteration."""

    count: int
    body: Block


@dataclass(frozen=True, slots=True)
class Machine:
    """Run `states[0]`, then the state that each state's `Goto` names, until one ends the machine."""

    states: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Goto:
    """In a machine: continue with state number `state`; None ends it."""

    state: int | None


Statement: TypeAlias = If | Apply | Leave | Repeat | Machine | Goto | ParserOp
Block: TypeAlias = tuple[Statement, ...]

#: Largest factor by which a graph may grow when it is converted to blocks, which duplicates shared branches.
_GROWTH_LIMIT = 20


# --- graphs ---------------------------------------------------------------------------------------


class _Loop(UnsupportedConstruct):
    """A graph has a cycle."""


class _Graph:
    """An acyclic graph of nodes; None is the end. Finds the node where a node's branches meet again."""

    def __init__(self, name: str, start: Any, after: Callable[[Any], Sequence[Any]]) -> None:
        self.name = name
        self.after = after
        order = list(self._postorder(start))
        self._depth: dict[Any, int] = {None: 0}
        self._meet: dict[Any, Any] = {}
        for node in order:  # successors come before the node itself
            nexts = after(node)
            joined = nexts[0]
            for other in nexts[1:]:
                joined = self._common(joined, other)
            self._meet[node] = joined
            self._depth[node] = self._depth[joined] + 1
        self._room = _GROWTH_LIMIT * len(order) + 100

    def _postorder(self, start: Any) -> Iterator[Any]:
        if start is None:
            return
        open_nodes, done = {start}, set()
        stack = [(start, iter(self.after(start)))]
        while stack:
            node, successors = stack[-1]
            for follower in successors:
                if follower in open_nodes:
                    raise _Loop(f"{self.name}: {follower} leads back to itself; remove the loop")
                if follower is not None and follower not in done:
                    open_nodes.add(follower)
                    stack.append((follower, iter(self.after(follower))))
                    break
            else:
                stack.pop()
                open_nodes.discard(node)
                done.add(node)
                yield node

    def _common(self, one: Any, other: Any) -> Any:
        while one != other:
            if self._depth[one] >= self._depth[other]:
                one = self._meet[one]
            else:
                other = self._meet[other]
        return one

    def block(self, node: Any, stop: Any, write: Callable[[Any, Callable[[Any], Block]], Block]) -> Block:
        """Return the statements from `node` up to `stop`.

        `write(node, arm)` returns a node's statements; `arm(next)` returns a branch's.
        """
        out: list[Statement] = []
        while node is not None and node != stop:
            self._room -= 1
            if self._room < 0:
                raise UnsupportedConstruct(
                    f"{self.name}: control flow is too entangled; simplify its branches"
                )
            meet = self._meet[node]
            out += write(node, lambda first, meet=meet: self.block(first, meet, write))  # type: ignore[misc]
            node = meet
        return tuple(out)


# --- actions --------------------------------------------------------------------------------------


def inline(program: Program, table: Table, number: int) -> Block:
    """Return an action's statements for `table`: jumps become ifs, parameters are bound."""
    action = program.actions[number]
    block = _unjumped(action)
    if _never_changes(table):
        block = _with_params(block, lambda param: Const(_bound(param, table.default_params[param.index])))
    else:
        block = _with_params(block, lambda param: replace(param, table=table.name))
    return (*block, Leave()) if any(isinstance(part, Exit) for part in walk(block)) else block


def _bound(param: Param, value: int) -> int:
    """Return the number that a parameter of this value stands for."""
    return value - (1 << param.bits) if param.signed and value >> param.bits - 1 else value


def _never_changes(table: Table) -> bool:
    return not table.keys and table.const_default


def _unjumped(action: Action) -> Block:
    body = action.body

    def place(number: int) -> int | None:
        return number if number < len(body) else None

    def after(number: int) -> list[int | None]:
        step = body[number]
        if isinstance(step, Jump):
            return [place(step.to)]
        if isinstance(step, JumpIfZero):
            return [place(number + 1), place(step.to)]
        return [place(number + 1)]

    def write(number: int, arm: Callable[[Any], Block]) -> Block:
        step = body[number]
        if isinstance(step, Jump):
            return ()
        if isinstance(step, JumpIfZero):
            then, orelse = (arm(follower) for follower in after(number))
            return (If(Unary("d2b", step.condition), then, orelse),)
        return (step,)

    graph = _Graph(f"action {action.name}", place(0), after)
    return graph.block(place(0), None, write)


def _with_params(block: Block, bind: Callable[[Param], Expr]) -> Block:
    return tuple(
        rebuilt(part, lambda node: bind(node) if isinstance(node, Param) else None) for part in block
    )


def rebuilt(node: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a statement or expression with nodes replaced by `change(node)`, unless it is None."""
    changed = change(node)
    if changed is not None:
        return changed
    if isinstance(node, tuple):
        return tuple(rebuilt(part, change) for part in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    parts = {part.name: getattr(node, part.name) for part in fields(node)}
    return type(node)(**{name: rebuilt(value, change) for name, value in parts.items()})


# --- pipelines ------------------------------------------------------------------------------------


def pipeline_block(program: Program, pipeline: Pipeline) -> Block:
    """Return a pipeline as nested statements. Raises UnsupportedConstruct for loops."""

    def write(name: str, arm: Callable[[Any], Block]) -> Block:
        node = pipeline.nodes[name]
        if isinstance(node, Conditional):
            return _if(node.condition, arm(node.if_true), arm(node.if_false))
        return _table_block(program, node, arm)

    graph = _Graph(f"pipeline {pipeline.name}", pipeline.start, lambda name: successors(pipeline.nodes[name]))
    return graph.block(pipeline.start, None, write)


def _if(condition: Expr, then: Block, orelse: Block) -> Block:
    if not then and not orelse:
        return ()
    if not then:
        return (If(Unary("not", condition), orelse),)
    return (If(condition, then, orelse),)


def _table_block(program: Program, table: Table, arm: Callable[[Any], Block]) -> Block:
    number = table.default_action
    if _never_changes(table):
        after = table.next_by_hit[1] if table.next_by_hit else table.next_by_action.get(number)
        return (*inline(program, table, number), *arm(after))
    numbers = [*table.actions, *([] if number in table.actions else [number])]
    if table.next_by_hit is None:
        arms = tuple((n, (*inline(program, table, n), *arm(table.next_by_action.get(n)))) for n in numbers)
        return (Apply(table.name, arms),)
    applied = Apply(table.name, tuple((n, inline(program, table, n)) for n in numbers))
    return (applied, *_if(Hit(table.name), arm(table.next_by_hit[0]), arm(table.next_by_hit[1])))


# --- parsers --------------------------------------------------------------------------------------


def parser_block(parser: Parser) -> Block:
    """Return a parser as nested statements, or as a machine if it loops. Its operations may end it early."""

    def after(name: str) -> list[str | None]:
        transitions = parser.states[name].transitions
        followers = [part.next_state for part in transitions]
        return followers if transitions and transitions[-1].values is None else [*followers, None]

    def write(name: str, arm: Callable[[Any], Block]) -> Block:
        state = parser.states[name]
        return (*state.ops, *_select(state, arm))

    try:
        graph = _Graph("parser", parser.start, after)
    except _Loop:
        return (_machine(parser),)
    return graph.block(parser.start, None, write)


def _machine(parser: Parser) -> Machine:
    names = [parser.start, *(name for name in parser.states if name != parser.start)]
    number = {name: position for position, name in enumerate(names)}

    def state(name: str) -> Block:
        found = parser.states[name]
        selected = _select(found, lambda after: (Goto(None if after is None else number[after]),))
        ends = found.transitions and found.transitions[-1].values is None
        return (*found.ops, *(selected if ends else _or_end(selected)))

    return Machine(tuple(state(name) for name in names))


def _or_end(block: Block) -> Block:
    """Return the statements of a selection that ends the machine if no branch is selected."""
    if not block:
        return (Goto(None),)
    (part,) = block
    return (If(part.condition, part.then, _or_end(part.orelse)),) if isinstance(part, If) else block


def _select(state: State, arm: Callable[[Any], Block]) -> Block:
    chain: Block = ()
    for transition in reversed(state.transitions):
        then = arm(transition.next_state)
        if transition.values is None:
            chain = then
            continue
        condition = _matches(state.key, transition.values, transition.masks)
        if isinstance(condition, Bool):
            chain = then if condition.value else chain
        elif then or chain:
            chain = (If(condition, then, chain),)
    return chain


def _matches(key: Sequence[Expr], values: Sequence[int], masks: Sequence[int] | None) -> Expr:
    condition: Expr = Bool(True)
    for number, (part, value) in enumerate(zip(key, values, strict=True)):
        left: Expr = part
        if masks is not None:
            if masks[number] == 0:
                continue
            left, value = Binary("&", part, Const(masks[number])), value & masks[number]
        test = Binary("==", left, Const(value))
        condition = test if isinstance(condition, Bool) else Binary("and", condition, test)
    return condition
