"""A forwarding pipeline configuration that a controller sent, with the switch that was built from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from finsy.proto import p4i, p4r
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from peelsum.reading import parse_json
from peelsum.softswitch.compiler.loading import MOST_PROGRAM_BYTES, parse
from peelsum.softswitch.errors import SoftswitchError, UnsupportedConstruct
from peelsum.softswitch.p4runtime.entities import Entities
from peelsum.softswitch.p4runtime.info import PipelineInfo
from peelsum.softswitch.p4runtime.status import Code, RequestError, invalid, one_line
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.runtime.device import Device

_Get = p4r.GetForwardingPipelineConfigRequest
_WITH_P4INFO = (_Get.ALL, _Get.P4INFO_AND_COOKIE)
_WITH_DEVICE_CONFIG = (_Get.ALL, _Get.DEVICE_CONFIG_AND_COOKIE)


def _replication(**entry: Any) -> p4r.Entity:
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(**entry))


#: Selectors of the entities that RECONCILE_AND_COMMIT keeps, in the order in which they refer to each other.
_FORWARDING_STATE = (
    p4r.Entity(action_profile_member=p4r.ActionProfileMember()),
    p4r.Entity(action_profile_group=p4r.ActionProfileGroup()),
    p4r.Entity(table_entry=p4r.TableEntry()),
    p4r.Entity(meter_entry=p4r.MeterEntry()),
    p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry()),
    p4r.Entity(value_set_entry=p4r.ValueSetEntry()),
    p4r.Entity(digest_entry=p4r.DigestEntry()),
    _replication(multicast_group_entry=p4r.MulticastGroupEntry()),
    _replication(clone_session_entry=p4r.CloneSessionEntry()),
)
#: Kinds of entities that always exist, and so are modified instead of inserted.
_CELLS = ("meter_entry", "direct_meter_entry", "value_set_entry")
_DEFAULTS = p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True))


class InstalledPipeline:
    """A verified configuration, its switch, and the entities of that switch."""

    def __init__(self, config: p4r.ForwardingPipelineConfig, device: Device) -> None:
        """Verify a configuration and build its switch. Raises RequestError."""
        self.config = config
        self.info, program = verify(config)
        self.switch = device.build(program)
        self.entities = Entities(self.info, self.switch, device.ports, device.secret_ports)
        self._port_is_up = device.port_is_up
        self.initial_defaults = list(self.read(_DEFAULTS))

    def check_ports(self) -> None:
        """Choose only members of groups whose watched ports are up now."""
        for profile in self.switch.profiles.values():
            profile.set_down({port for port in profile.watched_ports if not self._port_is_up(port)})

    def copy_state(self, source: InstalledPipeline) -> None:
        """Copy another pipeline's forwarding state, for RECONCILE_AND_COMMIT.

        These are all entities except counters and registers, which start at zero. Default actions are copied
        if a controller has changed them. Raises RequestError if this program cannot have one of the entities.
        """
        updates = []
        for selector in _FORWARDING_STATE:
            kind = str(selector.WhichOneof("entity"))
            change = p4r.Update.MODIFY if kind in _CELLS else p4r.Update.INSERT
            for entity in source.read(selector):
                # A program may have a million meters without rates.
                is_without_rates = "meter" in kind and not getattr(entity, kind).HasField("config")
                if not (is_without_rates or entity.table_entry.is_const):
                    updates.append(p4r.Update(type=change, entity=entity))
        updates += [
            p4r.Update(type=p4r.Update.MODIFY, entity=entity)
            for entity in source.read(_DEFAULTS)
            if entity not in source.initial_defaults
        ]
        self.entities.write(updates)

    def read(self, selector: p4r.Entity) -> Iterator[p4r.Entity]:
        """Return the selected entities; none if the softswitch has no entities of this kind."""
        try:
            return self.entities.read(selector)
        except RequestError as error:
            if error.code is not Code.UNIMPLEMENTED:
                raise
            return iter(())

    def to_response(self, response_type: int) -> p4r.ForwardingPipelineConfig:
        """Return the configuration for GetForwardingPipelineConfig. Raises RequestError."""
        if response_type not in _Get.ResponseType.values():
            raise invalid(f"response_type: {response_type} is unknown; use one of P4Runtime 1.4")
        response = p4r.ForwardingPipelineConfig()
        if self.config.HasField("cookie"):
            response.cookie.CopyFrom(self.config.cookie)
        if response_type in _WITH_P4INFO:
            response.p4info.CopyFrom(self.config.p4info)
        if response_type in _WITH_DEVICE_CONFIG:
            response.p4_device_config = self.config.p4_device_config
        return response


def verify(config: p4r.ForwardingPipelineConfig) -> tuple[PipelineInfo, Program]:
    """Return a configuration's P4Info and program. Raises RequestError if the softswitch cannot run them."""
    info = PipelineInfo.of(config.p4info)
    if not config.p4_device_config:
        raise invalid("p4_device_config: is empty; send the compiler's BMv2 JSON")
    try:
        program = parse(parse_json(_json_of(config.p4_device_config), MOST_PROGRAM_BYTES), "p4_device_config")
    except UnsupportedConstruct as error:
        raise RequestError(Code.UNIMPLEMENTED, f"p4_device_config: {one_line(error)}") from error
    except SoftswitchError as error:
        raise invalid(f"p4_device_config: {one_line(error).removeprefix('p4_device_config: ')}") from error
    except ValueError as error:
        raise invalid(f"p4_device_config: not BMv2 JSON ({one_line(error)}); send the compiler's") from error
    _convert_declarations(info, program)
    _check_consistency(info, config.p4info, program)
    return info, program


