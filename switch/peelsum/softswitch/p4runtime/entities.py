"""Dispatches writes and reads of entities by their kind.

An entity of a kind that the softswitch does not support is refused, with the name of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from time import monotonic_ns
from typing import Any, Literal, NoReturn, cast

from finsy.proto import p4d, p4r
from google.protobuf.wrappers_pb2 import BytesValue

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.digests import DigestEntries
from peelsum.softswitch.p4runtime.info import (
    PipelineInfo,
    ValueSetInfo,
    counter_values,
    decode_key,
    decode_rates,
    encode_match,
    encode_rates,
    to_bytes,
    to_int,
)
from peelsum.softswitch.p4runtime.profiles import ProfileEntries
from peelsum.softswitch.p4runtime.status import (
    BatchError,
    Change,
    Code,
    RequestError,
    check_change,
    check_modifies,
    check_ports,
    invalid,
    request_error,
    unimplemented,
)
from peelsum.softswitch.p4runtime.tables import TableEntries
from peelsum.softswitch.program.model import KeyValue
from peelsum.softswitch.runtime.device import SecretPort
from peelsum.wire import SECRET_BYTES, SECRETS_EXTERN


class _Handlers(dict[str, tuple[Callable[[Change, Any], None], Callable[[Any], Iterator[Any]]]]):
    """The functions that write and read each kind of entity. Another kind raises RequestError."""

    def __missing__(self, kind: str) -> NoReturn:
        raise unimplemented(kind) if kind else invalid("entity: is empty; give one")


class Entities:
    """The entities of one pipeline that Write and Read can access."""

    def __init__(
        self,
        info: PipelineInfo,
        switch: Switch,
        ports: Collection[int] | None = None,
        secret_ports: Mapping[int, SecretPort] | None = None,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        """ports, secret_ports: as for `Device`. clock: returns nanoseconds, for time-outs."""
        self._switch = switch
        profiles, groups = ProfileEntries(info, switch, ports), ReplicationEntries(switch, ports)
        self.tables = tables = TableEntries(info, switch, profiles, clock)
        self.digests = digests = DigestEntries(info.digests, switch.messages.digests, clock)
        value_sets = ValueSetEntries(info, switch)
        meters = CellEntries("meter", info.meters, switch.meters)
        counters = CellEntries("counter", info.counters, switch.counters)
        registers = CellEntries("register", info.registers, switch.registers)
        self._handlers = _Handlers(
            table_entry=(tables.write, tables.read),
            direct_counter_entry=(tables.write_counter, tables.read_counters),
            counter_entry=(counters.write, counters.read),
            register_entry=(registers.write, registers.read),
            packet_replication_engine_entry=(groups.write, groups.read),
            meter_entry=(meters.write, meters.read),
            direct_meter_entry=(tables.write_meter, tables.read_meters),
            action_profile_member=(profiles.write_member, profiles.read_members),
            action_profile_group=(profiles.write_group, profiles.read_groups),
            value_set_entry=(value_sets.write, value_sets.read),
            digest_entry=(digests.write, digests.read),
        )
        if secret_ports is not None:
            secrets = SecretEntries(switch, secret_ports)
            self._handlers["extern_entry"] = (secrets.write, secrets.read)

    def write(
        self,
        updates: Sequence[p4r.Update],
        active: Callable[[], bool] = lambda: True,
        atomicity: p4r.WriteRequest.Atomicity.ValueType = p4r.WriteRequest.CONTINUE_ON_ERROR,
    ) -> None:
        """Attempt every update in order. Raises BatchError, with the result of each, if any failed.

        Unless `atomicity` is CONTINUE_ON_ERROR, the first update that fails ends the batch, and those before
        it are undone. With DATAPLANE_ATOMIC, no packet is processed in between.
        Raises RequestError (CANCELLED) as soon as `active` returns False, which ends the batch likewise.
        """
        all_or_none = atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR
        results: list[RequestError | None] = []
        undo: list[Callable[[], None]] = []
        with self._switch.lock if atomicity == p4r.WriteRequest.DATAPLANE_ATOMIC else nullcontext():
            try:
                for update in updates:
                    if not active():
                        done = f"{len(results)} of {len(updates)} updates were attempted; read what is there"
                        raise RequestError(Code.CANCELLED, "nothing was changed" if all_or_none else done)
                    try:
                        undo_update = self._undo(update) if all_or_none else None
                        if update.type not in (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE):
                            raise invalid(
                                f"type: update type {update.type} is unknown; use INSERT, MODIFY or DELETE"
                            )
                        kind = update.entity.WhichOneof("entity") or ""
                        self._handlers[kind][0](update.type, getattr(update.entity, kind))
                    except Exception as error:
                        results.append(request_error(error))
                        if all_or_none:
                            raise _first_failure(results, len(updates)) from None
                    else:
                        results.append(None)
                        if undo_update is not None:
                            undo.append(undo_update)
            except Exception:
                for undo_update in reversed(undo):
                    undo_update()
                raise
        if any(results):
            raise BatchError(results)

    def _undo(self, update: p4r.Update) -> Callable[[], None]:
        """Return a function that undoes an update, which has not been carried out yet.

        Raises RequestError for an entity that cannot be read.
        """
        name = update.entity.WhichOneof("entity") or ""
        write, read = self._handlers[name]
        if name == "extern_entry":
            raise unimplemented(f"{name}: rolling back what cannot be read")
        entity = getattr(update.entity, name)
        before = next((entry for entry in read(_selector(name, entity)) if _has_key_of(entry, entity)), None)
        if before is None:
            return partial(write, p4r.Update.DELETE, entity)
        if update.type != p4r.Update.DELETE:
            if name == "table_entry" and not entity.HasField("counter_data"):
                before.ClearField("counter_data")  # packets may be counted until then
            return partial(write, p4r.Update.MODIFY, before)
        if name == "table_entry" and not entity.is_default_action:
            # In its place among the entries of its priority, of which packets hit the oldest.
            return partial(self.tables.write, p4r.Update.INSERT, before, self.tables.serial(before))
        return partial(write, p4r.Update.INSERT, before)

    def read(self, selector: p4r.Entity) -> Iterator[p4r.Entity]:
        """Return the entities that `selector` selects now, encoded when consumed. Raises RequestError."""
        name, entity_class = selector.WhichOneof("entity") or "", cast(Any, p4r.Entity)

        def encode(entry: Any) -> p4r.Entity:
            entity: p4r.Entity = entity_class(**{name: entry})
            return entity

        return map(encode, self._handlers[name][1](getattr(selector, name)))


def _first_failure(results: Sequence[RequestError | None], updates: int) -> BatchError:
    """Return the error of a batch that ended with the last of `results`. The others are undone."""
    *done, failure = results
    aborted = RequestError(Code.ABORTED, f"update {len(done)} of this batch failed: nothing was changed")
    return BatchError([failure if i == len(done) else aborted for i in range(updates)])


def _selector(name: str, entity: Any) -> Any:
    """Return the selector with which a Read finds an entity. It has the entity's key only.

    name: the kind of the entity.
    """
    match name:
        case "table_entry":
            return p4r.TableEntry(
                table_id=entity.table_id,
                match=entity.match,
                priority=entity.priority,
                is_default_action=entity.is_default_action,
                counter_data=p4r.CounterData(),
                meter_config=p4r.MeterConfig(),
            )
        case "direct_counter_entry" | "direct_meter_entry":
            return type(entity)(table_entry=_selector("table_entry", entity.table_entry))
        case "value_set_entry":
            return p4r.ValueSetEntry(value_set_id=entity.value_set_id)
        case _:
            return entity


def _has_key_of(entry: Any, entity: Any) -> bool:
    """Return whether an entry that was selected has an entity's key.

    A table entry without matches selects all entries of its priority.
    """
    entry, entity = getattr(entry, "table_entry", entry), getattr(entity, "table_entry", entity)
    return not isinstance(entry, p4r.TableEntry) or bool(entry.match) == bool(entity.match)


class CellEntries:
    """The indirect counters, meters or registers of a pipeline: Write sets one cell, Read one or all."""

    def __init__(
        self,
        kind: Literal["counter", "meter", "register"],
        names: Mapping[int, str],
        state: Mapping[str, Any],
    ) -> None:
        """names: by id. state: the switch's counters, meters or registers, by name."""
        self._kind, self._names, self._state = kind, names, state

    def write(self, change: Change, entry: Any) -> None:
        """Set one cell. Raises RequestError."""
        cells = self._state[self._names[getattr(entry, f"{self._kind}_id")]]
        check_modifies(change, f"a cell of {cells.name}")
        if not entry.HasField("index"):
            raise invalid(f"{cells.name}: index is missing; give the cell's index")
        index = _checked_index(entry.index.index, cells)
        values: tuple[Any, ...]
        if self._kind == "meter":
            if entry.HasField("counter_data"):
                raise unimplemented(f"counters of meter {cells.name}")
            values = (decode_rates(entry, "config"),)
        elif self._kind == "counter":
            if not entry.HasField("data"):
                raise invalid(f"counter {cells.name}: data is missing; give packets and bytes")
            values = counter_values(entry.data, cells.name)
        else:
            if entry.data.WhichOneof("data") != "bitstring":
                raise invalid(f"register {cells.name}: data must be a bitstring")
            values = (to_int(entry.data.bitstring, cells.bits, f"register {cells.name}"),)
        cells.write(index, *values)

    def read(self, selector: Any) -> Iterator[Any]:
        """Return the entries that `selector` selects now: a cell, all cells of an array, or all for id 0."""
        array_id = getattr(selector, f"{self._kind}_id")
        arrays = []
        for cells_id in [array_id] if array_id else self._names:
            cells = self._state[self._names[cells_id]]
            first, end = 0, cells.size
            if selector.HasField("index"):
                first = _checked_index(selector.index.index, cells)
                end = first + 1
            arrays.append((cells_id, first, cells.values()[first:end]))
        return (
            self._encode(cells_id, p4r.Index(index=index), value)
            for cells_id, first, values in arrays
            for index, value in enumerate(values if self._kind == "meter" else values.tolist(), first)
        )

    def _encode(
        self, cells_id: int, index: p4r.Index, value: Any
    ) -> p4r.CounterEntry | p4r.MeterEntry | p4r.RegisterEntry:
        """Return the entry of a cell; a counter's value is its packets and bytes, a meter's its rates."""
        if self._kind == "meter":
            return p4r.MeterEntry(meter_id=cells_id, index=index, config=encode_rates(value))
        if self._kind == "counter":
            counts = p4r.CounterData(packet_count=value[0], byte_count=value[1])
            return p4r.CounterEntry(counter_id=cells_id, index=index, data=counts)
        data = p4d.P4Data(bitstring=to_bytes(value))
        return p4r.RegisterEntry(register_id=cells_id, index=index, data=data)


