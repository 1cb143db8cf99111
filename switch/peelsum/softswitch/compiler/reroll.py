"""Converts runs of statements that differ only by lane to loops.

p4c writes an action over 256 lanes as 768 statements. A run of statements of the same shape becomes a
`Repeat` if every field and register in it stays or advances by a constant step. Iterations run in the order
of the run, so the conversion is valid whatever the statements do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeAlias

from peelsum.softswitch.compiler.flow import Apply, Block, If, Leave, Repeat, Statement
from peelsum.softswitch.program.model import Advance, Extract, ExtractNext, Program, Require, Verify
from peelsum.softswitch.program.operations import (
    AddHeader,
    Assign,
    AssignChosen,
    CopyHeader,
    CopyStack,
    Element,
    Exit,
    Expr,
    FieldRef,
    Hash,
    Hit,
    Lookahead,
    Pop,
    Push,
    ReadRegister,
    RegisterElement,
    RemoveHeader,
    Target,
    WriteRegister,
    walk,
)

#: Fewest iterations worth a loop.
MIN_TURNS = 4
#: Longest loop body, in statements.
MAX_PERIOD = 16

#: Operations that may end the parser, which a `break` of a loop over lanes would not.
_ENDING = (Extract, ExtractNext, Require, Advance, Verify)

#: Names that can advance between iterations: (header, number of the field) or ("", number of the register).
Place: TypeAlias = tuple[str, int]


#: The fields and registers that loops step through: (first, last) per header, or "" for registers.
Spans: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]


class Roller:
    """Rolls the blocks of one program and records the spans that their loops step through."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._fields = {
            (header.name, part.name): number
            for header in program.headers.values()
            for number, part in enumerate(header.fields)
        }
        self._registers = {name: number for number, name in enumerate(program.registers)}
        self._register_list = list(program.registers.values())
        self._touched: dict[str, list[tuple[int, int]]] = {}

    def spans(self) -> Spans:
        """Return the spans that all loops so far step through; overlapping ones are merged."""
        return {owner: _joined(spans) for owner, spans in self._touched.items()}

    def roll(self, block: Block) -> Block:
        """Return the block with its runs, including nested ones, as loops."""
        inner = tuple(self._roll_inside(part) for part in block)
        shaped = [self._shape(part) for part in inner]
        numbers: dict[Hashable, int] = {}
        shapes = [numbers.setdefault(shape, len(numbers)) for shape, _ in shaped]
        places = [found for _, found in shaped]
        out: list[Statement] = []
        at = 0
        while at < len(inner):
            period, turns, steps = self._best_run(shapes, places, at)
            if turns >= MIN_TURNS:
                out.append(self._repeat(inner[at : at + period], turns, steps))
                at += period * turns
            else:
                out.append(inner[at])
                at += 1
        return tuple(out)

    def _roll_inside(self, part: Statement) -> Statement:
        if isinstance(part, If):
            return If(part.condition, self.roll(part.then), self.roll(part.orelse))
        if isinstance(part, Apply):
            return Apply(part.table, tuple((number, self.roll(arm)) for number, arm in part.arms))
        return part

    # --- finding runs -----------------------------------------------------------------------------

    def _shape(self, part: Statement) -> tuple[Hashable, tuple[Place, ...]]:
        """Return a statement's shape, without its places, and those places in order."""
        places: list[Place] = []
        shape = self._shape_of(part, places)
        return shape, tuple(places)

    def _shape_of(self, node: Any, places: list[Place]) -> Hashable:
        if isinstance(node, FieldRef) and (node.header, node.field) in self._fields:
            place = (node.header, self._fields[node.header, node.field])
            places.append(place)
            declared = self._program.headers[node.header].fields[place[1]]
            return "field", declared.bits, declared.signed
        if isinstance(node, (Apply, Leave, Exit, Hit, Repeat, *_ENDING)):
            return "unique", id(node)  # equal to no other shape: control flow is not rolled
        if isinstance(node, tuple):
            return tuple(self._shape_of(part, places) for part in node)
        if not is_dataclass(node):
            return node  # type: ignore[no-any-return]
        if isinstance(node, (ReadRegister, WriteRegister)) and isinstance(node.register, str):
            number = self._registers[node.register]
            places.append(("", number))
            declared_as = self._register_list[number]
            rest = [
                self._shape_of(getattr(node, name), places) for name in _names(node) if name != "register"
            ]
            return type(node).__name__, declared_as.bits, declared_as.size, *rest
        return type(node).__name__, *(self._shape_of(getattr(node, name), places) for name in _names(node))

    def _best_run(
        self, shapes: Sequence[int], places: Sequence[tuple[Place, ...]], at: int
    ) -> tuple[int, int, list[int]]:
        """Return the longest run from `at` on: its period, iterations, and the step of every place."""
        best: tuple[int, int, list[int]] = (1, 1, [])
        for period in range(1, MAX_PERIOD + 1):
            turns = 1
            while _alike(shapes, at, period, turns):
                turns += 1
            if turns < MIN_TURNS or period * turns <= best[0] * best[1]:
                continue
            rows = [
                [place for part in places[first : first + period] for place in part]
                for first in range(at, at + period * turns, period)
            ]
            steady, steps = self._steady(rows)
            if steady >= MIN_TURNS and period * steady > best[0] * best[1] and any(steps):
                best = (period, steady, steps)
        return best

    def _steady(self, rows: Sequence[Sequence[Place]]) -> tuple[int, list[int]]:
        """Return for how many iterations every place keeps its step, and the steps."""
        if any(one[0] != other[0] for one, other in zip(rows[0], rows[1], strict=True)):
            return 1, []
        steps = [other[1] - one[1] for one, other in zip(rows[0], rows[1], strict=True)]
        turns = 1
        for before, after in pairwise(rows):
            moved = zip(before, after, steps, strict=True)
            if any((one[0], one[1] + step) != other for one, other, step in moved):
                break
            turns += 1
        for (owner, first), step in zip(rows[0], steps, strict=True):
            if step and not self._uniform(owner, first, first + step * (turns - 1)):
                return 1, []
        return turns, steps

    def _uniform(self, owner: str, one: int, other: int) -> bool:
        """Return whether everything between two places has the same type, and can be one array."""
        low, high = min(one, other), max(one, other)
        if owner == "":
            kinds = {(part.bits, part.size) for part in self._register_list[low : high + 1]}
            return len(kinds) == 1
        header = self._program.headers[owner]
        widths = {part.bits for part in header.fields[low : high + 1]}
        whole = header.metadata or sum(part.bits for part in header.fields[:low]) % 8 == 0
        return (
            len(widths) == 1
            and (header.metadata or widths <= {8, 16, 32, 64})
            and max(widths) <= 64
            and whole
        )

    # --- building loops ---------------------------------------------------------------------------

    def _repeat(self, body: Block, turns: int, steps: Sequence[int]) -> Repeat:
        remaining = iter(steps)
        return Repeat(turns, tuple(self._stepping(part, turns, remaining) for part in body))

    def _stepping(self, node: Any, turns: int, steps: Iterator[int]) -> Any:
        """Replace every moving place in `node` by an element; consumes steps in the order of `_shape_of`."""
        if isinstance(node, FieldRef) and (node.header, node.field) in self._fields:
            number = self._fields[node.header, node.field]
            step = self._touch((node.header, number), turns, next(steps))
            return Element(node.header, number, step) if step else node
        if isinstance(node, tuple):
            return tuple(self._stepping(part, turns, steps) for part in node)
        if not is_dataclass(node) or isinstance(node, type):
            return node
        values: dict[str, Any] = {}
        if isinstance(node, (ReadRegister, WriteRegister)) and isinstance(node.register, str):
            number = self._registers[node.register]
            step = self._touch(("", number), turns, next(steps))
            values["register"] = RegisterElement(number, step) if step else node.register
        for name in _names(node):
            if name not in values:
                values[name] = self._stepping(getattr(node, name), turns, steps)
        return type(node)(**values)

    def _touch(self, place: Place, turns: int, step: int) -> int:
        if step:
            last = place[1] + step * (turns - 1)
            self._touched.setdefault(place[0], []).append((min(place[1], last), max(place[1], last)))
        return step


