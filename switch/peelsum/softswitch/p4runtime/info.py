"""Indexes a P4Info by id, and converts numbers, match fields and packets between P4Runtime and the switch.

A P4Info with something that the softswitch does not support is refused, e.g. translated types. Byte strings
are in canonical form, and numbers must fit the widths in the P4Info.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

from finsy.proto import p4d, p4i, p4r

from peelsum.softswitch.p4runtime.status import denied, invalid, unimplemented
from peelsum.softswitch.program.model import ActionChoice, KeyValue
from peelsum.softswitch.runtime.meters import Rates

_T = TypeVar("_T")
MatchKind = Literal["exact", "lpm", "ternary", "range", "optional"]
#: What identifies an entry: table, key, priority.
EntryKey: TypeAlias = tuple[str, tuple[KeyValue, ...], int]

_KIND_NAMES = {number: name.lower() for name, number in p4i.MatchField.MatchType.items()}


@dataclass(frozen=True)
class FieldInfo:
    """A number of `bits` bits: a key field of a table, or a parameter or metadata field, without a `kind`.

    wildcard: the key part that matches everything; None for exact fields, which must not be omitted.
    """

    id: int
    name: str
    bits: int
    kind: MatchKind | None = None
    wildcard: KeyValue | None = None

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


def decode_match(match: p4r.FieldMatch, field: FieldInfo) -> KeyValue:
    """Return a FieldMatch's key part.

    Raises RequestError for another match kind than the field's, a wildcard, and bits outside of the mask.
    """
    if match.WhichOneof("field_match_type") != field.kind:
        match_kind = match.WhichOneof("field_match_type") or "none"
        raise invalid(f"{field.name}: the match is of kind {match_kind}; the table declares {field.kind}")
    name, bits = field.name, field.bits
    part: KeyValue
    match field.kind:
        case "exact":
            part = to_int(match.exact.value, bits, name)
        case "optional":
            part = to_int(match.optional.value, bits, name), field.all_ones
        case "ternary":
            value = to_int(match.ternary.value, bits, name)
            mask = to_int(match.ternary.mask, bits, f"{name} (mask)")
            part = _masked(value, mask, name), mask
        case "lpm":
            length = match.lpm.prefix_len
            if not 0 <= length <= bits:
                raise invalid(f"{name}: prefix length {length} is not between 0 and {bits}")
            mask = field.all_ones ^ ((1 << (bits - length)) - 1)
            part = _masked(to_int(match.lpm.value, bits, name), mask, name), length
        case _:
            low = to_int(match.range.low, bits, f"{name} (low)")
            high = to_int(match.range.high, bits, f"{name} (high)")
            if low > high:
                raise invalid(f"{name}: the range {low}..{high} is empty; swap its ends")
            part = low, high
    if part == field.wildcard:
        raise invalid(f"{name}: leave the field out to match anything")
    return part


def _masked(value: int, mask: int, name: str) -> int:
    if value & ~mask:
        raise invalid(f"{name}: {value:#x} has bits set that the mask {mask:#x} ignores; clear them")
    return value


def encode_match(part: KeyValue, field: FieldInfo) -> p4r.FieldMatch | None:
    """Return the FieldMatch of a key part; None if the canonical form omits the field."""
    if part == field.wildcard:
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


def counter_values(data: p4r.CounterData, name: str) -> tuple[int, int]:
    """Return packets and bytes of a counter's data. Raises RequestError if one is negative."""
    if data.packet_count < 0 or data.byte_count < 0:
        least = min(data.packet_count, data.byte_count)
        raise invalid(f"counter of {name}: {least} is negative; use 0 or more")
    return data.packet_count, data.byte_count


def decode_rates(message: p4r.MeterEntry | p4r.DirectMeterEntry | p4r.TableEntry, field: str) -> Rates | None:
    """Return the rates in a message's `field`; None if it is unset. Raises RequestError."""
    if not message.HasField(field):  # type: ignore[arg-type]
        return None
    config = getattr(message, field)
    if config.eburst:
        raise invalid("eburst: is for single-rate meters; leave it out, as this meter has two rates")
    return Rates(config.cir, config.cburst, config.pir, config.pburst)


