"""Converts P4Runtime's byte strings and match fields, in canonical form, to integers and back.

It checks that values fit the widths in the P4Info.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finsy.proto import p4i, p4r

from peelsum.softswitch.p4runtime.status import invalid
from peelsum.softswitch.program.model import KeyValue

MatchKind = Literal["exact", "lpm", "ternary", "range", "optional"]

MATCH_KINDS: dict[int, MatchKind] = {
    p4i.MatchField.EXACT: "exact",
    p4i.MatchField.LPM: "lpm",
    p4i.MatchField.TERNARY: "ternary",
    p4i.MatchField.RANGE: "range",
    p4i.MatchField.OPTIONAL: "optional",
}


@dataclass(frozen=True)
class FieldInfo:
    """One key field of a table, as P4Info declares it."""

    id: int
    name: str
    bits: int
    kind: MatchKind

    @property
    def all_ones(self) -> int:
        """The mask of all bits."""
        return (1 << self.bits) - 1


def to_int(value: bytes, bits: int, what: str) -> int:
    """Return a byte string as an unsigned integer. Raises RequestError if it does not fit `bits`."""
    if not value:
        raise invalid(f"{what}: the byte string is empty; zero is written as one zero byte")
    number = int.from_bytes(value, "big")
    if number >> bits:
        raise invalid(f"{what}: {number:#x} does not fit {bits} bits; use a smaller value")
    return number


def to_bytes(number: int) -> bytes:
    """Return the canonical byte string: the shortest one, at least one byte."""
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")


def wildcard(field: FieldInfo) -> KeyValue | None:
    """Return the key part that matches everything; None for exact fields, which must not be omitted."""
    match field.kind:
        case "exact":
            return None
        case "range":
            return (0, field.all_ones)
        case _:
            return (0, 0)


def decode_match(match: p4r.FieldMatch, field: FieldInfo) -> KeyValue:
    """Return a FieldMatch's key part.

    Raises RequestError for another match kind than the field's, a wildcard, and bits outside of the mask.
    """
    if match.WhichOneof("field_match_type") != field.kind:
        match_kind = match.WhichOneof("field_match_type") or "none"
        raise invalid(f"{field.name}: the match is of kind {match_kind}; the table declares {field.kind}")
    part = _decode(match, field)
    if part == wildcard(field):
        raise invalid(f"{field.name}: leave the field out to match anything")
    return part


def _decode(match: p4r.FieldMatch, field: FieldInfo) -> KeyValue:
    name, bits = field.name, field.bits
    match field.kind:
        case "exact":
            return to_int(match.exact.value, bits, name)
        case "optional":
            return (to_int(match.optional.value, bits, name), field.all_ones)
        case "ternary":
            value = to_int(match.ternary.value, bits, name)
            mask = to_int(match.ternary.mask, bits, f"{name} (mask)")
            return (_masked(value, mask, name), mask)
        case "lpm":
            length = match.lpm.prefix_len
            if not 0 <= length <= bits:
                raise invalid(f"{name}: prefix length {length} is not between 0 and {bits}")
            mask = field.all_ones ^ ((1 << (bits - length)) - 1)
            return (_masked(to_int(match.lpm.value, bits, name), mask, name), length)
        case "range":
            low = to_int(match.range.low, bits, f"{name} (low)")
            high = to_int(match.range.high, bits, f"{name} (high)")
            if low > high:
                raise invalid(f"{name}: the range {low}..{high} is empty; swap its ends")
            return (low, high)


def _masked(value: int, mask: int, name: str) -> int:
    if value & ~mask:
        raise invalid(f"{name}: {value:#x} has bits set that the mask {mask:#x} ignores; clear them")
    return value


def encode_match(part: KeyValue, field: FieldInfo) -> p4r.FieldMatch | None:
    """Return the FieldMatch of a key part; None if the canonical form omits the field."""
    if part == wildcard(field):
        return None
    match = p4r.FieldMatch(field_id=field.id)
    if isinstance(part, int):
        match.exact.value = to_bytes(part)
        return match
    first, second = part
    match field.kind:
        case "optional":
            match.optional.value = to_bytes(first)
        case "lpm":
            match.lpm.value, match.lpm.prefix_len = to_bytes(first), second
        case "range":
            match.range.low, match.range.high = to_bytes(first), to_bytes(second)
        case _:
            match.ternary.value, match.ternary.mask = to_bytes(first), to_bytes(second)
    return match
