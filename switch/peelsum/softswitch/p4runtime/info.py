"""Indexes a P4Info by id: names, widths and match kinds of what requests may refer to.

A P4Info with something that the softswitch does not support is refused, e.g. action profiles, meters, or
translated types.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from finsy.proto import p4i

from peelsum.softswitch.p4runtime.status import invalid, unimplemented
from peelsum.softswitch.p4runtime.values import MATCH_KINDS, FieldInfo


class _Identified(Protocol):
    @property
    def id(self) -> int: ...


_T = TypeVar("_T", bound=_Identified)


@dataclass(frozen=True)
class NumberInfo:
    """A parameter of an action, or a field of a controller packet header."""

    id: int
    name: str
    bits: int


@dataclass(frozen=True)
class ActionInfo:
    """An action, by its P4Info name."""

    id: int
    name: str
    params: tuple[NumberInfo, ...]


@dataclass(frozen=True)
class TableInfo:
    """A table: its key in declaration order, and the actions that its entries and its default may use."""

    id: int
    name: str
    fields: tuple[FieldInfo, ...]
    entry_actions: frozenset[int]
    default_actions: frozenset[int]
    is_const: bool
    const_default: bool
    direct_counter: str | None

    @property
    def needs_priority(self) -> bool:
        """Whether entries can overlap and therefore need a priority."""
        return any(field.kind in ("ternary", "range", "optional") for field in self.fields)


@dataclass(frozen=True)
class CellsInfo:
    """An indexed extern: a counter, or a register of `bits` wide cells (0 for counters)."""

    id: int
    name: str
    size: int
    bits: int = 0


@dataclass(frozen=True)
class PipelineInfo:
    """Everything that a request may name, by id."""

    tables: dict[int, TableInfo]
    actions: dict[int, ActionInfo]
    counters: dict[int, CellsInfo]
    registers: dict[int, CellsInfo]
    packet_headers: dict[str, tuple[NumberInfo, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, p4info: p4i.P4Info) -> PipelineInfo:
        """Index a P4Info. Raises RequestError: UNIMPLEMENTED, or INVALID_ARGUMENT if it is inconsistent."""
        _refuse_unsupported(p4info)
        actions = _by_id(_action(action) for action in p4info.actions)
        counters = {counter.direct_table_id: counter.preamble.name for counter in p4info.direct_counters}
        return cls(
            tables=_by_id(_table(table, actions, counters) for table in p4info.tables),
            actions=actions,
            counters=_by_id(CellsInfo(*_id_name(item), size=item.size) for item in p4info.counters),
            registers=_by_id(_register(item) for item in p4info.registers),
            packet_headers={
                header.preamble.name: tuple(
                    NumberInfo(item.id, item.name, item.bitwidth) for item in header.metadata
                )
                for header in p4info.controller_packet_metadata
            },
        )


def _refuse_unsupported(p4info: p4i.P4Info) -> None:
    """Raise RequestError (UNIMPLEMENTED) for externs and types that the softswitch lacks."""
    for kind in ("action_profiles", "meters", "direct_meters", "value_sets", "digests", "externs"):
        for item in getattr(p4info, kind):
            name = item.preamble.name if hasattr(item, "preamble") else item.extern_type_name
            raise unimplemented(f"{kind.rstrip('s').replace('_', ' ')} {name}")
    for name, new_type in p4info.type_info.new_types.items():
        if new_type.WhichOneof("representation") == "translated_type":
            raise unimplemented(f"translated type {name}")


def _id_name(declaration: Any) -> tuple[int, str]:
    """Return the id and the name in a declaration's preamble."""
    if not declaration.preamble.id:
        raise invalid(f"p4info: {declaration.preamble.name!r} has no id; compile the program again")
    return declaration.preamble.id, declaration.preamble.name


def _by_id(items: Iterable[_T]) -> dict[int, _T]:
    """Return declarations by id. Raises RequestError if two have the same id."""
    indexed: dict[int, _T] = {}
    for item in items:
        if item.id in indexed:
            raise invalid(f"p4info: id {item.id:#x} is used twice; compile the program again")
        indexed[item.id] = item
    return indexed


def _action(action: p4i.Action) -> ActionInfo:
    params = tuple(NumberInfo(item.id, item.name, item.bitwidth) for item in action.params)
    return ActionInfo(*_id_name(action), params)


def _field(match: p4i.MatchField, table: str) -> FieldInfo:
    kind = MATCH_KINDS.get(match.match_type)
    if kind is None:
        raise unimplemented(
            f"match kind {match.other_match_type or match.match_type} of {table}.{match.name}"
        )
    if match.bitwidth <= 0:
        raise invalid(f"p4info: {table}.{match.name} has no bit width; compile the program again")
    return FieldInfo(match.id, match.name, match.bitwidth, kind)


def _table(table: p4i.Table, actions: dict[int, ActionInfo], counters: dict[int, str]) -> TableInfo:
    table_id, name = _id_name(table)
    if table.implementation_id:
        raise unimplemented(f"action profile of table {name}")
    for reference in table.action_refs:
        if reference.id not in actions:
            raise invalid(f"p4info: table {name} refers to action {reference.id:#x}, which is not declared")
    scopes = {reference.id: reference.scope for reference in table.action_refs}
    return TableInfo(
        id=table_id,
        name=name,
        fields=tuple(_field(match, name) for match in table.match_fields),
        entry_actions=frozenset(i for i, scope in scopes.items() if scope != p4i.ActionRef.DEFAULT_ONLY),
        default_actions=frozenset(i for i, scope in scopes.items() if scope != p4i.ActionRef.TABLE_ONLY),
        is_const=table.is_const_table,
        const_default=table.const_default_action_id != 0,
        direct_counter=counters.get(table_id),
    )


def _register(register: p4i.Register) -> CellsInfo:
    register_id, name = _id_name(register)
    if not register.type_spec.bitstring.HasField("bit"):
        raise unimplemented(f"register {name} of a type other than bit<N>")
    return CellsInfo(register_id, name, register.size, register.type_spec.bitstring.bit.bitwidth)
