"""The packet replication engine's multicast groups, and the metadata that controllers store with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.status import Code, RequestError, invalid, unimplemented
from peelsum.softswitch.p4runtime.values import to_bytes, to_int

_PORT_BITS = 32


class Groups:
    """The multicast groups of one pipeline."""

    def __init__(self, switch: Switch, ports: Collection[int] | None = None) -> None:
        """ports: the ports that copies may leave by; None for any."""
        self._kept = switch.groups
        self._ports = ports
        self._metadata: dict[int, bytes] = {}
        # Those written with the older field `egress_port` are read back with it.
        self._older_form: set[int] = set()

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.PacketReplicationEngineEntry) -> None:
        """Insert, modify or delete a group. Raises RequestError and then changes nothing."""
        group = _multicast(entry)
        number = group.multicast_group_id
        if not 0 < number < self._kept.limit:
            raise invalid(f"multicast_group_id: {number} is not between 1 and {self._kept.limit - 1}")
        exists = number in self._kept
        if kind == p4r.Update.INSERT and exists:
            raise RequestError(Code.ALREADY_EXISTS, f"multicast group {number} exists; modify it instead")
        if kind != p4r.Update.INSERT and not exists:
            raise RequestError(Code.NOT_FOUND, f"multicast group {number} does not exist; insert it first")
        if kind == p4r.Update.DELETE:
            self._kept.delete(number)
        else:
            replicas = _replicas_of(group)
            self._check_ports(port for port, _ in replicas)
            self._kept.set(number, replicas)
        self._metadata[number] = group.metadata
        self._older_form.discard(number)
        if any(replica.WhichOneof("port_kind") == "egress_port" for replica in group.replicas):
            self._older_form.add(number)

    def read(self, wanted: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.PacketReplicationEngineEntry]:
        """Return the group that `wanted` names if it exists, or all groups for id 0, as they are now."""
        number = _multicast(wanted).multicast_group_id
        chosen = self._kept.ids() if number == 0 else [number] if number in self._kept else []
        found = [self._encode(one) for one in chosen]
        return (p4r.PacketReplicationEngineEntry(multicast_group_entry=group) for group in found)

    def _encode(self, number: int) -> p4r.MulticastGroupEntry:
        group = p4r.MulticastGroupEntry(multicast_group_id=number, metadata=self._metadata.get(number, b""))
        for port, instance in self._kept.get(number):
            if number in self._older_form:
                group.replicas.add(egress_port=port, instance=instance)
            else:
                group.replicas.add(port=to_bytes(port), instance=instance)
        return group

    def _check_ports(self, ports: Iterable[int]) -> None:
        for port in ports:
            if self._ports is not None and port not in self._ports:
                shown = ", ".join(map(str, sorted(self._ports)))
                raise invalid(f"port {port} is not on this switch; use one of {shown}")


def _multicast(entry: p4r.PacketReplicationEngineEntry) -> p4r.MulticastGroupEntry:
    kind = entry.WhichOneof("type")
    if kind is None:
        raise invalid("packet_replication_engine_entry: is empty; give a multicast group")
    if kind != "multicast_group_entry":
        raise unimplemented(kind)
    return entry.multicast_group_entry


def _replicas_of(group: p4r.MulticastGroupEntry) -> list[tuple[int, int]]:
    """Return (port, instance) of each replica. Raises RequestError."""
    what = f"multicast group {group.multicast_group_id}"
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
