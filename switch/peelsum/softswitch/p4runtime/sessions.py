"""Clone sessions: the part of the packet replication engine that sets where clones go."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.groups import check_ports, encode_replicas, replicas_of
from peelsum.softswitch.p4runtime.status import Code, RequestError, invalid, unimplemented


class Sessions:
    """The clone sessions of one pipeline."""

    def __init__(self, switch: Switch, ports: Collection[int] | None = None) -> None:
        """ports: the ports that copies may leave by; None for any."""
        self._sessions = switch.sessions
        self._ports = ports
        # As with groups, sessions are read back in the form in which they were written.
        self._older_form: set[int] = set()

    def write(self, kind: p4r.Update.Type.ValueType, session: p4r.CloneSessionEntry) -> None:
        """Insert, modify or delete a session. Raises RequestError and then changes nothing."""
        number = session.session_id
        if not 0 < number < self._sessions.limit:
            raise invalid(f"session_id: {number} is not between 1 and {self._sessions.limit - 1}")
        exists = number in self._sessions
        if kind == p4r.Update.INSERT and exists:
            raise RequestError(Code.ALREADY_EXISTS, f"clone session {number} exists; modify it instead")
        if kind != p4r.Update.INSERT and not exists:
            raise RequestError(Code.NOT_FOUND, f"clone session {number} does not exist; insert it first")
        if kind == p4r.Update.DELETE:
            self._sessions.delete(number)
            self._older_form.discard(number)
            return
        for name in ("class_of_service", "packet_length_bytes"):
            if getattr(session, name):
                raise unimplemented(f"clone session {number}: {name}")
        replicas = replicas_of(session.replicas, f"clone session {number}")
        check_ports(self._ports, (port for port, _ in replicas))
        self._sessions.set(number, replicas)
        self._older_form.discard(number)
        if any(replica.WhichOneof("port_kind") == "egress_port" for replica in session.replicas):
            self._older_form.add(number)

    def read(self, number: int) -> Iterator[p4r.PacketReplicationEngineEntry]:
        """Return the session `number` if it exists, or all sessions for 0, as they are now."""
        chosen = self._sessions.ids() if number == 0 else [number] if number in self._sessions else []
        return iter([self._encode(session) for session in chosen])

    def _encode(self, number: int) -> p4r.PacketReplicationEngineEntry:
        session = p4r.CloneSessionEntry(session_id=number)
        replicas = self._sessions.get(number)
        session.replicas.extend(encode_replicas(replicas, number in self._older_form))
        return p4r.PacketReplicationEngineEntry(clone_session_entry=session)
