"""Entities of the secrets of UDP ports, with which hosts prove that they may use a port.

They are ExternEntries: `extern_type_id` is SECRETS_EXTERN, `extern_id` is the port, and `entry` is a
BytesValue of 16 bytes. A Read returns an entry without its value for each port that has a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from finsy.proto import p4r
from google.protobuf.wrappers_pb2 import BytesValue

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.status import Code, RequestError, invalid, unimplemented
from peelsum.softswitch.runtime.device import SecretPort
from peelsum.wire import SECRET_BYTES, SECRETS_EXTERN


class SecretEntries:
    """The secrets of a switch's UDP ports."""

    def __init__(self, switch: Switch, ports: Mapping[int, SecretPort]) -> None:
        self._switch, self._ports = switch, ports

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.ExternEntry) -> None:
        """Insert, modify or delete a port's secret. If it raises RequestError, nothing has changed."""
        port = self._port(entry)
        if kind == p4r.Update.INSERT and port.has_secret:
            raise RequestError(Code.ALREADY_EXISTS, f"port {entry.extern_id} has a secret; modify it instead")
        if kind != p4r.Update.INSERT and not port.has_secret:
            raise RequestError(Code.NOT_FOUND, f"port {entry.extern_id} has no secret; insert it first")
        secret = bytes(SECRET_BYTES) if kind == p4r.Update.DELETE else _secret_in(entry)
        with self._switch.lock:  # the compiled loop, which reads secrets, holds this lock
            port.set_secret(secret)

    def read(self, selector: p4r.ExternEntry) -> Iterator[p4r.ExternEntry]:
        """Yield an entry, without its value, for the selected port if it has a secret; port 0 selects all.

        Raises RequestError for another extern or port.
        """
        if selector.extern_id:
            self._port(selector)
        _check_type(selector)
        return iter(
            [
                p4r.ExternEntry(extern_type_id=SECRETS_EXTERN, extern_id=number)
                for number, port in self._ports.items()
                if port.has_secret and selector.extern_id in (0, number)
            ]
        )

    def _port(self, entry: p4r.ExternEntry) -> SecretPort:
        """Return the port that an entry names. Raises RequestError if there is none."""
        _check_type(entry)
        if entry.extern_id not in self._ports:
            known = ", ".join(map(str, sorted(self._ports)))
            raise invalid(f"extern_id: port {entry.extern_id} is not on this switch; use one of {known}")
        return self._ports[entry.extern_id]


def _check_type(entry: p4r.ExternEntry) -> None:
    if entry.extern_type_id != SECRETS_EXTERN:
        raise unimplemented(f"extern_type_id {entry.extern_type_id}")


def _secret_in(entry: p4r.ExternEntry) -> bytes:
    """Return the secret in an entry. Raises RequestError if it is malformed or all zeros."""
    value = BytesValue()
    if not entry.entry.Unpack(value) or len(value.value) != SECRET_BYTES or not any(value.value):
        raise invalid(f"entry: is not a secret; give a BytesValue of {SECRET_BYTES} random bytes")
    return value.value
