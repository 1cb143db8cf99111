"""Accept connections in a thread, and finish their TLS handshakes before a service gets them."""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import IPv6Address
from threading import Thread
from time import monotonic, sleep
from typing import NamedTuple, TypeVar

from peelsum.forks import close_in_forked_children

#: The time limit of a handshake, and the most connections that have not finished theirs.
HANDSHAKE_S = 10.0
MAX_PENDING = 512
#: The most connections that are accepted in a row, and the longest time between two checks of deadlines.
_MAX_BATCH, _SELECT_S = 64, 0.1
#: Seconds for which no connection is accepted after the process has run out of file descriptors.
_PAUSE_S = 0.1

T = TypeVar("T")


class _Pending(NamedTuple):
    """A connection before the end of its handshake."""

    source: str
    """The client's address or network, as `source_of` returns it."""
    deadline: float
    """When the handshake must be finished, by `monotonic`."""


class Acceptor:
    """Accepts connections at a listening socket until `close`.

    A connection is pending until its TLS handshake is finished. Until the client's first bytes arrive, it
    takes no more than a descriptor. If MAX_PENDING connections are pending, a further one replaces the oldest
    connection of the source that has the most. So clients of one source cannot keep those of others out. Even
    at that source, a client has the time in which MAX_PENDING others connect, and needs milliseconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], None],
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Start to accept connections, in a thread.

        listening: the listening socket. serve: takes over a connection, a blocking socket; the thread calls
        it, and it must return at once. context: a server's TLS context; None for connections without TLS.
        """
        listener.setblocking(False)
        close_in_forked_children(listener)
        self._listener, self._serve, self._context = listener, serve, context
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._pending: dict[socket.socket, _Pending] = {}
        self._closed = False
        self._thread = Thread(target=self._run, name="acceptor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting, free the port, and close all pending connections."""
        self._closed = True
        self._thread.join()
        for connection in list(self._pending):
            self._drop(connection)
        self._selector.close()
        self._listener.close()

    def _run(self) -> None:
        """Accept connections and continue handshakes until `close`; the loop of the thread."""
        while not self._closed:
            for key, _ in self._selector.select(_SELECT_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pending:
                    self._shake_hands(key.fileobj)
            now = monotonic()
            for connection, pending in list(self._pending.items()):
                if now >= pending.deadline:
                    self._drop(connection)

    def _accept(self) -> None:
        """Accept all connections that wait, up to _MAX_BATCH."""
        for _ in range(_MAX_BATCH):
            try:
                connection, (host, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the client has closed the connection, or there is no descriptor for it
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                    sleep(_PAUSE_S)
                return
            if self._context is None:
                self._hand_over(connection)
                continue
            if len(self._pending) >= MAX_PENDING:
                self._make_room()
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
            self._pending[connection] = _Pending(source_of(host), monotonic() + HANDSHAKE_S)

    def _make_room(self) -> bool:
        """Close a pending connection; return whether there was one."""
        sources = {connection: pending.source for connection, pending in self._pending.items()}
        if sources:
            self._drop(oldest_of_largest_source(sources))
        return bool(sources)

    def _shake_hands(self, connection: socket.socket) -> None:
        """Continue a TLS handshake, and hand the connection over when it is finished."""
        assert self._context is not None
        try:
            if not isinstance(connection, ssl.SSLSocket):
                pending = self._forget(connection)  # it is added again behind those that have sent nothing
                connection.getpeername()  # if it was reset, `wrap_socket` would raise and not close it
                connection = self._context.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
                self._selector.register(connection, selectors.EVENT_READ)
                self._pending[connection] = pending
            connection.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self._drop(connection)
            return
        self._forget(connection)
        self._hand_over(connection)

    def _hand_over(self, connection: socket.socket) -> None:
        """Pass a connection to the service, as a blocking socket."""
        connection.settimeout(None)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._serve(connection)
        except (OSError, RuntimeError):  # the client has closed it, or there is no descriptor or thread
            connection.close()

    def _forget(self, connection: socket.socket) -> _Pending:
        self._selector.unregister(connection)
        return self._pending.pop(connection)

    def _drop(self, connection: socket.socket) -> None:
        """Close a connection, and forget it if it is pending."""
        if connection in self._pending:
            self._forget(connection)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def source_of(host: str) -> str:
    """Return the source of a connection: an IPv4 address, or the /64 network of an IPv6 address."""
    return host if "." in host else IPv6Address(host.partition("%")[0]).exploded[:19]


def oldest_of_largest_source(sources: Mapping[T, str]) -> T:
    """Return the oldest connection of the source with the most connections.

    sources: the source of each connection, the oldest connection first.
    """
    counts = Counter(sources.values())
    return max(sources, key=lambda connection: counts[sources[connection]])
