"""Starts and stops the gRPC server of the P4Runtime service."""

from __future__ import annotations

import errno
import logging
from concurrent.futures import ThreadPoolExecutor

import grpc
from finsy.proto import p4r_grpc

from peelsum.softswitch.p4runtime.access import Access
from peelsum.softswitch.p4runtime.seldom import Seldom
from peelsum.softswitch.p4runtime.service import (
    MAX_CONFIGURING,
    MAX_READS,
    MAX_STREAMS,
    MAX_WAITING,
    P4RuntimeService,
)
from peelsum.softswitch.runtime.device import Device
from peelsum.tls import Identity, require_tls

#: Streams hold a thread each, and so do calls that wait for their turn; the rest answer and refuse.
_THREADS = MAX_STREAMS + MAX_WAITING + MAX_CONFIGURING + MAX_READS + 12
#: Milliseconds that a client has for TLS and HTTP/2's first frames.
HANDSHAKE_MS = 5000
#: Most connections; further ones are closed, before they use up the process's descriptors.
MOST_CONNECTIONS = 512
_OPTIONS = (
    # Otherwise a second server would share the port silently and receive half of the connections.
    ("grpc.so_reuseport", 0),
    # Compiled pipelines are a few megabytes, and 40,000 updates of tables four.
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.max_concurrent_streams", _THREADS),
    # The connection of a lost machine ends after 15 s, and with it its role as primary.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
_STOP_GRACE_S = 0.1
#: Prefix of the names of the server's threads.
THREAD_PREFIX = "p4runtime"


class RunningServer:
    """A P4Runtime server that answers until `stop`."""

    def __init__(
        self, device: Device, server: grpc.Server, threads: ThreadPoolExecutor, host: str, port: int
    ) -> None:
        self._device = device
        self._server = server
        self._threads = threads
        self.port = port
        self.address = f"{host}:{port}"

    def stop(self) -> None:
        """End every call and free the port. A compilation in progress continues in its thread."""
        self._device.on_packet_in(None)
        self._server.stop(_STOP_GRACE_S).wait()
        self._threads.shutdown(wait=False, cancel_futures=True)


def serve(device: Device, address: str = "127.0.0.1:9559", identity: Identity | None = None) -> RunningServer:
    """Serve P4Runtime for a device at `address` (host:port; port 0 takes a free one).

    identity: with one, clients need TLS and a certificate, whose role says what they may do.
    Raises ValueError if the address is malformed, or beyond loopback without an identity; OSError if the
    server cannot listen on it.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"grpc address: {address!r} is not host:port; try 127.0.0.1:9559")
    require_tls("grpc address", host, identity)
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=THREAD_PREFIX)
    logging.getLogger("grpc._server").addFilter(Seldom())
    # Calls beyond the threads are refused; otherwise they would wait in memory, without limit.
    options = (
        *_OPTIONS,
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    )
    server = grpc.server(threads, options=options, maximum_concurrent_rpcs=_THREADS)
    service = P4RuntimeService(device, Access(secured=identity is not None))
    p4r_grpc.add_P4RuntimeServicer_to_server(service, server)
    try:
        bound = (
            server.add_insecure_port(address)
            if identity is None
            else server.add_secure_port(address, _credentials(identity))
        )
    except RuntimeError:
        bound = 0
    if not bound:
        reason = f"grpc address: cannot listen on {address}; free it or choose another"
        raise OSError(errno.EADDRINUSE, reason)
    server.start()
    return RunningServer(device, server, threads, host, bound)


def _credentials(identity: Identity) -> grpc.ServerCredentials:
    pair = (identity.key, identity.certificate)
    return grpc.ssl_server_credentials([pair], root_certificates=identity.ca, require_client_auth=True)
