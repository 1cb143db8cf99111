"""Compare a Tofino program's assembly with the compiler's own front end: has the back end dropped a part?

Three things of the program must be in the assembly: the values of every parser's `select`, every table with
its constant entries, and the actions of every register.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from peelsum.pipelines.front_end import FrontEnd, Key

#: The program's parsers, and the assembly's names for them.
_PARSERS = {"IngressParser": "ingress", "EgressParser": "egress"}
_DIGIT_BITS = {"0x": 4, "0o": 3, "0b": 1}
_CONSTANT = re.compile(r"(0[xob])([0-9a-f*]+):")


class Assembly(NamedTuple):
    """The parts of an assembly."""

    branches: Counter[tuple[str, str]]
    """(parser, bits that a branch compares) -> number of such branches."""
    tables: dict[str, list[list[list[int]]]]
    """Table -> its constant entries -> their keys: the value, and the mask unless the match is exact."""
    actions: dict[str, set[str]]
    """Register -> its actions."""


def missing(tree: Any, assembly: str) -> Iterator[str]:
    """Yield a line for each part of the program that the assembly lacks.

    `tree` is the parsed frontend-ir.json, `assembly` the text of the .bfa file, both by `p4c-barefoot -g`.
    """
    program, found = FrontEnd(tree), read(assembly)
    for parser, name in _PARSERS.items():
        for keys, source in program.branches(parser):
            branch = name, "".join(map(_bits, keys))
            found.branches[branch] -= 1
            if branch[1] and found.branches[branch] < 0:
                yield f"a branch of parser {name}: {source}"
    for table, entries in program.tables():
        if table not in found.tables:
            yield f"table {table}"
        elif not _same(entries, found.tables[table]):
            yield f"constant entries of table {table}"
    for register, action in program.register_actions():
        if action not in found.actions.get(register, ()):
            yield f"action {action} of register {register}"


def _bits(key: Key) -> str:
    """Return the bits of a key that are compared, most significant first."""
    places = reversed(range(key.width))
    return "".join(str(key.value >> place & 1) for place in places if key.mask >> place & 1)


def _same(entries: list[list[Key]], found: list[list[list[int]]]) -> bool:
    """Return whether the assembly's entries compare the same as the program's. Neither repeats an entry."""
    return [
        [[key.value, key.mask][: len(numbers)] for key, numbers in zip(keys, entry, strict=False)]
        for keys, entry in zip(entries, found, strict=False)
    ] == found and len(entries) == len(found)


def read(assembly: str) -> Assembly:
    """Return the parts of an assembly."""
    reader = _Reader()
    for line in assembly.splitlines():
        reader.line(line)
    return reader.found


class _Reader:
    """Read an assembly line by line, for it is not quite YAML."""

    def __init__(self) -> None:
        self.found = Assembly(Counter(), {}, {})
        self._section = self._heading = self._name = self._field = ""
        self._width = 0
        self._keys: dict[str, int] = {}
        self._places: dict[str, int] | None = None

    def line(self, line: str) -> None:
        text = line.strip()
        if text and not line.startswith(" "):
            self._section = text.rstrip(":")
        elif self._section.startswith("parser "):
            self._parser(text)
        elif part := re.fullmatch(r"  (\w+) \S.*:", line):
            self._heading, self._name, self._keys, self._places = part[1], "", {}, None
        elif part := re.match(r"p4: \{ name: ([^ ,}]+)", text):
            self._name = part[1]
            if self._heading != "stateful":
                self._rows()
        elif self._heading == "stateful":
            if action := re.fullmatch(r" {6}(\w+)(?: \d+)?:", line):
                self.found.actions.setdefault(self._name, set()).add(action[1])
        else:
            self._entries(text)
            self._gateway(text)

    def _parser(self, text: str) -> None:
        if registers := re.fullmatch(r"match: \[(.*)\]", text):
            self._width = sum(_register_bits(name.strip()) for name in registers[1].split(","))
        elif branch := _CONSTANT.fullmatch(text):
            # The constant's first digit may have more bits than the registers have left.
            bits = _bits_of(branch[1], branch[2])[-self._width :]
            self.found.branches[self._section.split()[1], bits.replace("*", "")] += 1

    def _entries(self, text: str) -> None:
        """Read the constant entries that a table has of its own."""
        if item := re.match(r"- (priority|field_name|parameter_name):", text):
            self._field = item[1]
            if self._field == "priority":
                self._rows().append([])
            elif self._field == "field_name":
                self._rows()[-1].append([])
        elif self._field == "field_name" and (
            number := re.fullmatch(r'(?:value|mask): "(0x[0-9a-f]+)"', text)
        ):
            self._rows()[-1][-1].append(int(number[1], 16))

    def _gateway(self, text: str) -> None:
        """Read the constant entries that the compiler turned into conditions of the table's gateway."""
        if key := re.match(r"(\S+): \{ type: \w+, size: (\d+)", text):
            self._keys[key[1]] = int(key[2])
        elif re.fullmatch(r"name: \S+-gateway", text):
            self._places = {}
        elif self._places is not None:
            if places := re.fullmatch(r"match: \{(.*)\}", text):
                pairs = (item.split(":") for item in places[1].split(","))
                self._places = {name.strip(): int(place) for place, name in pairs}
            elif condition := _CONSTANT.fullmatch(text):
                bits = _bits_of(condition[1], condition[2])[::-1]
                keys = [_value_and_mask(bits, self._places.get(k), n) for k, n in self._keys.items()]
                self._rows().append(keys)

    def _rows(self) -> list[list[list[int]]]:
        """Return the constant entries read so far of the present table."""
        return self.found.tables.setdefault(self._name, [])


def _register_bits(name: str) -> int:
    """Return the width of a register that a parser matches: a byte, half a word, or a counter's flag."""
    return {"byte": 8, "half": 16}.get(name.rstrip("0123"), 1)


def _bits_of(prefix: str, digits: str) -> str:
    """Return a constant's bits, most significant first, `*` for each bit that is not compared."""
    each = _DIGIT_BITS[prefix]
    return "".join("*" * each if digit == "*" else f"{int(digit, 16):0{each}b}" for digit in digits)


def _value_and_mask(bits: str, place: int | None, width: int) -> list[int]:
    """Return what a condition, its least significant bit first, compares with a key at a place in it."""
    key = "" if place is None else bits[place : place + width]
    value = sum(1 << i for i, bit in enumerate(key) if bit == "1")
    return [value, sum(1 << i for i, bit in enumerate(key) if bit != "*")]
