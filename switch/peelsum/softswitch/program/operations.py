"""A program's expressions, and the primitives of its actions and parser states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, dataclass_transform

_CRC16, _CRC32 = (
    "crc_reflected(hashed, count, 0xA001, 0)",
    "crc_reflected(hashed, count, 0xEDB88320, 0xFFFFFFFF)",
)
#: By their names in BMv2 JSON, BMv2's hash algorithms as calls of the runtime. Custom CRCs and the Toeplitz
#: hash are as they are before a controller changes them; the latter then has a key of zeros.
HASHES = {
    "crc16": _CRC16,
    "crc16_custom": _CRC16,
    "crc32": f"{_CRC32} ^ 0xFFFFFFFF",
    "crc32_custom": f"{_CRC32} ^ 0xFFFFFFFF",
    "crc8_custom": "crc_forward(hashed, count, 0x07, 0, 8)",
    "crc64_custom": "crc_reflected(hashed, count, 0xD800000000000000, 0)",
    "crcCCITT": "crc_forward(hashed, count, 0x1021, 0xFFFF, 16)",
    "csum16": "internet_checksum(hashed, count)",
    "cksum16": "internet_checksum(hashed, count)",
    "xor16": "xor_words(hashed, count, 1)",
    "xor32": "xor_words(hashed, count, 3)",
    "identity": "first_number(hashed, count)",
    "round_robin": "next_number(memory, {counter})",
    "round_robin_consistent": "consistent_number(memory, {counter}, hashed, count)",
    "toeplitz": "0",
    "hash_ex": "hash_ex(hashed, count)",
    "xxh64": "xxh64(hashed, count)",
    "bmv2_hash": "xxh64(hashed, count)",
}
#: Those of them that only the interpreter has.
INTERPRETED_HASHES = ("hash_ex", "xxh64", "bmv2_hash", "round_robin_consistent")


@dataclass_transform(frozen_default=True)
class SyntaxNode:
    """A part of a program. Every subclass is a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class Expr(SyntaxNode):
    """An expression."""


class Primitive(SyntaxNode):
    """A primitive of an action, which may be one of a parser state, too."""


# --- expressions ----------------------------------------------------------------------------------


class FieldRef(Expr):
    """A field of a header instance, as a value or as the target of an assignment."""

    header: str
    field: str


class FieldElement(Expr):
    """A field of a header in a loop over lanes: in iteration k, field number `first` + k * `step`."""

    header: str
    first: int
    step: int


class RegisterElement(SyntaxNode):
    """A register in a loop over lanes: in iteration k, register number `first` + k * `step`."""

    first: int
    step: int


Target: TypeAlias = FieldRef | FieldElement
AnyRegister: TypeAlias = "str | RegisterElement"


class Const(Expr):
    """An integer of any size and sign."""

    value: int


class Bool(Expr):
    """A Boolean literal."""

    value: bool


class Param(Expr):
    """Parameter `index` of the current action: `bits` wide, from the matching entry of `table`.

    `table` is empty in the action's declaration, since several tables may share the action. A `signed`
    parameter of up to 64 bits is in two's complement.
    """

    index: int
    bits: int
    table: str = ""
    signed: bool = False


class IsValid(Expr):
    """Whether a header is valid, as a Boolean."""

    header: str


class Hit(Expr):
    """Whether the last application of a table found an entry, as a Boolean."""

    table: str


class InValueSet(Expr):
    """Whether a number matches a member of a value set, as a Boolean."""

    value_set: str
    value: Expr


class Lookahead(Expr):
    """The `bits` bits of the packet that start `offset` bits after the parsed part. Only in parsers."""

    offset: int
    bits: int


class StackCount(Expr):
    """The number of filled elements of a header stack, which is the index of its `next`."""

    stack: str


class Unary(Expr):
    """An operator with one operand; `op` is one of `~ not d2b b2d`."""

    op: str
    operand: Expr


class Binary(Expr):
    """An operator with two operands, named as in BMv2: arithmetic, bitwise, comparison, logic, cast."""

    op: str
    left: Expr
    right: Expr


class Ternary(Expr):
    """`if_true` if `condition` holds, else `if_false`."""

    condition: Expr
    if_true: Expr
    if_false: Expr


# --- primitives of actions and parser states ------------------------------------------------------


class Assign(Primitive):
    """Store `value`, truncated to the target's width."""

    target: Target
    value: Expr


