"""Small changes to Python source that tests should notice: found in the syntax tree, made in the text."""

from __future__ import annotations

import ast
import random
import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
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
#: Statements that are left out or swapped: those that have an effect beyond a name's value.
_EFFECTS = (ast.Expr, ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break, ast.Assign)


@dataclass(frozen=True)
class Mutant:
    """A change of the bytes `start` to `end` of a file, given as UTF-8. `kind` is for an even choice."""

    path: Path
    line: int
    kind: str
    start: int
    end: int
    text: str
    change: str

    def applied(self, source: bytes) -> bytes:
        """The file with the change in it."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(path: Path) -> list[Mutant]:
    """All that are made of a file, in its order; those that do not parse are left out."""
    source = path.read_bytes()
    found = _Finder(path, source).all()
    return [mutant for mutant in found if _parses(mutant.applied(source))]


def chosen(found: list[Mutant], count: int, seed: str) -> list[Mutant]:
    """Return `count` mutants, similar numbers of each kind, the same ones for a seed."""
    rng = random.Random(seed)
    kinds: dict[str, list[Mutant]] = {}
    for mutant in found:
        kinds.setdefault(mutant.kind, []).append(mutant)
    for of_a_kind in kinds.values():
        rng.shuffle(of_a_kind)
    taken: list[Mutant] = []
    while len(taken) < min(count, len(found)):
        for of_a_kind in kinds.values():
            if of_a_kind and len(taken) < count:
                taken.append(of_a_kind.pop())
    return taken


def _parses(source: bytes) -> bool:
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            compile(source, "<mutant>", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder:
    def __init__(self, path: Path, source: bytes) -> None:
        self._path, self._source = path, source
        self._begins = [0]
        for line in source.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))

    def all(self) -> list[Mutant]:
        found = [mutant for node in _code(ast.parse(self._source)) for mutant in self._of(node)]
        return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.kind, mutant.text))

    def _of(self, node: ast.AST) -> Iterator[Mutant]:
        yield from self._of_value(node)
        for body in ("body", "orelse", "finalbody"):
            statements = getattr(node, body, None)
            if isinstance(statements, list):
                yield from self._of_statements(statements)

    def _of_value(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Constant(value=bool(value)):
                yield self._replaced(node, "constant", ast.Constant(not value))
            case ast.Constant(value=int(value) | float(value)):
                yield self._replaced(node, "constant", ast.Constant(value + 1))
                yield self._replaced(node, "constant", ast.Constant(value - 1))
            case ast.Compare(ops=[only]) if type(only) in _COMPARED:
                yield self._changed(node, "comparison", ops=[_COMPARED[type(only)]()])
            case ast.BoolOp(op=op):
                yield self._changed(node, "and/or", op=ast.Or() if isinstance(op, ast.And) else ast.And())
            case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _COMPUTED:
                yield self._changed(node, "operator", op=_COMPUTED[type(op)]())
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield self._replaced(test, "condition", ast.UnaryOp(ast.Not(), test))
            case ast.Call(func=ast.Name(id="min" | "max")):
                return  # the order of their arguments means nothing
            case ast.Call(args=[first, second, *rest]) if ast.dump(first) != ast.dump(second):
                if not any(isinstance(one, ast.Starred) for one in (first, second)):
                    yield self._changed(node, "arguments", args=[second, first, *rest])

    def _of_statements(self, statements: list[ast.stmt]) -> Iterator[Mutant]:
        for number, statement in enumerate(statements):
            if not _has_effect(statement):
                continue
            yield self._replaced(statement, "removal", ast.Pass())
            after = statements[number + 1] if number + 1 < len(statements) else None
            if after is not None and _has_effect(after) and self._meet(statement, after):
                yield self._swapped(statement, after)

    def _meet(self, first: ast.stmt, second: ast.stmt) -> bool:
        """Return whether their order can matter: both call something, or one assigns what the other uses."""
        if any(isinstance(one, (ast.Raise, ast.Continue, ast.Break)) for one in (first, second)):
            return False
        if isinstance(first, ast.Expr) and isinstance(second, ast.Expr):
            return True
        pairs = ((first, second), (second, first))
        return any(self._text(target) in self._text(other) for one, other in pairs for target in _set(one))

    def _changed(self, node: ast.AST, kind: str, **fields: object) -> Mutant:
        other = deepcopy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return self._replaced(node, kind, other)

    def _replaced(self, node: ast.AST, kind: str, other: ast.AST) -> Mutant:
        text = ast.unparse(other)
        return self._mutant(
            node, node, kind, text if isinstance(node, ast.stmt) or kind == "constant" else f"({text})"
        )

    def _swapped(self, first: ast.stmt, second: ast.stmt) -> Mutant:
        between = self._source[self._span(first)[1] : self._span(second)[0]].decode()
        return self._mutant(first, second, "order", self._text(second) + between + self._text(first))

    def _mutant(self, first: ast.AST, last: ast.AST, kind: str, text: str) -> Mutant:
        start, end = self._span(first)[0], self._span(last)[1]
        before = " ".join(self._source[start:end].decode().split())
        change = f"{before} -> {' '.join(text.split())}"
        return Mutant(self._path, first.lineno, kind, start, end, text, change)  # type: ignore[attr-defined]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        last, end = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self._begins[line - 1] + column, self._begins[last - 1] + end

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()


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


def _has_effect(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Assign(targets=targets):
            return not all(isinstance(target, ast.Name) for target in targets)
    return isinstance(statement, _EFFECTS)


def _set(statement: ast.stmt) -> list[ast.expr]:
    """Return the targets of an assignment or a deletion."""
    match statement:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return targets
        case ast.AugAssign(target=target):
            return [target]
    return []
