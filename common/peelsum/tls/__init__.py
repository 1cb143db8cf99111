"""Mutual TLS for all services that listen by TCP: identities, roles and tokens."""

from peelsum.tls.identity import (
    Role,
    TlsError,
    TlsIdentity,
    caller_address,
    caller_role,
    is_loopback,
    make_token,
    read_token,
    require_tls,
    role_of,
    tokens_equal,
)

__all__ = [
    "Role",
    "TlsError",
    "TlsIdentity",
    "caller_address",
    "caller_role",
    "is_loopback",
    "make_token",
    "read_token",
    "require_tls",
    "role_of",
    "tokens_equal",
]
