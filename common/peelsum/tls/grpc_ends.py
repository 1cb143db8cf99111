"""gRPC servers with limits on connections, calls and sizes, and channels to them. It needs `grpcio`.

Connections have no TLS on loopback, and mutual TLS elsewhere.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from threading import Thread

import grpc

from peelsum.addresses import parse_address
from peelsum.tls.acceptor import MAX_PENDING, Acceptor
from peelsum.tls.identity import CA_FILE, CERTIFICATE_FILE, KEY_FILE, TlsIdentity, require_tls, role_of_peer

#: The time limit of HTTP/2's first frames, in milliseconds.
HANDSHAKE_MS = 5000
#: The most connections after their handshakes. Further ones are closed, so that the process does not run out
#: of descriptors.
MAX_CONNECTIONS = 512
#: The time limit of a send to either end of a relayed connection.
_SEND_S = 30.0
#: The longest name of the folder for temporary files. The name of a Unix socket has at most 107 bytes: 17 for
#: a new folder there, and the rest for a role, a number and an IPv6 address with its port.
_MAX_TEMPORARY_BYTES = 20
_OPTIONS = (
    # Otherwise a second server could bind the same port, and would receive half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", 8 << 10),
    # The connection of a machine that has crashed ends after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class LimitedServer:
    """A gRPC server with limits. With TLS, it relays the connections of an `Acceptor`.

    gRPC's limit counts unfinished handshakes, too, from any address. So a few clients without a certificate
    could use it up, if gRPC did the handshakes.
    """

    def __init__(
        self,
        address: str,
        identity: TlsIdentity | None,
        *,
        threads: ThreadPoolExecutor,
        calls: int,
        message_bytes: int,
    ) -> None:
        """Bind host:port. Calls are answered after `start`. Raises OSError if the address cannot be bound.

        identity: if given, clients need TLS and a certificate of its CA. calls: the most calls at once;
        further ones are refused and do not wait. message_bytes: the size limit of a request.
        """
        options = (
            *_OPTIONS,
            ("grpc.max_receive_message_length", message_bytes),
            ("grpc.max_concurrent_streams", calls),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        )
        #: The server, to which services are added.
        self.grpc = grpc.server(threads, options=options, maximum_concurrent_rpcs=calls)
        self._resources = ExitStack()
        self._listener: socket.socket | None = None
        if identity is None:
            self.port = self._bind(address)
            return
        self._context = identity.context(server=True)
        self._context.set_alpn_protocols(["h2"])
        self._listener = listen(address)
        self._resources.callback(self._listener.close)
        self.port = self._listener.getsockname()[1]
        # Only this user can connect to the socket behind the acceptor.
        is_long = len(os.fsencode(gettempdir())) > _MAX_TEMPORARY_BYTES
        folder = TemporaryDirectory(prefix="peelsum-", dir="/tmp" if is_long else None)
        self._folder = Path(self._resources.enter_context(folder))
        self._counter = count()
        self._bind(f"unix:{self._folder / 'grpc'}")

    def start(self) -> None:
        """Start to answer calls."""
        self.grpc.start()
        if self._listener is not None:
            self._resources.callback(Acceptor(self._listener, self._relay, self._context).close)

    def stop(self, grace_s: float) -> None:
        """Stop: give calls `grace_s` seconds to finish, cancel the others, and free the port."""
        self.grpc.stop(grace_s).wait()
        self._resources.close()

    def _bind(self, address: str) -> int:
        """Bind an address of the gRPC server; return the port. Raises OSError."""
        try:
            port = self.grpc.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return port

    def _relay(self, connection: socket.socket) -> None:
        assert isinstance(connection, ssl.SSLSocket)
        try:
            host, port, *_ = connection.getpeername()
        except OSError:  # the client has gone
            connection.close()
            return
        # `caller_role` and `caller_address` read the name of the relaying socket.
        name = self._folder / f"{role_of_peer(connection)}-{next(self._counter)}-{host}:{port}"
        Thread(target=_relay, args=(connection, name, self._folder / "grpc"), daemon=True).start()


def _relay(connection: ssl.SSLSocket, name: Path, server: Path) -> None:
    """Relay a client's connection to the gRPC server at the Unix socket `server`.

    It ends when one end closes its connection, or accepts no data for _SEND_S.
    name: the Unix socket to connect from.
    """
    with suppress(OSError), connection, socket.socket(socket.AF_UNIX) as inner:
        inner.bind(str(name))
        inner.connect(str(server))
        name.unlink()
        targets = {connection.fileno(): (connection, inner), inner.fileno(): (inner, connection)}
        readable = select.poll()
        for descriptor in targets:
            readable.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in readable.poll():
                source, target = targets[descriptor]
                source.settimeout(0.0)
                try:
                    # Read a whole TLS record: `poll` does not see data that is left in the TLS buffer.
                    data = source.recv(1 << 16)
                except (ssl.SSLWantReadError, BlockingIOError):
                    continue
                if not data:
                    return
                target.settimeout(_SEND_S)
                target.sendall(data)


def listen(address: str) -> socket.socket:
    """Return a socket that listens at host:port; at `[::]` also for IPv4. Raises OSError."""
    entries = socket.getaddrinfo(*parse_address(address), type=socket.SOCK_STREAM)
    family, *_, address_info = min(entries, key=lambda entry: entry[0] != socket.AF_INET)
    both = address_info[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address_info[:2], family=family, backlog=MAX_PENDING, dualstack_ipv6=both)


def open_channel(
    name: str,
    address: str,
    identity: TlsIdentity | None,
    options: Sequence[tuple[str, int]],
    timeout_s: float,
) -> grpc.Channel:
    """Return a channel to host:port. Raises TlsError if TLS fails, or is missing beyond loopback.

    name: the kind of server, e.g. "switch", for errors. identity: this end's certificate; None for a channel
    without TLS. timeout_s: the time limit of a test handshake, which gives better errors than gRPC does. It
    is no error here if nothing answers.
    """
    require_tls(name, parse_address(address)[0], identity)
    options = (*options, ("grpc.enable_http_proxy", 0))  # no proxy for the web leads to a switch
    if identity is None:
        return grpc.insecure_channel(address, options=options)
    identity.check_tls(name, address, timeout_s)
    credentials = grpc.ssl_channel_credentials(
        *map(identity.read_file, (CA_FILE, KEY_FILE, CERTIFICATE_FILE))
    )
    return grpc.secure_channel(address, credentials, options=options)
