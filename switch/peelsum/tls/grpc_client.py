"""Channels to gRPC servers of this project: plain on loopback, with TLS elsewhere. It needs `grpcio`."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from peelsum.tls.errors import TlsError
from peelsum.tls.identity import Identity, require_tls


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
