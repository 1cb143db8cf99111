"""Starts and stops the gRPC server of the P4Runtime service."""

from __future__ import annotations

import errno
import logging
from concurrent.futures import ThreadPoolExecutor

from finsy.proto import p4r_grpc

from peelsum.softswitch.p4runtime.service import (
    MAX_CONFIGURING,
    MAX_READS,
    MAX_STREAMS,
    MAX_WAITING,
    P4RuntimeService,
)
from peelsum.softswitch.p4runtime.status import RateLimit
from peelsum.softswitch.runtime.device import Device
from peelsum.tls import TlsIdentity, require_tls
from peelsum.tls.grpc_ends import LimitedServer

#: Each stream and each waiting call holds a thread; the remaining threads answer or refuse other calls.
_THREADS = MAX_STREAMS + MAX_WAITING + MAX_CONFIGURING + MAX_READS + 12
#: The longest request. A compiled pipeline has a few megabytes, a Write of 40,000 table entries about four.
_MOST_REQUEST_BYTES = 16 << 20
_STOP_GRACE_S = 0.1
#: Prefix of the names of the server's threads.
THREAD_PREFIX = "p4runtime"


class RunningServer:
    """A P4Runtime server that answers until `stop`."""

    def __init__(self, device: Device, server: LimitedServer, threads: ThreadPoolExecutor, host: str) -> None:
        self._device = device
        self._server = server
        self._threads = threads
        self.port = server.port
        self.address = f"{host}:{self.port}"

    def stop(self) -> None:
        """End every call, and free the port. A compilation in progress continues in its thread."""
        self._device.on_packet_in(None)
        self._server.stop(_STOP_GRACE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)


def serve(
    device: Device, address: str = "127.0.0.1:9559", identity: TlsIdentity | None = None
) -> RunningServer:
    """Serve P4Runtime for a device at `address` (host:port; port 0 takes a free one).

    identity: if given, clients must use TLS with a certificate, whose role limits what they may do.
    Raises ValueError if the address is malformed, or beyond loopback without an identity; OSError if the
    server cannot listen on it.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"grpc address: {address!r} is not host:port; try 127.0.0.1:9559")
    require_tls("grpc address", host, identity)
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=THREAD_PREFIX)
    logging.getLogger("grpc._server").addFilter(RateLimit())
    try:
        server = LimitedServer(
            address, identity, threads=threads, calls=_THREADS, message_bytes=_MOST_REQUEST_BYTES
        )
    except OSError:
        reason = f"grpc address: cannot listen on {address}; free it or choose another"
        raise OSError(errno.EADDRINUSE, reason) from None
    service = P4RuntimeService(device, secured=identity is not None)
    p4r_grpc.add_P4RuntimeServicer_to_server(service, server.grpc)
    server.start()
    return RunningServer(device, server, threads, host)
