"""Sees through the temporaries that p4c gives each lane, where all lanes would hold the same.

p4c computes a register's index anew for every lane, into a variable of its own. In a loop that makes an
array that is written once and read next to it; putting the value in its place leaves an index that all turns
share, which is then found and checked once. Only metadata that nothing else looks at is replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from peelsum.softswitch.compiler.flow import Block, Repeat, is_steady, places_of, rebuilt
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.program.operations import (
    Assign,
    Binary,
    Const,
    Element,
    Expr,
    FieldRef,
    Hash,
    ReadRegister,
    walk,
)


class _Uses:
    """Which fields code, tables and checksums name, and how often loops name elements."""

    def __init__(self, program: Program, blocks: Sequence[Block]) -> None:
        self.loops: list[Repeat] = []
        self._refs = {key.target for table in program.tables.values() for key in table.keys}
        self._refs |= {ref for item in program.checksums for ref, _, _ in item.inputs if ref is not None}
        self._refs |= {ref for kept in program.field_lists.values() for ref in kept}
        self.elements: Counter[Element] = Counter()
        for block in blocks:
            for node in walk(block):
                if isinstance(node, Repeat):
                    self.loops.append(node)
                elif isinstance(node, FieldRef):
                    self._refs.add(node)
                elif isinstance(node, Element):
                    self.elements[node] += 1

    def named(self, refs: Iterable[FieldRef]) -> bool:
        """Whether one of some fields is named as such, in or outside loops."""
        return not self._refs.isdisjoint(refs)

    def but(self, target: Element) -> Iterator[tuple[Element, Repeat]]:
        """Every other element, with the loop that it is in."""
        for loop in self.loops:
            for node in {node for node in walk(loop) if isinstance(node, Element)} - {target}:
                yield node, loop


def see_through(program: Program, blocks: Sequence[Block]) -> list[Block]:
    """The blocks with such temporaries replaced by what they hold."""
    uses = _Uses(program, blocks)
    return [
        tuple(
            rebuilt(part, lambda node: _settled(program, uses, node) if isinstance(node, Repeat) else None)
            for part in block
        )
        for block in blocks
    ]


def _settled(program: Program, uses: _Uses, loop: Repeat) -> Repeat:
    body = loop.body
    for step in loop.body:
        if isinstance(step, Assign) and isinstance(step.target, Element):
            held = _held(program, uses, loop, step.target, step.value)
            if held is not None:
                body = _replaced(body, step.target, held)
    return Repeat(loop.count, body)


def _held(program: Program, uses: _Uses, loop: Repeat, target: Element, value: Expr) -> Expr | None:
    """What `target` holds whenever it is read; None if it may be something else, or be read elsewhere."""
    header = program.headers[target.header]
    places = places_of(program, target, loop.count)
    if not header.metadata or uses.named(FieldRef(header.name, header.fields[n].name) for _, n in places):
        return None
    if any(places & places_of(program, other, other_loop.count) for other, other_loop in uses.but(target)):
        return None
    if uses.elements[target] != sum(node == target for node in walk(loop)):
        return None
    fits = _bits_needed(program, value) <= header.fields[target.first].bits
    first_use = next(step for step in loop.body if any(node == target for node in walk(step)))
    assigned = [node for node in walk(loop) if isinstance(node, Assign) and node.target == target]
    read_into = any(isinstance(node, (Hash, ReadRegister)) and node.target == target for node in walk(loop))
    once = len(assigned) == 1 and assigned[0] is first_use and not read_into
    return value if fits and once and is_steady(program, value, loop) else None


def _bits_needed(program: Program, value: Expr) -> int:
    """Width of a value that is a field or a masked one; anything else counts as too wide."""
    match value:
        case FieldRef(header, name):
            found = program.headers[header].field(name)
            return found.bits if found is not None and not found.signed else 1 << 16
        case Const(number) if number >= 0:
            return number.bit_length()
        case Binary("&", _, Const(mask)) if mask >= 0:
            return mask.bit_length()
    return 1 << 16


def _replaced(body: Block, target: Element, value: Expr) -> Block:
    kept = tuple(step for step in body if not (isinstance(step, Assign) and step.target == target))
    return tuple(rebuilt(step, lambda node: value if node == target else None) for step in kept)
