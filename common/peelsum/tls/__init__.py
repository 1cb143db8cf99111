"""Mutual TLS for all services that listen by TCP: identities, roles and tokens."""

from peelsum.tls.identity import TlsError, TlsIdentity, is_loopback, require_tls
from peelsum.tls.roles import Role, caller_role, role_of
from peelsum.tls.tokens import make_token, read_token, tokens_equal

__all__ = [
    "Role",
    "TlsError",
    "TlsIdentity",
    "caller_role",
    "is_loopback",
    "make_token",
    "read_token",
    "require_tls",
    "role_of",
    "tokens_equal",
]
