"""What a program computes: expressions, and the primitives that actions and parser states are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

#: Hash algorithms, by their names in BMv2 JSON.
HASHES = ("crc16", "crc32", "csum16", "xor16", "identity")

# --- expressions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of a header instance; also where an assignment goes."""

    header: str
    field: str


@dataclass(frozen=True, slots=True)
class Element:
    """In a loop over lanes: field number `first` + k * `step` of a header, on turn k."""

    header: str
    first: int
    step: int


@dataclass(frozen=True, slots=True)
class RegisterElement:
    """In a loop over lanes: register number `first` + k * `step` of the program, on turn k."""

    first: int
    step: int


Target: TypeAlias = FieldRef | Element
AnyRegister: TypeAlias = "str | RegisterElement"


@dataclass(frozen=True, slots=True)
class Const:
    """An integer of any size, perhaps negative."""

    value: int


@dataclass(frozen=True, slots=True)
class Bool:
    """A truth value written in the program."""

    value: bool


@dataclass(frozen=True, slots=True)
class Param:
    """Parameter `index` of the action that is running: `bits` wide, from the matching entry of `table`.

    Within an action's own body `table` is empty: an action can be many tables'.
    """

    index: int
    bits: int
    table: str = ""


@dataclass(frozen=True, slots=True)
class IsValid:
    """Whether a header is there, as a truth value."""

    header: str


@dataclass(frozen=True, slots=True)
class Hit:
    """Whether the last application of a table found an entry, as a truth value."""

    table: str


@dataclass(frozen=True, slots=True)
class Lookahead:
    """`bits` bits of the packet, `offset` bits after what has been parsed. Parsers only."""

    offset: int
    bits: int


@dataclass(frozen=True, slots=True)
class StackCount:
    """How many elements of a header stack were filled: the number of `next`."""

    stack: str


@dataclass(frozen=True, slots=True)
class Unary:
    """`op` is one of `~ not d2b b2d`."""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    """`op` is as BMv2 spells it: arithmetic, bits, shifts, comparisons, `and or`, and the casts."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Ternary:
    """`left` if `condition` holds, else `right`."""

    condition: Expr
    left: Expr
    right: Expr


Expr: TypeAlias = (
    FieldRef
    | Element
    | Const
    | Bool
    | Param
    | IsValid
    | Hit
    | Lookahead
    | StackCount
    | Unary
    | Binary
    | Ternary
)

# --- what actions and parser states do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assign:
    """Store `value`, cut to the target's width."""

    target: Target
    value: Expr


@dataclass(frozen=True, slots=True)
class AssignChosen:
    """Store `value` in target number `index`, or nowhere if there are fewer."""

    targets: tuple[Target, ...]
    index: Expr
    value: Expr


#: Fields to add up or to hash, in order: a field, or None and a constant; then its bits.
Inputs: TypeAlias = tuple[tuple[FieldRef | None, int, int], ...]


@dataclass(frozen=True, slots=True)
class Hash:
    """Store `base` + a hash over `inputs` modulo `size`."""

    target: Target
    algorithm: str
    inputs: Inputs
    base: Expr
    size: Expr


@dataclass(frozen=True, slots=True)
class ReadRegister:
    """Load a cell; an index past the end leaves the target as it was."""

    target: Target
    register: AnyRegister
    index: Expr


@dataclass(frozen=True, slots=True)
class WriteRegister:
    """Store a cell; an index past the end stores nothing."""

    register: AnyRegister
    index: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class CountAt:
    """Count the packet in an indirect counter; an index past the end counts nothing."""

    counter: str
    index: Expr


@dataclass(frozen=True, slots=True)
class AddHeader:
    """Make a header valid, all zero if it was not valid before."""

    header: str


@dataclass(frozen=True, slots=True)
class RemoveHeader:
    """Make a header invalid."""

    header: str


@dataclass(frozen=True, slots=True)
class CopyHeader:
    """Make one header the same as another of its type, validity included."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class Push:
    """Move a header stack's elements `count` places up; the first ones become invalid."""

    stack: str
    count: int


@dataclass(frozen=True, slots=True)
class Pop:
    """Move a header stack's elements `count` places down; the last ones become invalid."""

    stack: str
    count: int


@dataclass(frozen=True, slots=True)
class CopyStack:
    """Make one header stack the same as another of its type and size."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class CopyUnion:
    """Make one header union the same as another of its type."""

    headers: tuple[CopyHeader, ...]


@dataclass(frozen=True, slots=True)
class Clone:
    """Send a copy of the packet to the ports of clone session `session` once the pipeline is through.

    Of the metadata, the copy keeps the fields of list number `fields`. The last call in a pipeline counts.
    """

    session: Expr
    fields: int


@dataclass(frozen=True, slots=True)
class Resubmit:
    """Take the packet through parser and ingress again as it came, with the metadata of a field list."""

    fields: int


@dataclass(frozen=True, slots=True)
class Recirculate:
    """Take the packet that egress made through the switch again, with the metadata of a field list."""

    fields: int


@dataclass(frozen=True, slots=True)
class MarkToDrop:
    """Send the packet nowhere, unless something later decides otherwise."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Leave the pipeline once the action that says so is through."""


@dataclass(frozen=True, slots=True)
class Jump:
    """Go on with the action's primitive number `to`."""

    to: int


@dataclass(frozen=True, slots=True)
class JumpIfZero:
    """Go on with primitive `to` if `condition` is 0, else with the next."""

    condition: Expr
    to: int


Primitive: TypeAlias = (
    Assign
    | AssignChosen
    | Hash
    | ReadRegister
    | WriteRegister
    | CountAt
    | AddHeader
    | RemoveHeader
    | CopyHeader
    | Push
    | Pop
    | CopyStack
    | CopyUnion
    | Clone
    | Resubmit
    | Recirculate
    | MarkToDrop
    | Exit
    | Jump
    | JumpIfZero
)


@dataclass(frozen=True, slots=True)
class ActionParam:
    """A named parameter of an action."""

    name: str
    bits: int


@dataclass(frozen=True, slots=True)
class Action:
    """A list of primitives. `number` is unique in the program; `name` is so only within a table."""

    number: int
    name: str
    params: tuple[ActionParam, ...]
    body: tuple[Primitive, ...]


def walk(node: Any) -> Iterator[Any]:
    """Every statement, expression and reference in a block, outermost first."""
    if isinstance(node, tuple):
        for part in node:
            yield from walk(part)
    elif is_dataclass(node):
        yield node
        for part in fields(node):
            yield from walk(getattr(node, part.name))
