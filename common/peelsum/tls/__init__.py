"""Mutual TLS for all services that listen by TCP: identities, roles and tokens."""

from peelsum.tls.identity import Identity, TlsError, is_loopback, require_tls
from peelsum.tls.roles import Role, caller_role, role_of
from peelsum.tls.tokens import make_token, read_token, tokens_equal

__all__ = [
    "Identity",
    "Role",
    "TlsError",
    "caller_role",
    "is_loopback",
    "make_token",
    "read_token",
    "require_tls",
    "role_of",
    "tokens_equal",
]
