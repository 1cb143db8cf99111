"""A P4 program as typed, immutable values. The loader makes them; the compiler and the runtime use them.

Names are the JSON file's (P4Info's full names).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from peelsum.softswitch.program.operations import Action, Expr, FieldRef, Inputs, Primitive, SyntaxNode

MatchKind: TypeAlias = Literal["exact", "lpm", "ternary", "range"]

# --- headers --------------------------------------------------------------------------------------


class FieldDeclaration(SyntaxNode):
    """A field of a header type. A `signed` field is in two's complement."""

    name: str
    bits: int
    signed: bool = False


class Header(SyntaxNode):
    """A header instance. If it is `metadata`, it is not part of the packet and is always valid."""

    name: str
    type_name: str
    fields: tuple[FieldDeclaration, ...]
    metadata: bool

    @property
    def bits(self) -> int:
        """The width of all fields together."""
        return sum(field.bits for field in self.fields)

    def field(self, name: str) -> FieldDeclaration | None:
        """Return the field called `name`, or None."""
        return next((field for field in self.fields if field.name == name), None)


# --- parser ---------------------------------------------------------------------------------------


class Extract(SyntaxNode):
    """Extract a header from the packet, or stop with PacketTooShort."""

    header: str


class ExtractNext(SyntaxNode):
    """Extract the next element of a header stack from the packet, or stop with StackOutOfBounds."""

    stack: str


class Require(SyntaxNode):
    """Stop with PacketTooShort unless the packet has `bits` more bits."""

    bits: int


class Verify(SyntaxNode):
    """Stop with error number `error` unless `condition` holds."""

    condition: Expr
    error: Expr


class Advance(SyntaxNode):
    """Skip `count` whole bytes, or stop with PacketTooShort."""

    count: int


ParserOp: TypeAlias = Extract | ExtractNext | Require | Verify | Advance | Primitive


class Transition(SyntaxNode):
    """A transition, taken if every masked part of the key equals its value, or always if `values` is None."""

    values: tuple[int, ...] | None
    masks: tuple[int, ...] | None
    next_state: str | None


class ParserState(SyntaxNode):
    """A state's operations and transitions. If no transition matches, the parser ends."""

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[Expr, ...]
    transitions: tuple[Transition, ...]


class Parser(SyntaxNode):
    """The parser's states by name; a packet begins in `start`."""

    start: str
    states: Mapping[str, ParserState]


# --- tables and control flow ----------------------------------------------------------------------

#: One field of an entry's key: a value, (value, mask), (value, prefix length) or (low, high).
KeyValue: TypeAlias = "int | tuple[int, int]"


class TableKey(SyntaxNode):
    """A field of a table's key. The packet's value is first ANDed with `mask`, if there is one."""

    name: str
    target: FieldRef
    kind: MatchKind
    bits: int
    mask: int | None = None


class TableEntry(SyntaxNode):
    """A table entry. If several match a packet, the largest `priority` wins, then the longest prefix.

    Only tables with ternary or range keys use priorities. Of entries with equal rank, the oldest one wins.
    """

    keys: tuple[KeyValue, ...]
    action: str
    params: tuple[int, ...]
    priority: int


class TableDeclaration(SyntaxNode):
    """A match-action table and its successors.

    `next_by_action` is keyed by action number. `next_by_hit` is (hit, miss) and takes precedence if given.
    With `const_default`, the default action and its parameters never change.
    """

    name: str
    keys: tuple[TableKey, ...]
    size: int
    actions: tuple[int, ...]
    default_action: int
    default_params: tuple[int, ...]
    const_default: bool
    const_entries: tuple[TableEntry, ...] | None
    next_by_action: Mapping[int, str | None]
    next_by_hit: tuple[str | None, str | None] | None


class Conditional(SyntaxNode):
    """A two-way branch between tables."""

    name: str
    condition: Expr
    if_true: str | None
    if_false: str | None


class PipelineGraph(SyntaxNode):
    """Tables and conditionals by name; `start` is None if the pipeline is empty."""

    name: str
    start: str | None
    nodes: Mapping[str, TableDeclaration | Conditional]


def successors(node: TableDeclaration | Conditional) -> list[str | None]:
    """Return the nodes that may follow a node; None is the pipeline's end."""
    if isinstance(node, Conditional):
        return [node.if_true, node.if_false]
    if node.next_by_hit is not None:
        return list(node.next_by_hit)
    return list(node.next_by_action.values())


# --- state and the rest ---------------------------------------------------------------------------


class RegisterArray(SyntaxNode):
    """`size` cells of `bits` bits, initially zero."""

    name: str
    size: int
    bits: int


class CounterArray(SyntaxNode):
    """Cells that count packets and bytes. A direct counter has one cell per entry of `table`."""

    name: str
    size: int
    table: str | None


class Checksum(SyntaxNode):
    """A 16-bit ones' complement checksum over `inputs`: (field or None, constant value, bits) in order."""

    name: str
    target: FieldRef
    inputs: Inputs
    condition: Expr | None
    verify: bool
    update: bool


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A compiled P4 program. Compared by identity."""

    name: str
    headers: Mapping[str, Header]
    parser: Parser
    ingress: PipelineGraph
    egress: PipelineGraph
    deparser: tuple[str, ...]
    actions: Mapping[int, Action]
    registers: Mapping[str, RegisterArray]
    counters: Mapping[str, CounterArray]
    checksums: tuple[Checksum, ...]
    errors: Mapping[str, int]
    aliases: Mapping[str, FieldRef] = field(default_factory=dict)
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The headers of each header stack, first element first."""
    field_lists: Mapping[int, tuple[FieldRef, ...]] = field(default_factory=dict)
    """By number of the field list: the metadata that a clone, resubmitted or recirculated packet keeps."""

    @property
    def tables(self) -> dict[str, TableDeclaration]:
        """Every table of both pipelines, including those that p4c made."""
        nodes = [*self.ingress.nodes.items(), *self.egress.nodes.items()]
        return {name: node for name, node in nodes if isinstance(node, TableDeclaration)}

    def intrinsic(self, name: str) -> FieldRef | None:
        """Return the field that v1model calls `name` (e.g. 'intrinsic_metadata.mcast_grp'), or None."""
        return intrinsic(self.headers, self.aliases, name)


def intrinsic(headers: Mapping[str, Header], aliases: Mapping[str, FieldRef], name: str) -> FieldRef | None:
    """Return the field that v1model calls `name`, which may be an alias, or None."""
    if name in aliases:
        return aliases[name]
    header, _, field_name = name.partition(".")
    if header in headers and headers[header].field(field_name):
        return FieldRef(header, field_name)
    return None
