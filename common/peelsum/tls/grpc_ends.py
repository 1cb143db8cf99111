"""Both ends of gRPC: servers with this project's limits, and channels to them. It needs `grpcio`.

Connections are plain on loopback, and with TLS elsewhere.
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

from peelsum.tls.acceptor import MOST_PENDING, Acceptor
from peelsum.tls.identity import Identity, require_tls
from peelsum.tls.roles import role_of_peer

#: Milliseconds that a client has for HTTP/2's first frames.
HANDSHAKE_MS = 5000
#: Most connections after their handshakes; further ones are closed, before they use up the process's
#: descriptors.
MOST_CONNECTIONS = 512
#: Seconds that an end of a relayed connection has to take what it is sent.
_SEND_S = 30.0
#: Most bytes of the name of the folder for temporary files. A socket's name has 107: 17 for a folder in that,
#: and the rest for a role and a number.
_MOST_TEMPORARY = 60
_OPTIONS = (
    # Otherwise a second server would share the port silently and receive half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", 8 << 10),
    # The connection of a lost machine ends after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class LimitedServer:
    """A gRPC server with limits. With TLS, it stands behind an `Acceptor`, whose connections it relays.

    gRPC itself counts connections in its handshakes together with those of its clients, from whatever
    address, so a few strangers without a certificate would use up its limit.
    """

    def __init__(
        self,
        address: str,
        identity: Identity | None,
        *,
        threads: ThreadPoolExecutor,
        calls: int,
        message_bytes: int,
    ) -> None:
        """Bind host:port; `start` answers. Raises OSError if the address cannot be bound.

        identity: with one, clients need TLS and a certificate of its CA. calls: most calls at once; further
        ones are refused, and do not wait in memory. message_bytes: size of the largest request.
        """
        options = (
            *_OPTIONS,
            ("grpc.max_receive_message_length", message_bytes),
            ("grpc.max_concurrent_streams", calls),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
        )
        #: The server, for its services.
        self.grpc = grpc.server(threads, options=options, maximum_concurrent_rpcs=calls)
        self._closing = ExitStack()
        self._listening: socket.socket | None = None
        if identity is None:
            self.port = self._bound(address)
            return
        self._context = identity.context(server=True)
        self._context.set_alpn_protocols(["h2"])
        self._listening = listen(address)
        self._closing.callback(self._listening.close)
        self.port = self._listening.getsockname()[1]
        # Only this user reaches the socket behind the acceptor.
        self._folder = Path(self._closing.enter_context(_folder_for_sockets()))
        self._numbers = count()
        self._bound(f"unix:{self._folder / 'grpc'}")

    def start(self) -> None:
        """Answer calls from now on."""
        self.grpc.start()
        if self._listening is not None:
            self._closing.callback(Acceptor(self._listening, self._relay, self._context).close)

    def stop(self, grace_s: float) -> None:
        """End every call, after `grace_s`, and free the port."""
        self.grpc.stop(grace_s).wait()
        self._closing.close()

    def _bound(self, address: str) -> int:
        try:
            port = self.grpc.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return port

    def _relay(self, link: socket.socket) -> None:
        assert isinstance(link, ssl.SSLSocket)
        # `caller_role` reads the role from the name of the relaying socket.
        name = self._folder / f"{role_of_peer(link)}-{next(self._numbers)}"
        Thread(target=_relay, args=(link, name, self._folder / "grpc"), daemon=True).start()


def _folder_for_sockets() -> TemporaryDirectory[str]:
    """Return a new temporary folder; it is in /tmp if sockets' names would be too long elsewhere."""
    is_long = len(os.fsencode(gettempdir())) > _MOST_TEMPORARY
    return TemporaryDirectory(prefix="peelsum-", dir="/tmp" if is_long else None)


def _relay(link: ssl.SSLSocket, name: Path, server: Path) -> None:
    """Connect a client to a gRPC server in this process, from a socket of this name."""
    with suppress(OSError), link, socket.socket(socket.AF_UNIX) as inner:
        inner.bind(str(name))
        inner.connect(str(server))
        name.unlink()
        _copy_both_ways(link, inner)


def _copy_both_ways(link: socket.socket, inner: socket.socket) -> None:
    """Copy bytes until an end closes its connection. Raises OSError if one fails, or takes nothing."""
    targets = {link.fileno(): (link, inner), inner.fileno(): (inner, link)}
    readable = select.poll()
    for descriptor in targets:
        readable.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in readable.poll():
            source, target = targets[descriptor]
            source.settimeout(0.0)
            try:
                # More than a TLS record has: the rest of one would wait where `poll` does not see it.
                data = source.recv(1 << 16)
            except (ssl.SSLWantReadError, BlockingIOError):
                continue
            if not data:
                return
            target.settimeout(_SEND_S)
            target.sendall(data)


def listen(address: str) -> socket.socket:
    """Return a socket that listens at host:port; at `[::]`, for IPv4 too. Raises OSError."""
    host, _, port = address.rpartition(":")
    entries = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    family, *_, place = min(entries, key=lambda entry: entry[0] != socket.AF_INET)
    both = place[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(place[:2], family=family, backlog=MOST_PENDING, dualstack_ipv6=both)


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
    identity.try_tls(name, address, timeout_s)
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    return grpc.secure_channel(address, credentials, options=options)
