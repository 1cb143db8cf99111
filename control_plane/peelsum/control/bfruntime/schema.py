"""Tables of a switch as its bf-rt.json declares them, and how wide their fields are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peelsum.control.errors import SwitchError

#: Bits of the integer types.
_WIDTHS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}


@dataclass(frozen=True)
class Field:
    """A field of a key, of an action or of a table's data."""

    number: int
    """Its id in the table."""
    name: str
    """Its name."""
    bits: int
    """Width of its values; 0 for texts and truth values."""
    match: str = ""
    """`Exact`, `LPM` or `Ternary` in a key."""

    def encoded(self, value: int) -> bytes:
        """Return a value as a switch takes it: the field's whole width, the highest byte first."""
        return value.to_bytes((self.bits + 7) // 8, "big")


@dataclass(frozen=True)
class Table:
    """One table."""

    number: int
    """Its id."""
    name: str
    """Its whole name."""
    key: Mapping[int, Field]
    """Fields of the key, by id."""
    data: Mapping[str, Field]
    """Fields of the data outside actions, by the last part of their names."""
    actions: Mapping[int, Mapping[int, Field]]
    """Fields of each action, by id."""


class Schema:
    """The tables of a program and of its switch."""

    def __init__(self, *texts: bytes) -> None:
        """texts: bf-rt.json of the program, and of what every switch has. Raises ValueError for others."""
        self._tables = {
            table.number: table
            for text in texts
            if text
            for table in map(_table, json.loads(text).get("tables", ()))
        }

    def table(self, name: str) -> Table:
        """Return the table with this name, or whose name ends so. Raises SwitchError."""
        for table in self._tables.values():
            if table.name == name or table.name.endswith(f".{name}"):
                return table
        raise SwitchError(
            f"switch: its bf-rt.json has no table {name}; load peelsum's program into bf_switchd"
        )

    def numbered(self, number: int) -> Table:
        """Return a table by its id. Raises KeyError."""
        return self._tables[number]


def _table(declared: Mapping[str, Any]) -> Table:
    data = [one.get("singleton", {}) for one in declared.get("data", ())]
    return Table(
        declared["id"],
        declared["name"],
        {field.number: field for field in _fields(declared.get("key", ()))},
        {field.name.rpartition(".")[2]: field for field in _fields(one for one in data if one)},
        {
            action["id"]: {field.number: field for field in _fields(action["data"])}
            for action in declared.get("action_specs", ())
        },
    )


def _fields(declared: Iterable[Mapping[str, Any]]) -> Iterable[Field]:
    for one in declared:
        kind = one["type"]
        bits = kind.get("width") or _WIDTHS.get(kind["type"], 0)
        yield Field(one["id"], one["name"], bits, one.get("match_type", ""))
