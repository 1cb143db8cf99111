"""Converts control flow graphs (pipelines, parsers, jumps inside actions) to nested statements.

BMv2 JSON names each node's successors; generated code needs blocks. Pipelines with loops are refused. A
parser or an action may loop, e.g. over a header stack, or have branches that share much code: then it becomes
a state machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program import model
from peelsum.softswitch.program import operations as ops

# --- statements -----------------------------------------------------------------------------------


class If(ops.SyntaxNode):
    """Run `then` if `condition` holds, else `orelse`."""

    condition: ops.Expr
    then: Block
    orelse: Block = ()


class Apply(ops.SyntaxNode):
    """Look a packet up in `table` and run the statements of the resulting action.

    arms: (action number, statements) of each action.
    """

    table: str
    arms: tuple[tuple[int, Block], ...]


class ExitCheck(ops.SyntaxNode):
    """End the pipeline if the packet executed an `Exit`."""


class Repeat(ops.SyntaxNode):
    """Run `body` `count` times; its FieldElements and RegisterElements advance by their step each time."""

    count: int
    body: Block


class StateMachine(ops.SyntaxNode):
    """Run `states[0]`, then the state that each state's `Goto` names, until one ends the machine.

    After too many states it ends, in a parser with ParserTimeout.
    """

    states: tuple[Block, ...]
    in_parser: bool


class Goto(ops.SyntaxNode):
    """In a state machine: continue with state number `state`; None ends the machine."""

    state: int | None


Statement: TypeAlias = If | Apply | ExitCheck | Repeat | StateMachine | Goto | model.ParserOp
Block: TypeAlias = tuple[Statement, ...]

#: Largest factor by which a graph may grow when it is converted to blocks, which duplicates shared branches.
_GROWTH_LIMIT = 20


# --- graphs ---------------------------------------------------------------------------------------


class _NotNestedError(UnsupportedConstruct):
    """A graph has a cycle, or would become too large as nested blocks."""


class _Graph:
    """An acyclic control flow graph; None is its end. Finds the node where the branches of a node merge."""

    def __init__(self, name: str, start: Any, after: Callable[[Any], Sequence[Any]]) -> None:
        self.name = name
        self.after = after
        order = list(self._postorder(start))
        self._depth: dict[Any, int] = {None: 0}
        self._merge_node: dict[Any, Any] = {}
        for node in order:  # successors come before the node itself
            successors = after(node)
            merge_node = successors[0]
            for other in successors[1:]:
                while merge_node != other:  # go on to the first node that the paths of both reach
                    if self._depth[merge_node] >= self._depth[other]:
                        merge_node = self._merge_node[merge_node]
                    else:
                        other = self._merge_node[other]
            self._merge_node[node] = merge_node
            self._depth[node] = self._depth[merge_node] + 1
        self._node_budget = _GROWTH_LIMIT * len(order) + 100

    def _postorder(self, start: Any) -> Iterator[Any]:
        """Yield each node after all its successors. Raises _NotNestedError if there is a cycle."""
        if start is None:
            return
        open_nodes, done = {start}, set()
        stack = [(start, iter(self.after(start)))]
        while stack:
            node, successors = stack[-1]
            for follower in successors:
                if follower in open_nodes:
                    raise _NotNestedError(f"{self.name}: {follower} leads back to itself; remove the loop")
                if follower is not None and follower not in done:
                    open_nodes.add(follower)
                    stack.append((follower, iter(self.after(follower))))
                    break
            else:
                stack.pop()
                open_nodes.discard(node)
                done.add(node)
                yield node

    def block(self, node: Any, stop: Any, write: Callable[[Any, Callable[[Any], Block]], Block]) -> Block:
        """Return the statements from `node` up to `stop`.

        `write(node, arm)` returns a node's statements; `arm(next)` returns a branch's.
        """
        out: list[Statement] = []
        while node is not None and node != stop:
            self._node_budget -= 1
            if self._node_budget < 0:
                raise _NotNestedError(
                    f"{self.name}: branches share too much code; simplify them, or make tables of them"
                )
            merge_node = self._merge_node[node]
            out += write(node, lambda first, merge_node=merge_node: self.block(first, merge_node, write))  # type: ignore[misc]
            node = merge_node
        return tuple(out)


# --- actions --------------------------------------------------------------------------------------


def inline(program: model.Program, table: model.TableDeclaration, number: int) -> Block:
    """Return an action's statements in `table`: jumps are replaced by ifs, and parameters are bound."""
    is_constant = not table.keys and table.const_default

    def bind(node: Any) -> ops.Expr | None:
        """Return what replaces a parameter; None for anything else."""
        if not isinstance(node, ops.Param):
            return None
        if not is_constant:
            return replace(node, table=table.name)
        # A signed parameter's argument is in two's complement.
        value = table.default_params[node.index]
        return ops.Const(value - (1 << node.bits) if node.signed and value >> node.bits - 1 else value)

    block = tuple(replace_nodes(part, bind) for part in _structured_body(program.actions[number]))
    return (*block, ExitCheck()) if any(isinstance(node, ops.Exit) for node in ops.walk(block)) else block