def encode_rates(rates: Rates | None) -> p4r.MeterConfig | None:
    """Return the configuration of a meter; None if it is not configured."""
    if rates is None:
        return None
    committed, committed_burst, peak, peak_burst = rates
    return p4r.MeterConfig(cir=committed, cburst=committed_burst, pir=peak, pburst=peak_burst)


@dataclass(frozen=True)
class ActionInfo:
    """An action, by its P4Info name."""

    id: int
    name: str
    params: tuple[FieldInfo, ...]


@dataclass(frozen=True)
class ProfileInfo:
    """An action profile, the actions that its members may have, and the largest size of groups; 0 is any."""

    id: int
    name: str
    actions: Mapping[int, ActionInfo]
    max_group_size: int


@dataclass(frozen=True)
class ValueSetInfo:
    """A value set, with the fields of its members."""

    id: int
    name: str
    fields: tuple[FieldInfo, ...]


@dataclass(frozen=True)
class DigestInfo:
    """A digest of a "struct", a "tuple" or one "value", and `p4d.P4Data`'s field for each of its numbers."""

    id: int
    name: str
    kind: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class TableInfo:
    """A table: its key in declaration order, its actions, and which its entries and its default may use."""

    id: int
    name: str
    fields: tuple[FieldInfo, ...]
    actions: Mapping[int, ActionInfo]
    entry_actions: frozenset[int]
    default_actions: frozenset[int]
    is_const: bool
    const_default: bool
    direct_counter: str | None
    direct_meter: str | None = None
    profile: ProfileInfo | None = None
    idle_timeout: bool = False
    needs_priority: bool = False
    """Whether entries can overlap and therefore need a priority."""


class Declarations(dict[int, _T]):
    """What a P4Info declares of one kind, by id. An id that it does not declare raises RequestError."""

    def __init__(self, kind: str) -> None:
        """kind: such as "action profile"."""
        super().__init__()
        self._kind = kind

    def __missing__(self, number: int) -> _T:
        field = f"{self._kind.replace(' ', '_')}_id"
        raise invalid(f"{field}: no {self._kind} {number:#x} in the P4Info; use one of its ids")


@dataclass(frozen=True)
class PipelineInfo:
    """Everything that a request may name, by id."""

    tables: dict[int, TableInfo]
    actions: dict[int, ActionInfo]
    counters: dict[int, str]
    """Names of indirect counters."""
    registers: dict[int, str]
    """Names of registers."""
    packet_headers: Mapping[str, tuple[FieldInfo, ...]]
    meters: Mapping[int, str] = attribute(default_factory=dict)
    """Names of indirect meters."""
    profiles: Mapping[int, ProfileInfo] = attribute(default_factory=dict)
    value_sets: dict[int, ValueSetInfo] = attribute(default_factory=dict)
    digests: dict[int, DigestInfo] = attribute(default_factory=dict)

    @classmethod
    def of(cls, p4info: p4i.P4Info) -> PipelineInfo:
        """Index a P4Info. Raises RequestError: UNIMPLEMENTED, or INVALID_ARGUMENT if it is inconsistent."""
        for extern in p4info.externs:
            raise unimplemented(f"extern {extern.extern_type_name}")
        specs: list[Any] = [*p4info.meters, *p4info.direct_meters]
        for item in specs:
            if item.spec.type == p4i.MeterSpec.SINGLE_RATE_THREE_COLOR:
                raise unimplemented(f"single-rate meter {item.preamble.name}")
        for name, new_type in p4info.type_info.new_types.items():
            if new_type.WhichOneof("representation") == "translated_type":
                raise unimplemented(f"translated type {name}")
        actions = _by_id(
            "action",
            p4info.actions,
            lambda number, name, action: ActionInfo(number, name, _numbers(action.params)),
        )
        counters = {counter.direct_table_id: counter.preamble.name for counter in p4info.direct_counters}
        meters = {meter.direct_table_id: meter.preamble.name for meter in p4info.direct_meters}
        profiles = _by_id("action profile", p4info.action_profiles, partial(_profile, p4info, actions))
        return cls(
            tables=_by_id("table", p4info.tables, partial(_table, actions, counters, meters, profiles)),
            actions=actions,
            counters=_by_id("counter", p4info.counters, lambda _, name, counter: name),
            registers=_by_id("register", p4info.registers, _register),
            packet_headers={
                header.preamble.name: _numbers(header.metadata)
                for header in p4info.controller_packet_metadata
            },
            meters=_by_id("meter", p4info.meters, lambda _, name, meter: name),
            profiles=profiles,
            value_sets=_by_id(
                "value set",
                p4info.value_sets,
                lambda number, name, item: ValueSetInfo(number, name, _key_fields(name, item.match)),
            ),
            digests=_by_id("digest", p4info.digests, partial(_digest, p4info.type_info)),
        )


