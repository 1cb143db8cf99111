"""Both ends of gRPC: servers with this project's limits, and channels to them. It needs `grpcio`.

Connections are plain on loopback, and with TLS elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from peelsum.tls.identity import Identity, TlsError, require_tls

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


def open_channel(
    name: str,
    address: str,
    identity: Identity | None,
    options: Sequence[tuple[str, int]],
    timeout_s: float,
) -> grpc.Channel:
    """Return a channel to host:port. Raises TlsError if TLS is needed there, or fails.

    name: what listens there, e.g. "switch", for errors. identity: this end's certificate; without one, the
    channel is plain. timeout_s: seconds for a trial of TLS; it passes if nothing answers.
    """
    require_tls(name, address.rpartition(":")[0], identity)
    if identity is None:
        return grpc.insecure_channel(address, options=options)
    refusal = identity.refusal(address, timeout_s)
    if refusal is not None:
        raise TlsError(
            f"{name}: {address}: TLS failed ({refusal}); check that both ends' certificates are of one CA, "
            f"valid today, and the {name}'s for this host"
        )
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    return grpc.secure_channel(address, credentials, options=options)
