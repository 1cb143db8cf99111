"""Small changes to Python source that tests should notice, made in the syntax tree."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
}
_COMPARED |= {other: operator for operator, other in _COMPARED.items()}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_JUMPS = (ast.Raise, ast.Continue, ast.Break)
#: Kind of a change, the node whose fields change, their new values, and a text that shows the change.
Change = tuple[str, ast.AST, dict[str, Any], str]


@dataclass(frozen=True)
class Mutant:
    """The change of this number in a file. `kind` is for an even choice."""

    path: Path
    number: int
    line: int
    kind: str
    change: str

    def source(self) -> str:
        """Return the file with the change in it, without comments."""
        tree = ast.parse(self.path.read_bytes())
        _, node, fields, _ = next(islice(_changes(tree), self.number, None))
        vars(node).update(fields)
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants(path: Path) -> list[Mutant]:
    """Return all changes of a file, in its order."""
    changes = enumerate(_changes(ast.parse(path.read_bytes())))
    return [
        Mutant(path, number, getattr(node, "lineno", 0), kind, text)
        for number, (kind, node, _, text) in changes
    ]


def chosen(candidates: list[Mutant], count: int, seed: str) -> list[Mutant]:
    """Return `count` mutants, similar numbers of each kind, the same ones for a seed."""
    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in random.Random(seed).sample(candidates, len(candidates)):
        kinds[mutant.kind].append(mutant)
    ranked = sorted(
        (place, mutant.kind, mutant) for kind in kinds.values() for place, mutant in enumerate(kind)
    )
    return [mutant for _, _, mutant in ranked[:count]]


def _changes(tree: ast.AST) -> Iterator[Change]:
    for node in _code(tree):
        for kind, fields in _of_value(node):
            changed = copy(node)
            vars(changed).update(fields)
            shown = [getattr(one, "test", one) for one in (node, changed)]
            yield kind, node, fields, f"{ast.unparse(shown[0])} -> {ast.unparse(shown[1])}"
        for body in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, body, None), list):
                for kind, place, others, text in _of_statements(statements):
                    yield (
                        kind,
                        node,
                        {body: statements[:place] + others + statements[place + len(others) :]},
                        text,
                    )


def _of_value(node: ast.AST) -> Iterator[tuple[str, dict[str, Any]]]:
    match node:
        case ast.Constant(value=bool(value)):
            yield "constant", {"value": not value}
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", {"value": value + 1}
            yield "constant", {"value": value - 1}
        case ast.Compare(ops=[only]) if type(only) in _COMPARED:
            yield "comparison", {"ops": [_COMPARED[type(only)]()]}
        case ast.BoolOp(op=op):
            yield "and/or", {"op": ast.Or() if isinstance(op, ast.And) else ast.And()}
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _COMPUTED:
            yield "operator", {"op": _COMPUTED[type(op)]()}
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition", {"test": ast.UnaryOp(ast.Not(), test)}
        case ast.Call(func=ast.Name(id="min" | "max")):
            return  # the order of their arguments means nothing
        case ast.Call(args=[first, second, *rest]) if ast.dump(first) != ast.dump(second):
            if not any(isinstance(one, ast.Starred) for one in (first, second)):
                yield "arguments", {"args": [second, first, *rest]}


def _of_statements(statements: list[ast.stmt]) -> Iterator[tuple[str, int, list[ast.stmt], str]]:
    """Yield the kind, the first statement's place, those instead of as many, and a text."""
    for place, (statement, after) in enumerate(zip(statements, [*statements[1:], None], strict=False)):
        if _has_effect(statement):
            yield "removal", place, [ast.Pass()], f"{ast.unparse(statement)} -> pass"
            if after is not None and _has_effect(after) and _meet(statement, after):
                text = f"{ast.unparse(statement)}; {ast.unparse(after)} -> swapped"
                yield "order", place, [after, statement], text


def _has_effect(statement: ast.stmt) -> bool:
    """Return whether a statement does more than set a name."""
    match statement:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Assign(targets=targets):
            return not all(isinstance(target, ast.Name) for target in targets)
    return isinstance(statement, (ast.Expr, ast.AugAssign, ast.Delete, *_JUMPS))


def _meet(first: ast.stmt, second: ast.stmt) -> bool:
    """Return whether their order can matter: both call something, or one assigns what the other uses."""
    if isinstance(first, _JUMPS) or isinstance(second, _JUMPS):
        return False
    if isinstance(first, ast.Expr) and isinstance(second, ast.Expr):
        return True
    pairs = ((first, second), (second, first))
    return any(ast.unparse(target) in ast.unparse(other) for one, other in pairs for target in _targets(one))


def _targets(statement: ast.stmt) -> list[ast.expr]:
    """Return the targets of an assignment or a deletion."""
    match statement:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return targets
        case ast.AugAssign(target=target):
            return [target]
    return []


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes that are executed: no annotations, docstrings, f-strings or decorators."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr) and not _for_types(node):
                yield node
                yield from _code(node)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
