"""Converts runs of statements that differ only by lane to loops.

p4c writes an action over 256 lanes as 768 statements. A run of statements of the same shape becomes a
`Repeat` if every field and register in it is constant or advances by a constant step. The loop executes the
same statements in the same order, so the conversion is always valid.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from peelsum.softswitch.compiler.flow import Apply, Block, ExitCheck, If, Repeat, StateMachine, Statement
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.model import Advance, Extract, ExtractNext, Program, Require, Verify

#: Fewest iterations worth a loop.
MIN_ITERATIONS = 4
#: Longest loop body, in statements.
MAX_PERIOD = 16

#: Operations that may end the parser by `break`, which would only leave a loop over lanes.
_PARSER_ENDS = (Extract, ExtractNext, Require, Advance, Verify)

#: Names that can advance between iterations: (header, number of the field) or ("", number of the register).
Place: TypeAlias = tuple[str, int]


#: The fields and registers that loops step through: (first, last) per header, or "" for registers.
Spans: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]


class Roller:
    """Converts runs in the blocks of one program to loops, and records the fields that loops step through."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._fields = {
            (header.name, field.name): number
            for header in program.headers.values()
            for number, field in enumerate(header.fields)
        }
        self._registers = {name: number for number, name in enumerate(program.registers)}
        self._register_list = list(program.registers.values())
        self._spans: dict[str, list[tuple[int, int]]] = {}

    def spans(self) -> Spans:
        """Return the fields and registers that loops step through; overlapping spans are merged."""
        merged: dict[str, list[tuple[int, int]]] = {}
        for owner, spans in self._spans.items():
            out = merged[owner] = []
            for low, high in sorted(spans):
                if out and low <= out[-1][1]:
                    out[-1] = (out[-1][0], max(out[-1][1], high))
                else:
                    out.append((low, high))
        return merged

    def roll(self, block: Block) -> Block:
        """Return a block in which loops replace its runs and those of nested blocks."""
        statements: list[Statement] = []
        for part in block:
            match part:
                case If(condition, then, orelse):
                    statements.append(If(condition, self.roll(then), self.roll(orelse)))
                case Apply(table, arms):
                    statements.append(Apply(table, tuple((number, self.roll(arm)) for number, arm in arms)))
                case _:
                    statements.append(part)
        numbers: dict[Hashable, int] = {}
        shapes, places = [], []
        for statement in statements:
            places_of_statement: list[Place] = []
            # A shape is what remains of a statement without its places.
            shape = self._shape_of(statement, places_of_statement)
            shapes.append(numbers.setdefault(shape, len(numbers)))
            places.append(tuple(places_of_statement))
        rolled: list[Statement] = []
        position = 0
        while position < len(statements):
            period, iterations, steps = self._best_run(shapes, places, position)
            if iterations >= MIN_ITERATIONS:
                body, remaining = statements[position : position + period], iter(steps)
                parts = tuple(self._with_steps(part, iterations, remaining) for part in body)
                rolled.append(Repeat(iterations, parts))
                position += period * iterations
            else:
                rolled.append(statements[position])
                position += 1
        return tuple(rolled)

    def _shape_of(self, node: Any, places: list[Place]) -> Hashable:
        """Return the shape of a statement or expression, and append its places to `places`."""
        if isinstance(node, ops.FieldRef) and (node.header, node.field) in self._fields:
            place = (node.header, self._fields[node.header, node.field])
            places.append(place)
            declared = self._program.headers[node.header].fields[place[1]]
            return "field", declared.bits, declared.signed
        if isinstance(node, (Apply, ExitCheck, ops.Exit, ops.Hit, Repeat, StateMachine, *_PARSER_ENDS)):
            return "unique", id(node)  # equal to no other shape: control flow is not rolled
        if isinstance(node, tuple):
            return tuple(self._shape_of(item, places) for item in node)
        if not isinstance(node, ops.SyntaxNode):
            return node  # type: ignore[no-any-return]
        shape: list[Hashable] = [type(node).__name__]
        for name, value in vars(node).items():
            if name == "register" and value in self._registers:
                number = self._registers[value]
                places.append(("", number))
                shape.append((self._register_list[number].bits, self._register_list[number].size))
            else:
                shape.append(self._shape_of(value, places))
        return tuple(shape)

    def _best_run(
        self, shapes: Sequence[int], places: Sequence[tuple[Place, ...]], start: int
    ) -> tuple[int, int, list[int]]:
        """Return the longest run from `start` on: its period, iterations, and the step of every place."""
        best: tuple[int, int, list[int]] = (1, 1, [])
        for period in range(1, MAX_PERIOD + 1):
            iterations, first_shapes = 1, shapes[start : start + period]
            while shapes[(at := start + period * iterations) : at + period] == first_shapes:
                iterations += 1
            if iterations < MIN_ITERATIONS or period * iterations <= best[0] * best[1]:
                continue
            rows = [
                [place for part in places[first : first + period] for place in part]
                for first in range(start, start + period * iterations, period)
            ]
            iterations_in_step, steps = self._constant_steps(rows)
            if (
                iterations_in_step >= MIN_ITERATIONS
                and period * iterations_in_step > best[0] * best[1]
                and any(steps)
            ):
                best = (period, iterations_in_step, steps)
        return best

    def _constant_steps(self, rows: Sequence[Sequence[Place]]) -> tuple[int, list[int]]:
        """Return for how many iterations every place advances by a constant step, and these steps."""
        if any(place[0] != other[0] for place, other in zip(rows[0], rows[1], strict=True)):
            return 1, []
        steps = [other[1] - place[1] for place, other in zip(rows[0], rows[1], strict=True)]
        iterations = 1
        for before, after in pairwise(rows):
            moved = zip(before, after, steps, strict=True)
            if any((place[0], place[1] + step) != other for place, other, step in moved):
                break
            iterations += 1
        for (owner, first), step in zip(rows[0], steps, strict=True):
            if not step:
                continue
            # The fields or registers from one place to the other must fit one array.
            low, high = sorted((first, first + step * (iterations - 1)))
            if owner == "":
                fits = len({(cell.bits, cell.size) for cell in self._register_list[low : high + 1]}) == 1
            else:
                header = self._program.headers[owner]
                (bits, *other_widths) = {field.bits for field in header.fields[low : high + 1]}
                is_aligned = bits in (8, 16, 32, 64) and sum(f.bits for f in header.fields[:low]) % 8 == 0
                fits = not other_widths and bits <= 64 and (header.metadata or is_aligned)
            if not fits:
                return 1, []
        return iterations, steps

    def _with_steps(self, node: Any, iterations: int, steps: Iterator[int]) -> Any:
        """Return `node` with elements of loops as its places; takes `steps` in the order of `_shape_of`."""
        if isinstance(node, ops.FieldRef) and (node.header, node.field) in self._fields:
            number = self._fields[node.header, node.field]
            step = self._record_span((node.header, number), iterations, next(steps))
            return ops.FieldElement(node.header, number, step) if step else node
        if isinstance(node, tuple):
            return tuple(self._with_steps(part, iterations, steps) for part in node)
        if not isinstance(node, ops.SyntaxNode):
            return node
        values: dict[str, Any] = {}
        for name, value in vars(node).items():
            if name == "register" and value in self._registers:
                number = self._registers[value]
                step = self._record_span(("", number), iterations, next(steps))
                values[name] = ops.RegisterElement(number, step) if step else value
            else:
                values[name] = self._with_steps(value, iterations, steps)
        return type(node)(**values)

    def _record_span(self, place: Place, iterations: int, step: int) -> int:
        """Record the places that a loop steps through, if it steps; return the step."""
        if step:
            last = place[1] + step * (iterations - 1)
            self._spans.setdefault(place[0], []).append((min(place[1], last), max(place[1], last)))
        return step


def _places_of(program: Program, target: ops.Target, count: int) -> set[tuple[str, int]]:
    """Return the (header, field number) pairs that a field or element denotes over `count` iterations."""
    if isinstance(target, ops.FieldElement):
        return {(target.header, target.first + target.step * iteration) for iteration in range(count)}
    fields = program.headers[target.header].fields
    return {(target.header, number) for number, part in enumerate(fields) if part.name == target.field}


def is_loop_invariant(program: Program, value: ops.Expr, loop: Repeat) -> bool:
    """Return whether an expression has the same value in every iteration of a loop."""
    written: set[Place] = set()
    for node in ops.walk(loop.body):
        match node:
            case ops.SetValidity() | ops.CopyHeader() | ops.ShiftStack() | ops.CopyStack():
                return False  # it may change any field
            case (
                ops.Assign(target)
                | ops.Hash(target)
                | ops.ReadRegister(target)
                | ops.ExecuteMeter(target)
                | ops.Random(target)
            ):
                written |= _places_of(program, target, loop.count)
    for node in ops.walk(value):
        if isinstance(node, (ops.FieldElement, ops.Lookahead)):
            return False
        if isinstance(node, ops.FieldRef) and written & _places_of(program, node, 1):
            return False
    return True