def _numbers(declarations: Iterable[Any]) -> tuple[FieldInfo, ...]:
    return tuple(FieldInfo(item.id, item.name, item.bitwidth) for item in declarations)


def _by_id(
    kind: str, declarations: Iterable[Any], convert: Callable[[int, str, Any], _T]
) -> Declarations[_T]:
    """Return what `convert` makes of each id, name and declaration. Raises RequestError for bad ids."""
    indexed: Declarations[_T] = Declarations(kind)
    for item in declarations:
        number, name = item.preamble.id, item.preamble.name
        if not number:
            raise invalid(f"p4info: {name!r} has no id; compile the program again")
        if number in indexed:
            raise invalid(f"p4info: id {number:#x} is used twice; compile the program again")
        indexed[number] = convert(number, name, item)
    return indexed


def _profile(
    p4info: p4i.P4Info, actions: Mapping[int, ActionInfo], number: int, name: str, profile: p4i.ActionProfile
) -> ProfileInfo:
    if profile.HasField("sum_of_members") or profile.weights_disallowed:
        raise unimplemented(f"sizes that are no sums of weights, of action profile {name}")
    tables = [table for table in p4info.tables if table.implementation_id == number]
    references = [item for table in tables for item in table.action_refs]
    ids = {item.id for item in references if item.scope != p4i.ActionRef.DEFAULT_ONLY} & actions.keys()
    return ProfileInfo(number, name, {i: actions[i] for i in ids}, profile.max_group_size)


#: By type of a number, the field of `p4d.P4Data` for it.
_DIGEST_FIELDS = {"bitstring": "bitstring", "bool": "bool", "serializable_enum": "enum_value"}


def _digest(types: Any, number: int, name: str, digest: p4i.Digest) -> DigestInfo:
    """Return a digest. Raises RequestError unless its data are numbers."""
    kind: str = digest.type_spec.WhichOneof("type_spec") or "empty"
    members = [digest.type_spec]
    if kind == "struct":
        members = [member.type_spec for member in types.structs[digest.type_spec.struct.name].members]
    elif kind == "tuple":
        members = list(digest.type_spec.tuple.members)
    else:
        kind = "value"
    kinds = []
    for member in members:
        while member.WhichOneof("type_spec") == "new_type":
            member = types.new_types[member.new_type.name].original_type
        kinds.append(_DIGEST_FIELDS.get(member.WhichOneof("type_spec") or "", ""))
    if "" in kinds:
        raise unimplemented(f"digest {name} of other types than numbers")
    return DigestInfo(number, name, kind, tuple(kinds))


def encode_digest(digest: DigestInfo, values: Sequence[int]) -> p4d.P4Data:
    """Return the data of a digest with these values."""
    numbers = [p4d.P4Data() for _ in values]
    for number, kind, value in zip(numbers, digest.members, values, strict=True):
        setattr(number, kind, bool(value) if kind == "bool" else to_bytes(value))
    if digest.kind == "value":
        return numbers[0]
    data = p4d.P4Data()
    getattr(data, digest.kind).members.extend(numbers)
    return data


