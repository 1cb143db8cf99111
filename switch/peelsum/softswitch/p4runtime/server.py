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
from peelsum.softswitch.p4runtime.status import Seldom
from peelsum.softswitch.runtime.device import Device
from peelsum.tls import Identity, require_tls
from peelsum.tls.grpc_ends import LimitedServer

#: Streams hold a thread each, and so do calls that wait for their turn; the rest answer and refuse.
_THREADS = MAX_STREAMS + MAX_WAITING + MAX_CONFIGURING + MAX_READS + 12
#: Compiled pipelines are a few megabytes, and 40,000 updates of tables four.
_LONGEST_REQUEST = 16 << 20
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
        """End every call and free the port. A compilation in progress continues in its thread."""
        self._device.on_packet_in(None)
        self._server.stop(_STOP_GRACE_S)
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
    try:
        server = LimitedServer(
            address, identity, threads=threads, calls=_THREADS, message_bytes=_LONGEST_REQUEST
        )
    except OSError:
        reason = f"grpc address: cannot listen on {address}; free it or choose another"
        raise OSError(errno.EADDRINUSE, reason) from None
    service = P4RuntimeService(device, secured=identity is not None)
    p4r_grpc.add_P4RuntimeServicer_to_server(service, server.grpc)
    server.start()
    return RunningServer(device, server, threads, host)