class RunIndexed(Primitive):
    """Run `cases[index]`, of which there is one per element of a stack; an index past the end runs none."""

    index: Expr
    cases: tuple[Primitive, ...]


#: Inputs of a checksum or hash, in order: (field or None, constant used if None, bits).
Inputs: TypeAlias = tuple[tuple[FieldRef | None, int, int], ...]


class Hash(Primitive):
    """Store `base` + a hash over `inputs` modulo `size`."""

    target: Target
    algorithm: str
    inputs: Inputs
    base: Expr
    size: Expr


class ReadRegister(Primitive):
    """Load a cell; an index past the end leaves the target unchanged."""

    target: Target
    register: AnyRegister
    index: Expr


class WriteRegister(Primitive):
    """Store to a cell; an index past the end stores nothing."""

    register: AnyRegister
    index: Expr
    value: Expr


class CountAt(Primitive):
    """Count the packet in an indirect counter; an index past the end counts nothing."""

    counter: str
    index: Expr


class ExecuteMeter(Primitive):
    """Store the colour that a cell of a meter gives to the packet; an index past the end stores nothing."""

    target: Target
    meter: str
    index: Expr


class Random(Primitive):
    """Store a random number between `low` and `high`, both included; if low > high, store nothing."""

    target: Target
    low: Expr
    high: Expr


class Truncate(Primitive):
    """Send at most `length` bytes of the packet. Of several calls, the shortest length counts."""

    length: Expr


class SendDigest(Primitive):
    """Send message number `message` at the end of ingress. Of several calls, only the last takes effect."""

    message: int


class Log(Primitive):
    """Send message number `message`, a line of the log."""

    message: int


class Assert(Primitive):
    """Drop the packet and send message number `message` unless `condition` holds."""

    condition: Expr
    message: int


class SetValidity(Primitive):
    """Make a header valid or invalid. The fields of one that becomes valid are zero."""

    header: str
    valid: bool


class CopyHeader(Primitive):
    """Copy a header, including its validity, to another of its type."""

    target: str
    source: str


class AssignVarbit(Primitive):
    """Copy a varbit field, including its width, to another."""

    target: FieldRef
    source: FieldRef


class ShiftStack(Primitive):
    """Shift a header stack's elements `places` up, or down if it is negative: P4's push and pop.

    Elements that are shifted out are lost, and those at the other end become invalid.
    """

    stack: str
    places: int


class CopyStack(Primitive):
    """Copy a header stack to another of its type and size."""

    target: str
    source: str


class Clone(Primitive):
    """Send a copy of the packet to the ports of clone session `session`, at the end of ingress or egress.

    The copy keeps the metadata in field list number `fields`. Of several calls, only the last takes effect.
    """

    session: Expr
    fields: int


class Resubmit(Primitive):
    """Send the packet, as it arrived, to the parser again. It keeps the metadata in field list `fields`."""

    fields: int


class Recirculate(Primitive):
    """Send the packet, as egress changed it, to the parser again. It keeps the metadata in list `fields`."""

    fields: int


class Exit(Primitive):
    """Leave the pipeline at the end of the current action."""


class Jump(Primitive):
    """Continue with the action's primitive number `to`."""

    to: int


class JumpIfZero(Primitive):
    """Continue with primitive `to` if `condition` is 0, else with the next one."""

    condition: Expr
    to: int


class Observe(Primitive):
    """Report to an observer that a packet is at point number `point`, with the values of `operands`."""

    point: int
    operands: tuple[Expr, ...] = ()


class ActionParam(SyntaxNode):
    """A named parameter of an action.

    BMv2 JSON does not declare signs: a parameter is `signed` if the program has a negative argument for it.
    """

    name: str
    bits: int
    signed: bool = False


class Action(SyntaxNode):
    """A list of primitives. `number` is unique in the program; `name` is unique only within a table."""

    number: int
    name: str
    params: tuple[ActionParam, ...]
    body: tuple[Primitive, ...]


class Source(SyntaxNode):
    """Where a table, condition or statement is in the P4 source, and its text as far as the JSON has it."""

    file: str
    line: int
    text: str


def walk(node: Any) -> Iterator[Any]:
    """Yield every statement, expression and reference in a block, outermost first."""
    if isinstance(node, tuple):
        for part in node:
            yield from walk(part)
    elif isinstance(node, SyntaxNode):
        yield node
        for value in vars(node).values():
            yield from walk(value)