def _alike(shapes: Sequence[int], at: int, period: int, turns: int) -> bool:
    first = at + period * turns
    return first + period <= len(shapes) and all(
        shapes[at + offset] == shapes[first + offset] for offset in range(period)
    )


def _names(node: Any) -> Sequence[str]:
    kind: Any = type(node)
    return _names_of(kind)


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(part.name for part in fields(kind))


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


# --- what a loop changes --------------------------------------------------------------------------


def _written_places(program: Program, loop: Repeat) -> set[tuple[str, int]] | None:
    """Return the (header, field number) pairs that any iteration changes; None if they are unknown."""
    places: set[tuple[str, int]] = set()
    for node in walk(loop.body):
        if isinstance(node, (AddHeader, RemoveHeader, CopyHeader, Push, Pop, CopyStack)):
            return None
        if isinstance(node, AssignChosen):
            for target in node.targets:
                places |= _places_of(program, target, loop.count)
        if isinstance(node, (Assign, Hash, ReadRegister)):
            places |= _places_of(program, node.target, loop.count)
    return places


def _places_of(program: Program, target: Target, count: int) -> set[tuple[str, int]]:
    """Return the (header, field number) pairs that a field or element denotes over `count` iterations."""
    if isinstance(target, Element):
        return {(target.header, target.first + target.step * turn) for turn in range(count)}
    fields = program.headers[target.header].fields
    return {(target.header, number) for number, part in enumerate(fields) if part.name == target.field}


def is_steady(program: Program, value: Expr, loop: Repeat) -> bool:
    """Return whether an expression has the same value in every iteration of a loop."""
    written = _written_places(program, loop)
    if written is None:
        return False
    for node in walk(value):
        if isinstance(node, (Element, Lookahead)):
            return False
        if isinstance(node, FieldRef) and written & _places_of(program, node, 1):
            return False
    return True