def _structured_body(action: ops.Action) -> Block:
    """Return an action's statements, with ifs in place of jumps."""
    body = action.body

    def index_or_end(number: int) -> int | None:
        return number if number < len(body) else None

    def following(number: int) -> list[int | None]:
        primitive = body[number]
        if isinstance(primitive, ops.Jump):
            return [index_or_end(primitive.to)]
        if isinstance(primitive, ops.JumpIfZero):
            return [index_or_end(number + 1), index_or_end(primitive.to)]
        return [index_or_end(number + 1)]

    def write(number: int, arm: Callable[[Any], Block]) -> Block:
        primitive = body[number]
        if isinstance(primitive, ops.Jump):
            return ()
        if isinstance(primitive, ops.JumpIfZero):
            then, orelse = (arm(follower) for follower in following(number))
            return (If(ops.Unary("d2b", primitive.condition), then, orelse),)
        return (primitive,)

    try:
        graph = _Graph(f"action {action.name}", index_or_end(0), following)
        return graph.block(index_or_end(0), None, write)
    except _NotNestedError:
        return (_action_machine(body),)


def _action_machine(body: Sequence[ops.Primitive]) -> StateMachine:
    """Return an action with loops as a state machine; a state begins where a jump ends or may lead."""
    jumps = [number for number, part in enumerate(body) if isinstance(part, (ops.Jump, ops.JumpIfZero))]
    targets = {part.to for part in body if isinstance(part, (ops.Jump, ops.JumpIfZero))}
    starts = sorted({0, len(body), *targets, *(number + 1 for number in jumps)})
    states: list[Block] = []

    def goto(number: int) -> Block:
        return (Goto(None if number == len(body) else starts.index(number)),)

    for start, end in pairwise(starts):
        match body[end - 1]:
            case ops.Jump(to):
                states.append((*body[start : end - 1], *goto(to)))
            case ops.JumpIfZero(condition, to):
                branch = If(ops.Unary("d2b", condition), goto(end), goto(to))
                states.append((*body[start : end - 1], branch))
            case _:
                states.append((*body[start:end], *goto(end)))
    return StateMachine(tuple(states), in_parser=False)


def replace_nodes(node: Any, replacement_of: Callable[[Any], Any]) -> Any:
    """Return a copy of a statement with each node replaced by `replacement_of(node)`, unless that is None."""
    replacement = replacement_of(node)
    if replacement is not None:
        return replacement
    if isinstance(node, tuple):
        return tuple(replace_nodes(part, replacement_of) for part in node)
    if not isinstance(node, ops.SyntaxNode):
        return node
    return type(node)(**{name: replace_nodes(part, replacement_of) for name, part in vars(node).items()})


# --- pipelines ------------------------------------------------------------------------------------


