"""Roles of certificates: who may change a switch, who may look, and who may ask for a seat in a job."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

#: A certificate's role is a URI among its subject alternative names.
_URI = "urn:peelsum:role:"


class Role(StrEnum):
    """The rights of a certificate's holder."""

    SWITCH = "switch"
    """Answer as a switch."""
    OPERATOR = "operator"
    """Write to switches, answer as `peelsum job serve` or `peelsum controller run`, and ask the latter."""
    VIEWER = "viewer"
    """Read from switches and controllers."""
    WORKER = "worker"
    """Ask `peelsum job serve` for a seat."""

    @property
    def uri(self) -> str:
        """The URI in certificates of this role."""
        return _URI + self.value

    @property
    def answers(self) -> bool:
        """Whether holders listen, and so need names by which clients know them."""
        return self in (Role.SWITCH, Role.OPERATOR)

    @property
    def asks(self) -> bool:
        """Whether holders connect to others."""
        return self is not Role.SWITCH


def role_of(names: Iterable[str]) -> Role | None:
    """Return the role among a certificate's alternative names; None unless there is exactly one."""
    found = [Role(name.removeprefix(_URI)) for name in names if name in {role.uri for role in Role}]
    return found[0] if len(found) == 1 else None


def role_of_peer(link: ssl.SSLSocket) -> Role | None:
    """Return the role of the certificate at the other end of a connection, after the handshake."""
    names: Any = (link.getpeercert() or {}).get("subjectAltName", ())
    return role_of(name for _, name in names)


def caller_role(peer: str) -> Role | None:
    """Return the role of a gRPC call's client, by the socket that `peer()` returns; None without one.

    `LimitedServer` names its sockets by roles.
    """
    name = peer.rpartition("/")[2].rpartition("-")[0]
    return next((role for role in Role if role == name), None)
