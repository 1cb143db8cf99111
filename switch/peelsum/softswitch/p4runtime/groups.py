"""Entities of the packet replication engine: multicast groups and clone sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.status import Code, RequestError, invalid, unimplemented
from peelsum.softswitch.p4runtime.values import to_bytes, to_int

_PORT_BITS = 32
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

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.PacketReplicationEngineEntry) -> None:
        """Insert, modify or delete a group or session. If it raises RequestError, nothing has changed."""
        name, group, number = _split_entry(entry)
        groups = self._groups[name]
        what = f"{groups.what} {number}"
        if not 0 < number < groups.limit:
            raise invalid(f"{_NUMBER_FIELDS[name]}: {number} is not between 1 and {groups.limit - 1}")
        if kind == p4r.Update.INSERT and number in groups:
            raise RequestError(Code.ALREADY_EXISTS, f"{what} exists; modify it instead")
        if kind != p4r.Update.INSERT and number not in groups:
            raise RequestError(Code.NOT_FOUND, f"{what} does not exist; insert it first")
        if kind == p4r.Update.DELETE:
            groups.delete(number)
        else:
            replicas = _replicas_of(group, what)
            self._check_ports(port for port, _ in replicas)
            groups.set(number, replicas)
        if name == "multicast_group_entry":
            self._metadata[number] = group.metadata
        self._with_egress_port.discard((name, number))
        if any(replica.WhichOneof("port_kind") == "egress_port" for replica in group.replicas):
            self._with_egress_port.add((name, number))

    def read(self, selector: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.PacketReplicationEngineEntry]:
        """Return the group or session that `selector` names, if there is one; number 0 selects all."""
        name, _, requested = _split_entry(selector)
        groups = self._groups[name]
        numbers = groups.ids() if requested == 0 else [requested] if requested in groups else []
        return iter([self._encode(name, number) for number in numbers])

    def _encode(self, name: str, number: int) -> p4r.PacketReplicationEngineEntry:
        entry = p4r.PacketReplicationEngineEntry()
        group = getattr(entry, name)
        setattr(group, _NUMBER_FIELDS[name], number)
        if name == "multicast_group_entry":
            group.metadata = self._metadata.get(number, b"")
        for port, instance in self._groups[name].get(number):
            if (name, number) in self._with_egress_port:
                group.replicas.add(egress_port=port, instance=instance)
            else:
                group.replicas.add(port=to_bytes(port), instance=instance)
        return entry

    def _check_ports(self, ports: Iterable[int]) -> None:
        for port in ports:
            if self._ports is not None and port not in self._ports:
                known_ports = ", ".join(map(str, sorted(self._ports)))
                raise invalid(f"port {port} is not on this switch; use one of {known_ports}")


def _split_entry(entry: p4r.PacketReplicationEngineEntry) -> tuple[str, Any, int]:
    """Return an entry's kind, its group or session, and the number of the group or session."""
    name = entry.WhichOneof("type")
    if name is None:
        raise invalid("packet_replication_engine_entry: is empty; give a multicast group or a clone session")
    group = getattr(entry, name)
    return name, group, getattr(group, _NUMBER_FIELDS[name])


def _replicas_of(group: Any, what: str) -> list[tuple[int, int]]:
    """Return (port, instance) of each replica. Raises RequestError, which names the group as `what`."""
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
