"""The tables of a switch, as its bf-rt.json declares them, with the widths of their fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peelsum.control.errors import SwitchError

#: The widths of the integer types, in bits.
_WIDTHS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}


@dataclass(frozen=True)
class TableField:
    """A field of a key, of an action or of a table's data."""

    number: int
    """The field's id."""
    name: str
    """The field's name."""
    bits: int
    """The width of its values in bits; 0 for strings and booleans."""
    match: str = ""
    """The match type of a key's field: `Exact`, `LPM` or `Ternary`."""

    def encoded(self, value: int) -> bytes:
        """Encode a value in the field's whole width, in network byte order."""
        return value.to_bytes((self.bits + 7) // 8, "big")


@dataclass(frozen=True)
class TableSchema:
    """One table."""

    number: int
    """The table's id."""
    name: str
    """The table's full name."""
    key: Mapping[int, TableField]
    """The fields of the key, by id."""
    data: Mapping[str, TableField]
    """The data fields that belong to no action, by the last part of their names."""
    actions: Mapping[int, Mapping[int, TableField]]
    """The parameters of each action, by id."""


class Schema:
    """The tables of a program, and those that every Tofino has."""

    def __init__(self, *texts: bytes) -> None:
        """texts: bf-rt.json of the program, and of the shared tables. Raises ValueError if one is invalid."""
        self._tables = {
            table.number: table
            for text in texts
            if text
            for table in map(_table, json.loads(text).get("tables", ()))
        }

    def table(self, name: str) -> TableSchema:
        """Return the table with this name, or with a name that ends in `.name`. Raises SwitchError."""
        for table in self._tables.values():
            if table.name == name or table.name.endswith(f".{name}"):
                return table
        raise SwitchError(
            f"switch: its bf-rt.json has no table {name}; load peelsum's program into bf_switchd"
        )

    def numbered(self, number: int) -> TableSchema:
        """Return the table with this id. Raises KeyError."""
        return self._tables[number]


def _table(declared: Mapping[str, Any]) -> TableSchema:
    """Parse the declaration of a table in bf-rt.json."""
    data = [declaration.get("singleton", {}) for declaration in declared.get("data", ())]
    return TableSchema(
        declared["id"],
        declared["name"],
        {field.number: field for field in _fields(declared.get("key", ()))},
        {
            field.name.rpartition(".")[2]: field
            for field in _fields(declaration for declaration in data if declaration)
        },
        {
            action["id"]: {field.number: field for field in _fields(action["data"])}
            for action in declared.get("action_specs", ())
        },
    )


def _fields(declarations: Iterable[Mapping[str, Any]]) -> Iterable[TableField]:
    for declaration in declarations:
        kind = declaration["type"]
        bits = kind.get("width") or _WIDTHS.get(kind["type"], 0)
        yield TableField(declaration["id"], declaration["name"], bits, declaration.get("match_type", ""))
