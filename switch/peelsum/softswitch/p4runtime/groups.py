"""The packet replication engine: multicast groups, and clone sessions, which set where clones go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.status import Code, RequestError, invalid, unimplemented
from peelsum.softswitch.p4runtime.values import to_bytes, to_int
from peelsum.softswitch.runtime import state

_PORT_BITS = 32


class _Replicated:
    """Replicas by number, of the groups or of the clone sessions of one pipeline."""

    def __init__(self, kept: state.Groups, what: str, field: str, ports: Collection[int] | None) -> None:
        """what, field: noun and name of a number in errors. ports: where copies may go; None for any."""
        self._kept = kept
        self._what, self._field = what, field
        self._ports = ports
        # Those written with the older field `egress_port` are read back with it.
        self._older_form: set[int] = set()

    def _write(self, kind: p4r.Update.Type.ValueType, number: int, given: Sequence[p4r.Replica]) -> None:
        """Insert, modify or delete replicas. Raises RequestError and then changes nothing."""
        what = f"{self._what} {number}"
        if not 0 < number < self._kept.limit:
            raise invalid(f"{self._field}: {number} is not between 1 and {self._kept.limit - 1}")
        exists = number in self._kept
        if kind == p4r.Update.INSERT and exists:
            raise RequestError(Code.ALREADY_EXISTS, f"{what} exists; modify it instead")
        if kind != p4r.Update.INSERT and not exists:
            raise RequestError(Code.NOT_FOUND, f"{what} does not exist; insert it first")
        if kind == p4r.Update.DELETE:
            self._kept.delete(number)
        else:
            replicas = replicas_of(given, what)
            check_ports(self._ports, (port for port, _ in replicas))
            self._kept.set(number, replicas)
        self._older_form.discard(number)
        if any(replica.WhichOneof("port_kind") == "egress_port" for replica in given):
            self._older_form.add(number)

    def _chosen(self, number: int) -> Collection[int]:
        """Return a number if it is there, or all for 0."""
        return self._kept.ids() if number == 0 else [number] if number in self._kept else []

    def _replicas(self, number: int) -> Iterator[p4r.Replica]:
        for port, instance in self._kept.get(number):
            if number in self._older_form:
                yield p4r.Replica(egress_port=port, instance=instance)
            else:
                yield p4r.Replica(port=to_bytes(port), instance=instance)


class Groups(_Replicated):
    """The multicast groups of one pipeline, and the metadata that controllers store with them."""

    def __init__(self, switch: Switch, ports: Collection[int] | None = None) -> None:
        """ports: the ports that copies may leave by; None for any."""
        super().__init__(switch.groups, "multicast group", "multicast_group_id", ports)
        self._metadata: dict[int, bytes] = {}

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.PacketReplicationEngineEntry) -> None:
        """Insert, modify or delete a group. Raises RequestError and then changes nothing."""
        group = _multicast(entry)
        self._write(kind, group.multicast_group_id, group.replicas)
        self._metadata[group.multicast_group_id] = group.metadata

    def read(self, wanted: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.PacketReplicationEngineEntry]:
        """Return the group that `wanted` names if it exists, or all groups for id 0, as they are now."""
        found = [self._encode(number) for number in self._chosen(_multicast(wanted).multicast_group_id)]
        return (p4r.PacketReplicationEngineEntry(multicast_group_entry=group) for group in found)

    def _encode(self, number: int) -> p4r.MulticastGroupEntry:
        metadata, replicas = self._metadata.get(number, b""), self._replicas(number)
        return p4r.MulticastGroupEntry(multicast_group_id=number, metadata=metadata, replicas=replicas)


class Sessions(_Replicated):
    """The clone sessions of one pipeline."""

    def __init__(self, switch: Switch, ports: Collection[int] | None = None) -> None:
        """ports: the ports that copies may leave by; None for any."""
        super().__init__(switch.sessions, "clone session", "session_id", ports)

    def write(self, kind: p4r.Update.Type.ValueType, session: p4r.CloneSessionEntry) -> None:
        """Insert, modify or delete a session. Raises RequestError and then changes nothing."""
        for name in ("class_of_service", "packet_length_bytes"):
            if kind != p4r.Update.DELETE and getattr(session, name):
                raise unimplemented(f"clone session {session.session_id}: {name}")
        self._write(kind, session.session_id, session.replicas)

    def read(self, number: int) -> Iterator[p4r.PacketReplicationEngineEntry]:
        """Return the session `number` if it exists, or all sessions for 0, as they are now."""
        found = [
            p4r.CloneSessionEntry(session_id=n, replicas=self._replicas(n)) for n in self._chosen(number)
        ]
        return (p4r.PacketReplicationEngineEntry(clone_session_entry=session) for session in found)


def check_ports(known: Collection[int] | None, ports: Iterable[int]) -> None:
    """Raise RequestError for a port that is not among `known`; None allows any port."""
    for port in ports:
        if known is not None and port not in known:
            shown = ", ".join(map(str, sorted(known)))
            raise invalid(f"port {port} is not on this switch; use one of {shown}")


def _multicast(entry: p4r.PacketReplicationEngineEntry) -> p4r.MulticastGroupEntry:
    kind = entry.WhichOneof("type")
    if kind is None:
        raise invalid("packet_replication_engine_entry: is empty; give a multicast group or a clone session")
    if kind != "multicast_group_entry":
        raise unimplemented(kind)
    return entry.multicast_group_entry


def replicas_of(given: Iterable[p4r.Replica], what: str) -> list[tuple[int, int]]:
    """Return (port, instance) of each replica. Raises RequestError naming `what` they belong to."""
    replicas: dict[tuple[int, int], None] = {}
    for replica in given:
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