def decode_action(
    action: p4r.Action, known: Mapping[int, ActionInfo], owner: str
) -> tuple[ActionInfo, tuple[int, ...]]:
    """Return an action and its arguments. Raises RequestError if it is not `known` to its owner."""
    declared = known.get(action.action_id)
    if declared is None:
        raise invalid(f"{owner}: has no action {action.action_id:#x}; use one of its own")
    values_by_id = {param.param_id: param.value for param in action.params}
    if len(values_by_id) != len(action.params):
        raise invalid(f"action {declared.name}: a parameter is given twice; give each once")
    values: list[int] = []
    for param in declared.params:
        if param.id not in values_by_id:
            raise invalid(f"action {declared.name}: parameter {param.name} is missing; give its value")
        values.append(to_int(values_by_id.pop(param.id), param.bits, f"{declared.name}.{param.name}"))
    if values_by_id:
        raise invalid(f"action {declared.name}: has no parameter {min(values_by_id)}; use the P4Info's ids")
    return declared, tuple(values)


def decode_entry_action(
    entry: p4r.TableEntry,
    table: TableInfo,
    decode_choice: Callable[[p4r.TableAction, ProfileInfo], ActionChoice],
) -> tuple[ActionChoice, tuple[int, ...]]:
    """Return the action of an entry or default action, and its arguments. Raises RequestError.

    decode_choice: returns the choice of an entry in an action profile.
    """
    if table.profile is not None:
        return decode_choice(entry.action, table.profile), ()
    kind = entry.action.WhichOneof("type")
    if kind != "action":
        raise invalid(f"table {table.name}: the action is {kind or 'missing'}; it must be a direct action")
    action, params = decode_action(entry.action.action, table.actions, f"table {table.name}")
    if action.id not in (table.default_actions if entry.is_default_action else table.entry_actions):
        owner = "the default" if entry.is_default_action else "an entry"
        raise denied(f"table {table.name}: {action.name} cannot be {owner}'s action")
    return action.name, params


def encode_action(action: ActionInfo, params: Sequence[int]) -> p4r.Action:
    """Return an action with arguments."""
    values = [
        p4r.Action.Param(param_id=param.id, value=to_bytes(value))
        for param, value in zip(action.params, params, strict=True)
    ]
    return p4r.Action(action_id=action.id, params=values)


def decode_entry_key(entry: p4r.TableEntry, table: TableInfo) -> EntryKey:
    """Return what identifies an entry. Raises RequestError for a wrong priority or match."""
    if table.needs_priority and entry.priority <= 0:
        raise invalid(f"table {table.name}: priority {entry.priority} must be positive; larger goes first")
    if not table.needs_priority and entry.priority:
        raise invalid(f"table {table.name}: entries cannot overlap, so priority must be 0")
    return table.name, decode_key(entry.match, table), entry.priority


def decode_key(matches: Sequence[p4r.FieldMatch], owner: TableInfo | ValueSetInfo) -> tuple[KeyValue, ...]:
    """Return the key of match fields; omitted ones are wildcards. Raises RequestError."""
    matches_by_id: dict[int, p4r.FieldMatch] = {}
    for match in matches:
        if match.field_id in matches_by_id:
            raise invalid(f"{owner.name}: match field {match.field_id} is given twice; give it once")
        matches_by_id[match.field_id] = match
    key: list[KeyValue] = []
    for field in owner.fields:
        match_field = matches_by_id.pop(field.id, None)
        key_part = field.wildcard if match_field is None else decode_match(match_field, field)
        if key_part is None:
            raise invalid(f"{owner.name}: exact field {field.name} is missing; give its value")
        key.append(key_part)
    if matches_by_id:
        raise invalid(f"{owner.name}: has no match field {min(matches_by_id)}; use the P4Info's ids")
    return tuple(key)


