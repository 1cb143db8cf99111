"""A P4 program as typed, immutable values: what the loader makes of BMv2 JSON and everything else works on.

Names are those of the JSON file (P4Info's full names). Nothing here knows how a program is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from peelsum.softswitch.program.operations import Action, Expr, FieldRef, Inputs, Primitive

MatchKind: TypeAlias = Literal["exact", "lpm", "ternary", "range"]

# --- headers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a header type. `signed` fields hold two's complement."""

    name: str
    bits: int
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """A header instance; `metadata` ones travel beside the packet and are always valid."""

    name: str
    type_name: str
    fields: tuple[Field, ...]
    metadata: bool

    @property
    def bits(self) -> int:
        """Width of all fields together."""
        return sum(part.bits for part in self.fields)

    def field(self, name: str) -> Field | None:
        """The field called `name`, if there is one."""
        return next((part for part in self.fields if part.name == name), None)


# --- parser ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extract:
    """Take a header off the front of the packet, or stop with PacketTooShort."""

    header: str


@dataclass(frozen=True, slots=True)
class ExtractNext:
    """Take the next element of a header stack off the packet, or stop with StackOutOfBounds."""

    stack: str


@dataclass(frozen=True, slots=True)
class Require:
    """Stop with PacketTooShort unless `bits` more bits are there."""

    bits: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Stop with error number `error` unless `condition` holds."""

    condition: Expr
    error: Expr


@dataclass(frozen=True, slots=True)
class Advance:
    """Skip `count` whole bytes, or stop with PacketTooShort."""

    count: int


ParserOp: TypeAlias = Extract | ExtractNext | Require | Verify | Advance | Primitive


@dataclass(frozen=True, slots=True)
class Transition:
    """Taken when every key part, masked, equals the value's part; `None` as value takes everything."""

    values: tuple[int, ...] | None
    masks: tuple[int, ...] | None
    next_state: str | None


@dataclass(frozen=True, slots=True)
class ParserState:
    """What is done in one state and where to go next; no transition that fits ends the parser."""

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[Expr, ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class Parser:
    """States by name; `start` is where a packet begins."""

    start: str
    states: Mapping[str, ParserState]


# --- tables and control flow ----------------------------------------------------------------------

KeyValue: TypeAlias = "int | tuple[int, int]"


@dataclass(frozen=True, slots=True)
class TableKey:
    """One field to match on; `mask`, if any, is laid over the packet's value first."""

    name: str
    target: FieldRef
    kind: MatchKind
    bits: int
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class ConstEntry:
    """An entry that is part of the program. Among entries that fit, the lowest `priority` number wins."""

    keys: tuple[KeyValue, ...]
    action: int
    params: tuple[int, ...]
    priority: int


@dataclass(frozen=True, slots=True)
class Table:
    """A match-action table and where control goes after it.

    `next_by_action` is keyed by action number; `next_by_hit` is (hit, miss) and wins where given.
    `const_default` says that the default action and its parameters never change.
    """

    name: str
    keys: tuple[TableKey, ...]
    size: int
    actions: tuple[int, ...]
    default_action: int
    default_params: tuple[int, ...]
    const_default: bool
    const_entries: tuple[ConstEntry, ...] | None
    next_by_action: Mapping[int, str | None]
    next_by_hit: tuple[str | None, str | None] | None


@dataclass(frozen=True, slots=True)
class Conditional:
    """A two-way branch between tables."""

    name: str
    condition: Expr
    if_true: str | None
    if_false: str | None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Tables and conditionals by name; `start` is None where the pipeline does nothing."""

    name: str
    start: str | None
    nodes: Mapping[str, Table | Conditional]


def successors(node: Table | Conditional) -> list[str | None]:
    """Where control may go after a node; None is the pipeline's end."""
    if isinstance(node, Conditional):
        return [node.if_true, node.if_false]
    if node.next_by_hit is not None:
        return list(node.next_by_hit)
    return list(node.next_by_action.values())


# --- state and the rest ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterArray:
    """`size` cells of `bits` bits, zero at start."""

    name: str
    size: int
    bits: int


@dataclass(frozen=True, slots=True)
class CounterArray:
    """Packets and bytes per cell; `table` is set where the cells belong to a table's entries."""

    name: str
    size: int
    table: str | None


@dataclass(frozen=True, slots=True)
class Checksum:
    """A 16-bit ones' complement checksum over `inputs`: (field or None, constant value, bits) in order."""

    name: str
    target: FieldRef
    inputs: Inputs
    condition: Expr | None
    verify: bool
    update: bool


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Everything about a compiled P4 program that running it takes. Compared by identity."""

    name: str
    headers: Mapping[str, Header]
    parser: Parser
    ingress: Pipeline
    egress: Pipeline
    deparser: tuple[str, ...]
    actions: Mapping[int, Action]
    registers: Mapping[str, RegisterArray]
    counters: Mapping[str, CounterArray]
    checksums: tuple[Checksum, ...]
    errors: Mapping[str, int]
    aliases: Mapping[str, FieldRef] = field(default_factory=dict)
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Header stacks: their elements, headers, from the first on."""
    unions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Header unions: the headers of which one at most is valid."""
    field_lists: Mapping[int, tuple[FieldRef, ...]] = field(default_factory=dict)
    """Metadata that copies of a packet keep, by number."""

    @property
    def tables(self) -> dict[str, Table]:
        """Every table of both pipelines, those that the compiler made included."""
        nodes = [*self.ingress.nodes.items(), *self.egress.nodes.items()]
        return {name: node for name, node in nodes if isinstance(node, Table)}

    def intrinsic(self, name: str) -> FieldRef | None:
        """The field that the architecture calls `name` ('intrinsic_metadata.mcast_grp'), if it is there."""
        if name in self.aliases:
            return self.aliases[name]
        header, _, field_name = name.partition(".")
        if header in self.headers and self.headers[header].field(field_name):
            return FieldRef(header, field_name)
        return None


def is_own(program: Program, ref: FieldRef) -> bool:
    """Whether a field is metadata that only the program looks at, of up to 64 bits and without sign."""
    header = program.headers[ref.header]
    declared = header.field(ref.field)
    architecture = header.name == "standard_metadata" or ref in program.aliases.values()
    return (
        header.metadata
        and not architecture
        and declared is not None
        and declared.bits <= 64
        and not declared.signed
    )