def _convert_declarations(info: PipelineInfo, program: Program) -> None:
    """Convert what p4c writes to a P4Info in another way than to the program.

    A digest of another type than a struct is "digest" in the program, and has a generated name in the P4Info.
    If there is only one, they are the same. The keys of a value set of an enum are the enum's members in the
    P4Info: each has the width of the only key.
    """
    names = [item.text for item in program.messages if item.kind == "digest"]
    unnamed = [number for number, digest in info.digests.items() if digest.name not in names]
    if len(unnamed) == names.count("digest") == 1:
        info.digests[unnamed[0]] = replace(info.digests[unnamed[0]], name="digest")
    for number, value_set in info.value_sets.items():
        declared = program.value_sets.get(value_set.name)
        if declared is not None and {field.bits for field in value_set.fields} == {declared.bits}:
            info.value_sets[number] = replace(value_set, fields=value_set.fields[:1])


def _json_of(device_config: bytes) -> bytes:
    """Return the program's JSON. Some clients of p4lang wrap it in the message `p4.tmp.P4DeviceConfig`."""
    wrapped = Empty()
    try:
        wrapped.ParseFromString(device_config)
    except DecodeError:
        return device_config
    unknown = UnknownFieldSet(wrapped)
    fields = (unknown[number] for number in range(len(unknown)))
    contents = [field.data for field in fields if (field.field_number, field.wire_type) == (3, 2)]
    return contents[-1] if contents else device_config


def _check_consistency(info: PipelineInfo, p4info: p4i.P4Info, program: Program) -> None:
    """Raise RequestError unless P4Info and program declare the same actions, tables and arrays."""
    actions = {action.name: len(action.params) for action in program.actions.values()}
    for action in info.actions.values():
        # The compiler leaves out actions that no table uses.
        if actions.get(action.name, len(action.params)) != len(action.params):
            raise _inconsistency(f"action {action.name}")
    for table in info.tables.values():
        built = program.tables.get(table.name)
        # BMv2 has no optional matches: the compiler converts them to ternary ones.
        kinds = ["ternary" if field.kind == "optional" else field.kind for field in table.fields]
        key = list(zip(kinds, (field.bits for field in table.fields), strict=True))
        profile = None if table.profile is None else table.profile.name
        if built is None or key != [(part.kind, part.bits) for part in built.keys]:
            raise _inconsistency(f"table {table.name}")
        if profile != built.profile or (table.idle_timeout and not built.idle_timeout):
            raise _inconsistency(f"action profile or idle time-outs of table {table.name}")
        direct = [meter.name for meter in program.meters.values() if meter.table == table.name]
        if table.direct_meter not in (None, *direct):
            raise _inconsistency(f"direct meter of table {table.name}")
    for value_set in info.value_sets.values():
        declared_set = program.value_sets.get(value_set.name)
        if declared_set is None or declared_set.bits != sum(field.bits for field in value_set.fields):
            raise _inconsistency(f"value set {value_set.name}")
    digests = {item.text: len(item.values) for item in program.messages if item.kind == "digest"}
    for digest in info.digests.values():
        if digests.get(digest.name) != len(digest.members):
            raise _inconsistency(f"digest {digest.name}", "declare it with a struct")
    for kind, declared, arrays in (
        ("counter", p4info.counters, program.counters),
        ("register", p4info.registers, program.registers),
        ("meter", p4info.meters, program.meters),
        ("action profile", p4info.action_profiles, program.profiles),
    ):
        for cells in declared:
            array = arrays.get(cells.preamble.name)
            if array is None or array.size != cells.size:
                raise _inconsistency(f"{kind} {cells.preamble.name}")


def _inconsistency(what: str, other_remedy: str = "") -> RequestError:
    remedy = " or ".join(filter(None, ["take both from one compilation", other_remedy]))
    return invalid(f"config: p4info and p4_device_config differ in {what}; {remedy}")