def _key_fields(owner: str, declarations: Iterable[Any]) -> tuple[FieldInfo, ...]:
    """Return the fields of a key. Raises RequestError for unknown match kinds and missing widths."""
    fields = []
    for match in declarations:
        kind = _KIND_NAMES.get(match.match_type)
        if kind not in get_args(MatchKind):
            unknown = match.other_match_type or match.match_type
            raise unimplemented(f"match kind {unknown} of {owner}.{match.name}")
        if match.bitwidth <= 0:
            raise invalid(f"p4info: {owner}.{match.name} has no bit width; compile the program again")
        all_ones = (1 << match.bitwidth) - 1
        wildcard = None if kind == "exact" else (0, all_ones if kind == "range" else 0)
        fields.append(FieldInfo(match.id, match.name, match.bitwidth, cast(MatchKind, kind), wildcard))
    return tuple(fields)


def _table(
    actions: dict[int, ActionInfo],
    counters: dict[int, str],
    meters: dict[int, str],
    profiles: dict[int, ProfileInfo],
    table_id: int,
    name: str,
    table: p4i.Table,
) -> TableInfo:
    if table.implementation_id and table.implementation_id not in profiles:
        raise invalid(f"p4info: table {name} has an action profile that is not declared; compile it again")
    for reference in table.action_refs:
        if reference.id not in actions:
            raise invalid(f"p4info: table {name} refers to action {reference.id:#x}, which is not declared")
    scopes = {reference.id: reference.scope for reference in table.action_refs}
    fields = _key_fields(name, table.match_fields)
    return TableInfo(
        id=table_id,
        name=name,
        fields=fields,
        actions={number: actions[number] for number in scopes},
        entry_actions=frozenset(i for i, scope in scopes.items() if scope != p4i.ActionRef.DEFAULT_ONLY),
        default_actions=frozenset(i for i, scope in scopes.items() if scope != p4i.ActionRef.TABLE_ONLY),
        is_const=table.is_const_table,
        const_default=table.const_default_action_id != 0,
        direct_counter=counters.get(table_id),
        direct_meter=meters.get(table_id),
        profile=profiles.get(table.implementation_id),
        idle_timeout=table.idle_timeout_behavior == p4i.Table.NOTIFY_CONTROL,
        needs_priority=any(field.kind in ("ternary", "range", "optional") for field in fields),
    )


def _register(_: int, name: str, register: p4i.Register) -> str:
    if not register.type_spec.bitstring.HasField("bit"):
        raise unimplemented(f"register {name} of a type other than bit<N>")
    return name


#: The longest IPv4 packet, longer than any link's frames.
_LONGEST_PAYLOAD = 0xFFFF


def to_frame(packet: p4r.PacketOut, info: PipelineInfo) -> bytes:
    """Return the frame of a PacketOut: the `packet_out` header, if the program has one, and the payload.

    A field that the controller omits is zero. Raises RequestError for metadata that the header does not have,
    and for payloads that are too long.
    """
    if len(packet.payload) > _LONGEST_PAYLOAD:
        raise invalid(f"packet_out: {len(packet.payload)} bytes are too many; send up to {_LONGEST_PAYLOAD}")
    values = {item.metadata_id: item.value for item in packet.metadata}
    if len(values) != len(packet.metadata):
        raise invalid("packet_out: a metadata field is given twice; give each once")
    header = info.packet_headers.get("packet_out", ())
    header_number = 0
    for field in header:
        value = to_int(values.pop(field.id, b"\0"), field.bits, f"packet_out.{field.name}")
        header_number = header_number << field.bits | value
    if values:
        raise invalid(f"packet_out: has no metadata field {min(values)}; use the P4Info's ids")
    return header_number.to_bytes(sum(field.bits for field in header) // 8, "big") + packet.payload


def to_packet_in(frame: bytes, info: PipelineInfo) -> p4r.PacketIn:
    """Return the PacketIn of a frame that left on the CPU port, with its `packet_in` header as metadata."""
    header = info.packet_headers.get("packet_in", ())
    size = sum(field.bits for field in header) // 8
    number = int.from_bytes(frame[:size].ljust(size, b"\0"), "big")
    packet = p4r.PacketIn(payload=frame[size:])
    remaining = 8 * size
    for field in header:
        remaining -= field.bits
        value = number >> remaining & ((1 << field.bits) - 1)
        packet.metadata.add(metadata_id=field.id, value=to_bytes(value))
    return packet
