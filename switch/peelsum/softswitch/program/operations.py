"""A program's expressions, and the primitives of its actions and parser states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

#: Hash algorithms, by their names in BMv2 JSON.
HASHES = ("crc16", "crc32", "csum16", "xor16", "identity")

# --- expressions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of a header instance, as a value or as the target of an assignment."""

    header: str
    field: str


@dataclass(frozen=True, slots=True)
class FieldElement:
    """A field of a header in a loop over lanes: in iteration k, field number `first` + k * `step`."""

    header: str
    first: int
    step: int


@dataclass(frozen=True, slots=True)
class RegisterElement:
    """A register in a loop over lanes: in iteration k, register number `first` + k * `step`."""

    first: int
    step: int


Target: TypeAlias = FieldRef | FieldElement
AnyRegister: TypeAlias = "str | RegisterElement"


@dataclass(frozen=True, slots=True)
class Const:
    """An integer of any size and sign."""

    value: int


@dataclass(frozen=True, slots=True)
class Bool:
    """A Boolean literal."""

    value: bool


@dataclass(frozen=True, slots=True)
class Param:
    """Parameter `index` of the current action: `bits` wide, from the matching entry of `table`.

    `table` is empty in the action's declaration, since several tables may share the action. A `signed`
    parameter of up to 64 bits is in two's complement.
    """

    index: int
    bits: int
    table: str = ""
    signed: bool = False


@dataclass(frozen=True, slots=True)
class IsValid:
    """Whether a header is valid, as a Boolean."""

    header: str


@dataclass(frozen=True, slots=True)
class Hit:
    """Whether the last application of a table found an entry, as a Boolean."""

    table: str


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The `bits` bits of the packet that start `offset` bits after the parsed part. Only in parsers."""

    offset: int
    bits: int


@dataclass(frozen=True, slots=True)
class StackCount:
    """The number of filled elements of a header stack, which is the index of its `next`."""

    stack: str


@dataclass(frozen=True, slots=True)
class Unary:
    """An operator with one operand; `op` is one of `~ not d2b b2d`."""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator with two operands, named as in BMv2: arithmetic, bitwise, comparison, logic, cast."""

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
    | FieldElement
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

# --- primitives of actions and parser states ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assign:
    """Store `value`, truncated to the target's width."""

    target: Target
    value: Expr


@dataclass(frozen=True, slots=True)
class AssignIndexed:
    """Store `value` in `targets[index]`; an index past the end stores nothing."""

    targets: tuple[Target, ...]
    index: Expr
    value: Expr


#: Inputs of a checksum or hash, in order: (field or None, constant used if None, bits).
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
    """Load a cell; an index past the end leaves the target unchanged."""

    target: Target
    register: AnyRegister
    index: Expr


@dataclass(frozen=True, slots=True)
class WriteRegister:
    """Store to a cell; an index past the end stores nothing."""

    register: AnyRegister
    index: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class CountAt:
    """Count the packet in an indirect counter; an index past the end counts nothing."""

    counter: str
    index: Expr


@dataclass(frozen=True, slots=True)
class SetValidity:
    """Make a header valid or invalid. The fields of one that becomes valid are zero."""

    header: str
    valid: bool


@dataclass(frozen=True, slots=True)
class CopyHeader:
    """Copy a header, including its validity, to another of its type."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class ShiftStack:
    """Shift a header stack's elements `places` up, or down if it is negative: P4's push and pop.

    Elements that are shifted out are lost, and those at the other end become invalid.
    """

    stack: str
    places: int


@dataclass(frozen=True, slots=True)
class CopyStack:
    """Copy a header stack to another of its type and size."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class Clone:
    """Send a copy of the packet to the ports of clone session `session`, at the end of ingress or egress.

    The copy keeps the metadata in field list number `fields`. Of several calls, only the last takes effect.
    """

    session: Expr
    fields: int


@dataclass(frozen=True, slots=True)
class Resubmit:
    """Send the packet, as it arrived, to the parser again. It keeps the metadata in field list `fields`."""

    fields: int


@dataclass(frozen=True, slots=True)
class Recirculate:
    """Send the packet, as egress changed it, to the parser again. It keeps the metadata in list `fields`."""

    fields: int


@dataclass(frozen=True, slots=True)
class Exit:
    """Leave the pipeline at the end of the current action."""


@dataclass(frozen=True, slots=True)
class Jump:
    """Continue with the action's primitive number `to`."""

    to: int


@dataclass(frozen=True, slots=True)
class JumpIfZero:
    """Continue with primitive `to` if `condition` is 0, else with the next one."""

    condition: Expr
    to: int


Primitive: TypeAlias = (
    Assign
    | AssignIndexed
    | Hash
    | ReadRegister
    | WriteRegister
    | CountAt
    | SetValidity
    | CopyHeader
    | ShiftStack
    | CopyStack
    | Clone
    | Resubmit
    | Recirculate
    | Exit
    | Jump
    | JumpIfZero
)


@dataclass(frozen=True, slots=True)
class ActionParam:
    """A named parameter of an action.

    BMv2 JSON does not declare signs: a parameter is `signed` if the program has a negative argument for it.
    """

    name: str
    bits: int
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """A list of primitives. `number` is unique in the program; `name` is unique only within a table."""

    number: int
    name: str
    params: tuple[ActionParam, ...]
    body: tuple[Primitive, ...]


def walk(node: Any) -> Iterator[Any]:
    """Yield every statement, expression and reference in a block, outermost first."""
    if isinstance(node, tuple):
        for part in node:
            yield from walk(part)
    elif is_dataclass(node):
        yield node
        for part in fields(node):
            yield from walk(getattr(node, part.name))