def _checked_index(index: int, cells: Any) -> int:
    if not 0 <= index < cells.size:
        raise RequestError(
            Code.OUT_OF_RANGE, f"{cells.name}: index {index} is not below its size {cells.size}"
        )
    return index


class ValueSetEntries:
    """The value sets of one pipeline."""

    def __init__(self, info: PipelineInfo, switch: Switch) -> None:
        self._value_sets, self._switch = info.value_sets, switch
        self._written: dict[int, p4r.ValueSetEntry] = {}

    def write(self, change: Change, entry: p4r.ValueSetEntry) -> None:
        """Replace the members of a value set. Raises RequestError or SoftswitchError, with no change."""
        value_set = self._value_sets[entry.value_set_id]
        check_modifies(change, f"value set {value_set.name}")
        keys = [decode_key(member.match, value_set) for member in entry.members]
        if len(set(keys)) != len(keys):
            raise RequestError(
                Code.ALREADY_EXISTS, f"value set {value_set.name}: a member is given twice; give it once"
            )
        self._switch.value_sets[value_set.name].set([_joined_key(key, value_set) for key in keys])
        self._written[value_set.id] = written = p4r.ValueSetEntry(value_set_id=value_set.id)
        for key in keys:
            matches = map(encode_match, key, value_set.fields)
            written.members.add(match=[match for match in matches if match is not None])

    def read(self, selector: p4r.ValueSetEntry) -> Iterator[p4r.ValueSetEntry]:
        """Return the selected value set with its members as they were written; id 0 selects all."""
        if selector.members:
            raise invalid("members: have no meaning in a read; leave them out")
        number = selector.value_set_id
        ids = [self._value_sets[number].id] if number else list(self._value_sets)
        return iter([self._written.get(n, p4r.ValueSetEntry(value_set_id=n)) for n in ids])


