"""A P4 program as typed, immutable values. The loader makes them; the compiler and the runtime use them.

Names are the JSON file's (P4Info's full names).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from peelsum.softswitch.program.operations import (
    Action,
    Expr,
    FieldRef,
    Inputs,
    Primitive,
    Source,
    SyntaxNode,
)

MatchKind: TypeAlias = Literal["exact", "lpm", "ternary", "range"]

# --- headers --------------------------------------------------------------------------------------


class FieldDeclaration(SyntaxNode):
    """A field of a header type. A `signed` field is in two's complement. A `varbit` has up to `bits` bits."""

    name: str
    bits: int
    signed: bool = False
    varbit: bool = False


class Header(SyntaxNode):
    """A header instance. If it is `metadata`, it is not part of the packet and is always valid."""

    name: str
    type_name: str
    fields: tuple[FieldDeclaration, ...]
    metadata: bool

    @property
    def bits(self) -> int:
        """The width of all fields together, without a varbit."""
        return sum(field.bits for field in self.fields if not field.varbit)

    @property
    def varbit(self) -> FieldDeclaration | None:
        """The header's field of variable width, if it has one."""
        return next((field for field in self.fields if field.varbit), None)

    def field(self, name: str) -> FieldDeclaration | None:
        """Return the field called `name`, or None."""
        return next((field for field in self.fields if field.name == name), None)


# --- parser ---------------------------------------------------------------------------------------


class Extract(SyntaxNode):
    """Extract a header from the packet, or stop with PacketTooShort. Its varbit, if any, has `bits` bits."""

    header: str
    bits: Expr | None = None


class ExtractNext(SyntaxNode):
    """Extract the next element of a stack from the packet, or stop with StackOutOfBounds.

    Of a stack of unions, extract the header that the unions have in place `member`.
    """

    stack: str
    member: int = 0
    bits: Expr | None = None


class Require(SyntaxNode):
    """Stop with PacketTooShort unless the packet has `bits` more bits."""

    bits: int


class Verify(SyntaxNode):
    """Stop with error number `error` unless `condition` holds."""

    condition: Expr
    error: Expr


class Advance(SyntaxNode):
    """Skip `bits` bits. Stop with PacketTooShort, or ParserInvalidArgument unless they are whole bytes."""

    bits: Expr


ParserOp: TypeAlias = Extract | ExtractNext | Require | Verify | Advance | Primitive


class Transition(SyntaxNode):
    """A transition, taken if every masked part of the key equals its value, or always if `values` is None.

    With a `condition`, it is taken if that holds.
    """

    values: tuple[int, ...] | None
    masks: tuple[int, ...] | None
    next_state: str | None
    condition: Expr | None = None

    @property
    def is_default(self) -> bool:
        """Whether it is always taken."""
        return self.values is None and self.condition is None


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


class MemberReference(SyntaxNode):
    """The action of an entry: member number `member` of the table's action profile."""

    member: int


class GroupReference(SyntaxNode):
    """The action of an entry: a member of group number `group`, which the selector chooses by packet."""

    group: int


class WeightedAction(SyntaxNode):
    """An action in an `ActionSet`, and how often it is chosen in relation to the others."""

    action: str
    params: tuple[int, ...]
    weight: int = 1
    watched_port: int | None = None
    """The port without which the action is not chosen."""


class ActionSet(SyntaxNode):
    """The action of an entry: one of several actions, which the selector chooses by packet."""

    actions: tuple[WeightedAction, ...]


#: The action of an entry: by name or, in a table with an action profile, a choice in the profile.
ActionChoice: TypeAlias = "str | MemberReference | GroupReference | ActionSet"


class TableEntry(SyntaxNode):
    """A table entry. If several match a packet, the largest `priority` wins, then the longest prefix.

    Only tables with ternary or range keys use priorities. Of entries with equal rank, the oldest one wins.
    """

    keys: tuple[KeyValue, ...]
    action: ActionChoice
    params: tuple[int, ...]
    priority: int


class TableDeclaration(SyntaxNode):
    """A match-action table and its successors.

    `next_by_action` is keyed by action number. `next_by_hit` is (hit, miss) and takes precedence if given.
    With `const_default`, the default action and its parameters never change. With a `profile`, the actions of
    entries are members or groups of this action profile. `idle_timeout`: hits of entries are recorded.
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
    profile: str | None = None
    idle_timeout: bool = False

    @property
    def capacity(self) -> int:
        """The most entries that the table can have; constant entries may be more than its size."""
        return self.size if self.const_entries is None else len(self.const_entries)


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


class Meter(SyntaxNode):
    """Cells that colour packets by RFC 2698, in packets or in bytes.

    A direct meter has one cell per entry of `table`, and stores the colour in `target` when an entry is hit.
    """

    name: str
    size: int
    in_bytes: bool
    table: str | None
    target: FieldRef | None


class Selector(SyntaxNode):
    """How a packet's member of a group is chosen: by this hash over `inputs`."""

    algorithm: str
    inputs: Inputs


class ActionProfile(SyntaxNode):
    """Actions with arguments, which entries of tables share. Only one with a `selector` has groups."""

    name: str
    size: int
    selector: Selector | None


class ValueSet(SyntaxNode):
    """A set of up to `size` numbers of `bits` bits, which states of the parser compare with their keys."""

    name: str
    size: int
    bits: int


class Message(SyntaxNode):
    """What the program sends to the control plane: a digest, a line of the log or a failed assertion.

    `text` is the digest's name, or the line, in which `{}` stands for a value. values: (number, bits,
    signed).
    """

    kind: Literal["digest", "log", "assert"]
    text: str
    values: tuple[tuple[Expr, int, bool], ...]


class Checksum(SyntaxNode):
    """A checksum over `inputs`: (field or None, constant value, bits) in order, then the payload if asked."""

    name: str
    target: FieldRef
    algorithm: str
    inputs: Inputs
    payload: bool
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
    stacks: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """By stack, the headers that each element has: one, or the members of a union. First element first."""
    unions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By header in a union, the union's other headers, which become invalid when it becomes valid."""
    field_lists: Mapping[int, tuple[FieldRef, ...]] = field(default_factory=dict)
    """By number of the field list: the metadata that a clone, resubmitted or recirculated packet keeps."""
    meters: Mapping[str, Meter] = field(default_factory=dict)
    profiles: Mapping[str, ActionProfile] = field(default_factory=dict)
    value_sets: Mapping[str, ValueSet] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    deparser_body: tuple[Primitive, ...] = ()
    """Statements of the deparser, such as lines of the log, which precede the headers."""
    sources: Mapping[str | tuple[int, int], Source] = field(default_factory=dict)
    """By name of a table or condition, or (number of an action, number of a statement)."""

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
