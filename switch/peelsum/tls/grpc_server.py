"""A gRPC server with this project's limits, and with TLS if there is an identity. It needs `grpcio`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

from peelsum.tls.identity import Identity

#: Milliseconds that a client has for TLS and HTTP/2's first frames.
HANDSHAKE_MS = 5000
#: Most connections; further ones are closed, before they use up the process's descriptors.
MOST_CONNECTIONS = 512
_OPTIONS = (
    # Otherwise a second server would share the port silently and receive half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", 8 << 10),
    # The connection of a lost machine ends after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


def limited_server(threads: ThreadPoolExecutor, calls: int, message_bytes: int) -> grpc.Server:
    """Return a server, not started yet, that runs its calls in `threads`.

    calls: most calls at once; further ones are refused, and do not wait in memory. message_bytes: size of the
    largest request.
    """
    options = (
        *_OPTIONS,
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_concurrent_streams", calls),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    )
    return grpc.server(threads, options=options, maximum_concurrent_rpcs=calls)


def bind(server: grpc.Server, address: str, identity: Identity | None) -> int | None:
    """Make a server listen at host:port; return the port, or None if the address cannot be bound.

    identity: with one, clients need TLS and a certificate of its CA.
    """
    try:
        if identity is None:
            return server.add_insecure_port(address) or None
        return server.add_secure_port(address, _credentials(identity)) or None
    except RuntimeError:
        return None


def _credentials(identity: Identity) -> grpc.ServerCredentials:
    pair = (identity.key, identity.certificate)
    return grpc.ssl_server_credentials([pair], root_certificates=identity.ca, require_client_auth=True)