def _joined_key(key: Sequence[KeyValue], value_set: ValueSetInfo) -> tuple[int, int]:
    """Return value and mask of a member, with its fields side by side."""
    value = mask = 0
    for part, field in zip(key, value_set.fields, strict=True):
        number, part_mask = (part, field.all_ones) if isinstance(part, int) else part
        if field.kind == "lpm":
            part_mask = field.all_ones ^ field.all_ones >> part_mask
        value, mask = value << field.bits | number, mask << field.bits | part_mask
    return value, mask


#: The field with a group's number, by the kind of entry.
_NUMBER_FIELDS = {"multicast_group_entry": "multicast_group_id", "clone_session_entry": "session_id"}


class ReplicationEntries:
    """The multicast groups and clone sessions of one pipeline, and the metadata of groups."""

    def __init__(self, switch: Switch, ports: Collection[int] | None = None) -> None:
        """ports: the egress ports that replicas may have; None for any."""
        self._groups = {"multicast_group_entry": switch.groups, "clone_session_entry": switch.sessions}
        self._ports = ports
        self._metadata: dict[int, bytes] = {}
        # Groups that were written with the deprecated field `egress_port` are read with it.
        self._with_egress_port: set[tuple[str, int]] = set()

    def write(self, change: Change, entry: p4r.PacketReplicationEngineEntry) -> None:
        """Insert, modify or delete a group or session. An error leaves all as it was."""
        name, group, number = _split_entry(entry)
        groups = self._groups[name]
        what = f"{groups.what} {number}"
        if not 0 < number < groups.limit:
            raise invalid(f"{_NUMBER_FIELDS[name]}: {number} is not between 1 and {groups.limit - 1}")
        check_change(change, number in groups, what)
        if change == p4r.Update.DELETE:
            groups.delete(number)
            return  # the next INSERT replaces its metadata and its form
        replicas = _replicas_of(group, what)
        check_ports([port for port, _ in replicas], self._ports)
        groups.set(number, list(replicas))
        if name == "multicast_group_entry":
            self._metadata[number] = group.metadata
        self._with_egress_port.discard((name, number))
        if "egress_port" in replicas.values():
            self._with_egress_port.add((name, number))

    def read(self, selector: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.PacketReplicationEngineEntry]:
        """Return the group or session that `selector` names, if there is one; number 0 selects all."""
        name, _, requested = _split_entry(selector)
        groups = self._groups[name]
        numbers = groups.ids() if requested == 0 else [requested] if requested in groups else []
        entries = []
        for number in numbers:
            entry = p4r.PacketReplicationEngineEntry()
            group = getattr(entry, name)
            setattr(group, _NUMBER_FIELDS[name], number)
            if name == "multicast_group_entry":
                group.metadata = self._metadata.get(number, b"")
            for port, instance in groups.get(number):
                if (name, number) in self._with_egress_port:
                    group.replicas.add(egress_port=port, instance=instance)
                else:
                    group.replicas.add(port=to_bytes(port), instance=instance)
            entries.append(entry)
        return iter(entries)