def pipeline_block(
    program: model.Program, pipeline: model.PipelineGraph, before: Callable[[Any], Block] = lambda node: ()
) -> Block:
    """Return a pipeline as nested statements, with those of `before` before each table and conditional.

    Raises UnsupportedConstruct for loops.
    """

    def write(name: str, arm: Callable[[Any], Block]) -> Block:
        node = pipeline.nodes[name]
        if isinstance(node, model.Conditional):
            return (*before(node), *_if(node.condition, arm(node.if_true), arm(node.if_false)))
        number = node.default_action
        if not node.keys and node.const_default:
            next_node = node.next_by_hit[1] if node.next_by_hit else node.next_by_action.get(number)
            return (*before(node), *inline(program, node, number), *arm(next_node))
        numbers = [*node.actions, *([] if number in node.actions else [number])]
        if node.next_by_hit is None:
            next_nodes = node.next_by_action
            arms = tuple((n, (*inline(program, node, n), *arm(next_nodes.get(n)))) for n in numbers)
            return (*before(node), Apply(name, arms))
        application = Apply(name, tuple((n, inline(program, node, n)) for n in numbers))
        return (*before(node), application, *_if(ops.Hit(name), *map(arm, node.next_by_hit)))

    graph = _Graph(
        f"pipeline {pipeline.name}", pipeline.start, lambda name: model.successors(pipeline.nodes[name])
    )
    return graph.block(pipeline.start, None, write)


def _if(condition: ops.Expr, then: Block, orelse: Block) -> Block:
    """Return an if without an empty `then`; nothing if both branches are empty."""
    if not then and not orelse:
        return ()
    if not then:
        return (If(ops.Unary("not", condition), orelse),)
    return (If(condition, then, orelse),)


# --- parsers --------------------------------------------------------------------------------------


def parser_block(parser: model.Parser) -> Block:
    """Return a parser as nested statements, or as a state machine if it has loops."""

    def following(name: str) -> list[str | None]:
        transitions = parser.states[name].transitions
        followers = [transition.next_state for transition in transitions]
        return followers if transitions and transitions[-1].is_default else [*followers, None]

    def write(name: str, arm: Callable[[Any], Block]) -> Block:
        state = parser.states[name]
        return (*state.ops, *_select(state, arm))

    try:
        graph = _Graph("parser", parser.start, following)
        return graph.block(parser.start, None, write)
    except _NotNestedError:  # a state machine, whose state 0 is the parser's start
        names = [parser.start, *(name for name in parser.states if name != parser.start)]
        number = {name: position for position, name in enumerate(names)}
        blocks = []
        for state in (parser.states[name] for name in names):
            selected = _select(state, lambda after: (Goto(None if after is None else number[after]),))
            has_default = state.transitions and state.transitions[-1].is_default
            blocks.append((*state.ops, *(selected if has_default else _end_if_unmatched(selected))))
        return (StateMachine(tuple(blocks), in_parser=True),)


def _end_if_unmatched(block: Block) -> Block:
    """Return a chain of ifs with a last branch that ends the state machine."""
    if not block:
        return (Goto(None),)
    (branch,) = block
    if not isinstance(branch, If):
        return block
    return (If(branch.condition, branch.then, _end_if_unmatched(branch.orelse)),)


def _select(state: model.ParserState, arm: Callable[[Any], Block]) -> Block:
    """Return a state's transitions, which test its key, as ifs; `arm` returns a target's statements."""
    chain: Block = ()
    for transition in reversed(state.transitions):
        then = arm(transition.next_state)
        if transition.is_default:
            chain = then
            continue
        condition: ops.Expr = transition.condition or ops.Bool(True)
        masks = transition.masks or [None] * len(state.key)
        tests = () if transition.values is None else zip(state.key, transition.values, masks, strict=True)
        for expression, value, mask in tests:
            if mask != 0:
                left = expression if mask is None else ops.Binary("&", expression, ops.Const(mask))
                test = ops.Binary("==", left, ops.Const(value if mask is None else value & mask))
                condition = test if condition == ops.Bool(True) else ops.Binary("and", condition, test)
        if isinstance(condition, ops.Bool):
            chain = then if condition.value else chain
        elif then or chain:
            chain = (If(condition, then, chain),)
    return chain
