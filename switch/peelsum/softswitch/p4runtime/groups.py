"""The packet replication engine: multicast groups, and clone sessions, which set where clones go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.status import Code, RequestError, invalid, unimplemented
from peelsum.softswitch.p4runtime.values import to_bytes, to_int

_PORT_BITS = 32
#: The field with an entry's number, by the kind of entry.
_NUMBERS = {"multicast_group_entry": "multicast_group_id", "clone_session_entry": "session_id"}


class Groups:
    """The multicast groups and clone sessions of one pipeline, and the metadata that come with groups."""

    def __init__(self, switch: Switch, ports: Collection[int] | None = None) -> None:
        """ports: the ports that copies may leave by; None for any."""
        self._kept = {"multicast_group_entry": switch.groups, "clone_session_entry": switch.sessions}
        self._ports = ports
        self._metadata: dict[int, bytes] = {}
        # Those written with the older field `egress_port` are read back with it.
        self._older_form: set[tuple[str, int]] = set()

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.PacketReplicationEngineEntry) -> None:
        """Insert, modify or delete a group or session. Raises RequestError and then changes nothing."""
        name, group, number = _parts(entry)
        kept = self._kept[name]
        what = f"{kept.what} {number}"
        if not 0 < number < kept.limit:
            raise invalid(f"{_NUMBERS[name]}: {number} is not between 1 and {kept.limit - 1}")
        if kind == p4r.Update.INSERT and number in kept:
            raise RequestError(Code.ALREADY_EXISTS, f"{what} exists; modify it instead")
        if kind != p4r.Update.INSERT and number not in kept:
            raise RequestError(Code.NOT_FOUND, f"{what} does not exist; insert it first")
        if kind == p4r.Update.DELETE:
            kept.delete(number)
        else:
            replicas = _replicas_of(group, what)
            self._check_ports(port for port, _ in replicas)
            kept.set(number, replicas)
        if name == "multicast_group_entry":
            self._metadata[number] = group.metadata
        self._older_form.discard((name, number))
        if any(replica.WhichOneof("port_kind") == "egress_port" for replica in group.replicas):
            self._older_form.add((name, number))

    def read(self, wanted: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.PacketReplicationEngineEntry]:
        """Return what `wanted` names if it exists, or all groups or all sessions for number 0, as now."""
        name, _, number = _parts(wanted)
        kept = self._kept[name]
        chosen = kept.ids() if number == 0 else [number] if number in kept else []
        return iter([self._encode(name, one) for one in chosen])

    def _encode(self, name: str, number: int) -> p4r.PacketReplicationEngineEntry:
        entry = p4r.PacketReplicationEngineEntry()
        group = getattr(entry, name)
        setattr(group, _NUMBERS[name], number)
        if name == "multicast_group_entry":
            group.metadata = self._metadata.get(number, b"")
        for port, instance in self._kept[name].get(number):
            if (name, number) in self._older_form:
                group.replicas.add(egress_port=port, instance=instance)
            else:
                group.replicas.add(port=to_bytes(port), instance=instance)
        return entry

    def _check_ports(self, ports: Iterable[int]) -> None:
        for port in ports:
            if self._ports is not None and port not in self._ports:
                shown = ", ".join(map(str, sorted(self._ports)))
                raise invalid(f"port {port} is not on this switch; use one of {shown}")


def _parts(entry: p4r.PacketReplicationEngineEntry) -> tuple[str, Any, int]:
    """Return an entry's kind, its group or session, and the number of that. Raises RequestError."""
    name = entry.WhichOneof("type")
    if name is None:
        raise invalid("packet_replication_engine_entry: is empty; give a multicast group or a clone session")
    group = getattr(entry, name)
    return name, group, getattr(group, _NUMBERS[name])


def _replicas_of(group: Any, what: str) -> list[tuple[int, int]]:
    """Return (port, instance) of each replica. Raises RequestError naming `what` they belong to."""
    for name in ("class_of_service", "packet_length_bytes"):
        if getattr(group, name, 0):
            raise unimplemented(f"{what}: {name}")
    replicas: dict[tuple[int, int], None] = {}
    for replica in group.replicas:
        if replica.backup_replicas:
            raise unimplemented("backup replicas")
        kind = replica.WhichOneof("port_kind")
        if kind is None:
            raise invalid(f"{what}: a replica has no port; give it one")
        port = to_int(replica.port, _PORT_BITS, "port") if kind == "port" else replica.egress_port
        if (port, replica.instance) in replicas:
            raise invalid(
                f"{what}: port {port} instance {replica.instance} appears twice; give each replica once"
            )
        replicas[port, replica.instance] = None
    return list(replicas)
