"""Sees through the temporaries that p4c gives each lane, where all lanes would hold the same.

p4c computes a register's index anew for every lane, into a variable of its own. In a loop that makes an
array that is written once and read next to it; putting the value in its place leaves an index that all turns
share, which is then found and checked once.

Let T be such an element of a loop, and V the value that the loop assigns to it. Reads of T become V, and the
assignment goes. That changes nothing if V is what every read of T would find, and nobody else looks for T:

- *Every read in the loop comes after the assignment, in the same turn.* The assignment is a statement of the
  loop's body itself, so it runs on every turn, and it is the first that mentions T.
- *Nothing is stored in T in between.* It is the only statement of the loop that stores in T. Another element
  that shares a place with T, in this loop or another, rules T out, as its turns could store there, too.
- *Storing V in T and reading it gives V.* T has no sign, and V, which is not negative, fits its width.
- *V is the same where it is read.* It mentions no element and nothing that the loop changes on any turn, and
  no look into the packet. So it does not depend on the turn, nor on where in the turn it is worked out.
- *Nobody else looks for T.* Its fields are metadata of the program's own: no one sends them, the architecture
  does not read them. No statement, table key, checksum or field list names one of them as a field, no header
  is copied from them or onto them, and T is mentioned in no other loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from peelsum.softswitch.compiler.flow import Block, Repeat, is_steady, places_of, rebuilt
from peelsum.softswitch.program.model import Program, is_own
from peelsum.softswitch.program.operations import (
    Assign,
    AssignChosen,
    Binary,
    Const,
    CopyHeader,
    Element,
    Expr,
    FieldRef,
    Hash,
    ReadRegister,
    Target,
    walk,
)

_STORES = (Assign, AssignChosen, Hash, ReadRegister)


class _Uses:
    """Which fields code, tables and checksums name, and how often loops name elements."""

    def __init__(self, program: Program, blocks: Sequence[Block]) -> None:
        self.loops: list[Repeat] = []
        self._refs = {key.target for table in program.tables.values() for key in table.keys}
        for item in program.checksums:
            outside = (item.target, item.inputs, item.condition)
            self._refs |= {node for node in walk(outside) if isinstance(node, FieldRef)}
        self._refs |= {ref for kept in program.field_lists.values() for ref in kept}
        self.elements: Counter[Element] = Counter()
        self.copied: set[str] = set()
        for block in blocks:
            for node in walk(block):
                if isinstance(node, Repeat):
                    self.loops.append(node)
                elif isinstance(node, FieldRef):
                    self._refs.add(node)
                elif isinstance(node, CopyHeader):
                    self.copied |= {node.target, node.source}
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
    fields = [FieldRef(header.name, header.fields[number].name) for _, number in places]
    if not all(is_own(program, field) for field in fields):
        return None
    if header.name in uses.copied or uses.named(fields):
        return None
    if any(places & places_of(program, other, other_loop.count) for other, other_loop in uses.but(target)):
        return None
    if uses.elements[target] != sum(node == target for node in walk(loop)):
        return None
    first_use = next(step for step in loop.body if any(node == target for node in walk(step)))
    stored = [node for node in walk(loop) if isinstance(node, _STORES) and target in _targets(node)]
    if len(stored) != 1 or stored[0] is not first_use:
        return None
    fits = _bits_needed(program, value) <= header.fields[target.first].bits
    return value if fits and is_steady(program, value, loop) else None


def _targets(node: Any) -> tuple[Target, ...]:
    return node.targets if isinstance(node, AssignChosen) else (node.target,)


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