def _split_entry(entry: p4r.PacketReplicationEngineEntry) -> tuple[str, Any, int]:
    """Return an entry's kind, its group or session, and the number of the group or session."""
    name = entry.WhichOneof("type")
    if name is None:
        raise invalid("packet_replication_engine_entry: is empty; give a multicast group or a clone session")
    group = getattr(entry, name)
    return name, group, getattr(group, _NUMBER_FIELDS[name])


def _replicas_of(group: Any, what: str) -> dict[tuple[int, int], str]:
    """Return by (port, instance) of each replica the field with its port. Raises RequestError.

    what: the group's name in errors.
    """
    for name in ("class_of_service", "packet_length_bytes"):
        if getattr(group, name, 0):
            raise unimplemented(f"{what}: {name}")
    replicas: dict[tuple[int, int], str] = {}
    for replica in group.replicas:
        if replica.backup_replicas:
            raise unimplemented("backup replicas")
        kind = replica.WhichOneof("port_kind")
        if kind is None:
            raise invalid(f"{what}: a replica has no port; give it one")
        port = to_int(replica.port, 32, "port") if kind == "port" else replica.egress_port
        if (port, replica.instance) in replicas:
            raise invalid(
                f"{what}: port {port} instance {replica.instance} appears twice; give each replica once"
            )
        replicas[port, replica.instance] = kind
    return replicas


class SecretEntries:
    """The secrets of a switch's UDP ports."""

    def __init__(self, switch: Switch, ports: Mapping[int, SecretPort]) -> None:
        self._switch, self._ports = switch, ports

    def write(self, change: Change, entry: p4r.ExternEntry) -> None:
        """Insert, modify or delete a port's secret. If it raises RequestError, nothing has changed."""
        port = self._port(entry)
        check_change(change, port.has_secret, f"secret of port {entry.extern_id}")
        secret, value = bytes(SECRET_BYTES), BytesValue()
        if change != p4r.Update.DELETE:
            secret = value.value if entry.entry.Unpack(value) else b""
            if len(secret) != SECRET_BYTES or not any(secret):
                raise invalid(f"entry: is not a secret; give a BytesValue of {SECRET_BYTES} random bytes")
        with self._switch.lock:  # the compiled loop, which reads secrets, holds this lock
            port.set_secret(secret)

    def read(self, selector: p4r.ExternEntry) -> Iterator[p4r.ExternEntry]:
        """Yield an entry, without its value, for the selected port if it has a secret; port 0 selects all.

        Raises RequestError for another extern or port.
        """
        ports = {selector.extern_id: self._port(selector)} if selector.extern_id else self._ports
        if selector.extern_type_id != SECRETS_EXTERN:
            raise unimplemented(f"extern_type_id {selector.extern_type_id}")
        numbers = [number for number, port in ports.items() if port.has_secret]
        return iter([p4r.ExternEntry(extern_type_id=SECRETS_EXTERN, extern_id=n) for n in numbers])

    def _port(self, entry: p4r.ExternEntry) -> SecretPort:
        """Return the port that an entry names. Raises RequestError if there is none."""
        if entry.extern_type_id != SECRETS_EXTERN:
            raise unimplemented(f"extern_type_id {entry.extern_type_id}")
        check_ports([entry.extern_id], self._ports, "extern_id: ")
        return self._ports[entry.extern_id]
