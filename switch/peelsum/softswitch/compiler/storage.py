"""Assigns fields to variables of the generated code, or to arrays that its loops run over.

Packet fields that the program never uses share variables, as many as fit into 64 bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from peelsum.softswitch.compiler.layout import words_of
from peelsum.softswitch.compiler.reroll import Spans
from peelsum.softswitch.program.model import Header, Program
from peelsum.softswitch.program.operations import FieldElement, FieldRef, Target, walk


@dataclass(frozen=True, slots=True)
class Variable:
    """The variable `name` for `bits` bits (at most 64), `offset` bits into the header."""

    name: str
    offset: int
    bits: int


@dataclass(frozen=True, slots=True)
class Array:
    """The array `name` for `count` fields of `bits` bits of a header, from field number `first` on."""

    name: str
    offset: int
    bits: int
    first: int
    count: int


Chunk: TypeAlias = Variable | Array


class Storage:
    """The variables and arrays of one program; `blocks` is all its code."""

    def __init__(
        self, program: Program, blocks: Iterable[Any], spans: Spans, roots: Iterable[FieldRef]
    ) -> None:
        self._program = program
        self._names: set[str] = set()
        self._fields: dict[tuple[str, str], Sequence[Variable] | Array] = {}
        self.chunks: dict[str, list[Chunk]] = {}
        used = _used(program, blocks, roots)
        by_type: dict[str, list[tuple[int, int]]] = {}
        for owner, ranges in spans.items():
            if owner:
                by_type.setdefault(program.headers[owner].type_name, []).extend(ranges)
        for header in program.headers.values():
            self._lay_out(header, used, sorted(set(by_type.get(header.type_name, ()))))

    # --- queries ----------------------------------------------------------------------------------

    def variables(self, ref: FieldRef) -> Sequence[Variable]:
        """Return the variables of a field outside arrays, most significant first; one for up to 64 bits."""
        variables = self._fields[ref.header, ref.field]
        assert not isinstance(variables, Array)
        return variables

    def has(self, ref: FieldRef) -> bool:
        """Return whether a field has storage: every packet field, and metadata if the program uses it."""
        return (ref.header, ref.field) in self._fields

    def names(self, target: Target) -> list[str]:
        """Return the names of the variables, or of the array, that hold a field or element."""
        if isinstance(target, FieldElement):
            return [self.element(target)[0].name]
        stored = self._fields[target.header, target.field]
        return [stored.name] if isinstance(stored, Array) else [variable.name for variable in stored]

    def array(self, ref: FieldRef) -> tuple[Array, int] | None:
        """Return the array that holds a field and the index in it; None if variables hold it."""
        array = self._fields[ref.header, ref.field]
        if not isinstance(array, Array):
            return None
        header = self._program.headers[ref.header]
        number = next(n for n, field in enumerate(header.fields) if field.name == ref.field)
        return array, number - array.first

    def element(self, element: FieldElement) -> tuple[Array, int]:
        """Return the array that an element of a loop steps through, and its first index."""
        name = self._program.headers[element.header].fields[element.first].name
        array = self._fields[element.header, name]
        assert isinstance(array, Array)
        return array, element.first - array.first

    def arrays(self) -> list[Array]:
        """Return all arrays."""
        return [chunk for chunks in self.chunks.values() for chunk in chunks if isinstance(chunk, Array)]

    def name(self, *parts: str) -> str:
        """Return a new variable name made from `parts`."""
        base = re.sub(r"\W+", "_", "_".join(parts), flags=re.ASCII).strip("_")
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    # --- layout -----------------------------------------------------------------------------------

    def _lay_out(self, header: Header, used: set[tuple[str, str]], spans: Sequence[tuple[int, int]]) -> None:
        """Assign a header's fields to arrays, where spans have them, and to variables."""
        chunks: list[Chunk] = []
        offset = number = 0
        while number < len(header.fields):
            span = next((part for part in spans if part[0] == number), None)
            if span is not None:
                chunk = self._array(header, span, offset)
                chunks.append(chunk)
                number, offset = span[1] + 1, offset + chunk.bits * chunk.count
                continue
            end = self._group_end(header, number, used, spans)
            bits = sum(part.bits for part in header.fields[number:end])
            name = header.fields[number].name
            if not header.metadata or (header.type_name, name) in used:
                variables = self._variables(header, name, offset, bits)
                chunks += variables
                self._fields[header.name, name] = variables
            number, offset = end, offset + bits
        self.chunks[header.name] = chunks

    def _group_end(
        self, header: Header, number: int, used: set[tuple[str, str]], spans: Sequence[tuple[int, int]]
    ) -> int:
        """Return the end of the fields that share a variable with field `number`: unused packet fields do."""

        def is_separate(position: int) -> bool:
            starts = any(part[0] == position for part in spans)
            return starts or (header.type_name, header.fields[position].name) in used

        end = number + 1
        if header.metadata or is_separate(number):
            return end
        bits = header.fields[number].bits
        while end < len(header.fields) and not is_separate(end) and bits + header.fields[end].bits <= 64:
            bits += header.fields[end].bits
            end += 1
        return end

    def _array(self, header: Header, span: tuple[int, int], offset: int) -> Array:
        """Return a new array for the fields of a span."""
        first, last = span
        array = Array(self.name("a", header.name), offset, header.fields[first].bits, first, last - first + 1)
        for field in header.fields[first : last + 1]:
            self._fields[header.name, field.name] = array
        return array

    def _variables(self, header: Header, field: str, offset: int, bits: int) -> list[Variable]:
        """Return new variables of up to 64 bits each for `bits` bits, most significant first."""
        variables = []
        count = words_of(bits)
        for limb in range(count):
            width = bits - 64 * (count - 1) if limb == 0 else 64
            variables.append(Variable(self.name("f", header.name, field), offset, width))
            offset += width
        return variables


def _used(program: Program, blocks: Iterable[Any], roots: Iterable[FieldRef]) -> set[tuple[str, str]]:
    """Return (type, field) of all fields that the program names."""
    refs = set(roots).union(*program.field_lists.values())
    for block in blocks:
        refs.update(node for node in walk(block) if isinstance(node, FieldRef))
    for table in program.tables.values():
        refs.update(key.target for key in table.keys)
    for checksum in program.checksums:
        refs.add(checksum.target)
        refs.update(ref for ref, _, _ in checksum.inputs if ref is not None)
        refs.update(node for node in walk(checksum.condition) if isinstance(node, FieldRef))
    return {(program.headers[ref.header].type_name, ref.field) for ref in refs}
