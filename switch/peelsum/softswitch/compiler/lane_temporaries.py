"""Removes p4c's temporaries from loops over lanes if every lane's temporary holds the same value.

p4c computes a register's index separately for every lane, into a variable per lane. In a loop these variables
become an array whose elements are written once and then read. With the value in their place, all iterations
share one index, which is computed and checked once.

Let T be such an element of a loop, and V the value that the loop assigns to it. Reads of T are replaced by V,
and the assignment is removed. This preserves the program if every read of T yields V, and T is not read
elsewhere:

- *Every read in the loop follows the assignment, in the same iteration.* The assignment is a statement of the
  loop's body itself, so it runs in every iteration, and it is the first statement that mentions T.
- *No other statement stores to T.* The assignment is the loop's only store to T. If another element, in this
  loop or another, shares a place with T, T is kept, since that element could be a store to T.
- *Storing V in T and reading it yields V.* T is unsigned, and V is not negative and fits T's width.
- *V is the same wherever it is read.* V contains no element, no lookahead and nothing that any iteration of
  the loop changes. So it depends neither on the iteration nor on the position in it.
- *T is not read elsewhere.* T's fields are the program's own metadata: they are not part of a packet, and the
  architecture does not read them. No statement, table key, checksum or field list names one of them as a
  field. No header is copied from or onto them, and no other loop mentions T.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from peelsum.softswitch.compiler.flow import Block, Repeat, is_steady, places_of, rebuilt
from peelsum.softswitch.program.model import Program, is_own
from peelsum.softswitch.program.operations import (
    Assign,
    Binary,
    Const,
    CopyHeader,
    Element,
    Expr,
    FieldRef,
    Hash,
    ReadRegister,
    walk,
)

_STORES = (Assign, Hash, ReadRegister)


class _Uses:
    """The fields that code, tables and checksums name, and how often loops name each element."""

    def __init__(self, program: Program, blocks: Sequence[Block]) -> None:
        self.loops: list[Repeat] = []
        self._refs = {key.target for table in program.tables.values() for key in table.keys}
        for item in program.checksums:
            outside = (item.target, item.inputs, item.condition)
            self._refs |= {node for node in walk(outside) if isinstance(node, FieldRef)}
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
        """Return whether any of some fields is named as a field, inside or outside loops."""
        return not self._refs.isdisjoint(refs)

    def but(self, target: Element) -> Iterator[tuple[Element, Repeat]]:
        """Yield every element except `target`, with its loop."""
        for loop in self.loops:
            for node in {node for node in walk(loop) if isinstance(node, Element)} - {target}:
                yield node, loop


def see_through(program: Program, blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks with such temporaries replaced by their values."""
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
    """Return the value that every read of `target` yields; None if the conditions above are not met."""
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
    stored = [node for node in walk(loop) if isinstance(node, _STORES) and node.target == target]
    if len(stored) != 1 or stored[0] is not first_use:
        return None
    fits = _bits_needed(program, value) <= header.fields[target.first].bits
    return value if fits and is_steady(program, value, loop) else None


def _bits_needed(program: Program, value: Expr) -> int:
    """Return an upper bound of a value's width for fields, constants and masked values, else a huge one."""
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
