"""Access control by the roles of clients, which their certificates name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from peelsum.softswitch.p4runtime.status import Code, RequestError
from peelsum.tls import Role, caller_role

WRITERS = (Role.OPERATOR,)
READERS = (Role.OPERATOR, Role.VIEWER)


class Caller(Protocol):
    """The client of a call, as implemented by gRPC's ServicerContext."""

    def auth_context(self) -> Mapping[str, Any]:
        """Return the client's properties by TLS, a list of bytes for each name; empty without TLS."""


class Access:
    """Checks callers: by role if the server has TLS; otherwise all are on this machine, and may do all."""

    def __init__(self, secured: bool) -> None:
        self._secured = secured

    def require(self, caller: Caller, allowed: tuple[Role, ...], doing: str) -> None:
        """Raise RequestError (PERMISSION_DENIED) unless the caller's role is among `allowed`."""
        if not self._secured:
            return
        role = caller_role(caller.auth_context())
        if role not in allowed:
            raise RequestError(
                Code.PERMISSION_DENIED,
                f"{doing}: needs a certificate of role {' or '.join(allowed)}; this client's has role {role}",
            )
