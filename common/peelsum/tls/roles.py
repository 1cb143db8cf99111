"""Roles of certificates: who may write to a switch, who may only read, and who may request a seat."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

#: A certificate states its role as a URI among its subject alternative names.
_URI = "urn:peelsum:role:"


class Role(StrEnum):
    """The rights of a certificate's holder."""

    SWITCH = "switch"
    """Is a switch: it accepts connections."""
    OPERATOR = "operator"
    """Writes to switches, runs `peelsum job serve` or `peelsum controller run`, and may use the latter."""
    VIEWER = "viewer"
    """Reads from switches and controllers."""
    WORKER = "worker"
    """Requests seats from `peelsum job serve`."""

    @property
    def uri(self) -> str:
        """The URI in certificates of this role."""
        return _URI + self.value

    @property
    def is_server(self) -> bool:
        """Whether processes of this role listen, so that their certificates need host names."""
        return self in (Role.SWITCH, Role.OPERATOR)

    @property
    def is_client(self) -> bool:
        """Whether processes of this role connect to others."""
        return self is not Role.SWITCH


def role_of(names: Iterable[str]) -> Role | None:
    """Return the role among a certificate's alternative names; None if there is no role, or several."""
    roles = [Role(name.removeprefix(_URI)) for name in names if name in {role.uri for role in Role}]
    return roles[0] if len(roles) == 1 else None


def role_of_peer(connection: ssl.SSLSocket) -> Role | None:
    """Return the role in the certificate of a connection's other end. The handshake must be finished."""
    names: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
    return role_of(name for _, name in names)


def caller_role(peer: str) -> Role | None:
    """Return the role of a gRPC call's client; None if it has none.

    peer: what the call's `peer()` returns: the name of a relaying socket, to which `LimitedServer` added the
    role.
    """
    name = peer.rpartition("/")[2].rpartition("-")[0]
    return next((role for role in Role if role == name), None)
