"""Accepts connections in a thread; with TLS, passes on those whose clients have a certificate of the CA."""

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

from peelsum.forks import keep_from_children

#: Seconds that a client has for its handshake, and most connections that have not finished theirs.
HANDSHAKE_S = 10.0
MOST_PENDING = 512
#: Most connections that are accepted in a row, and most seconds until deadlines are checked again.
_MOST_AT_ONCE, _SELECT_S = 64, 0.1
#: Seconds without accepting if the process has no file descriptor left.
_PAUSE_S = 0.1

T = TypeVar("T")


class _Pending(NamedTuple):
    """A connection before the end of its handshake."""

    source: str
    """As `source_of` returns it."""
    deadline: float
    """When the client must have finished it, by `monotonic`."""


class Acceptor:
    """Accepts connections at a listening socket until `close`.

    A connection is pending until its TLS handshake is done. Until the client's first bytes it costs no more
    than a descriptor. When MOST_PENDING are pending, a further one takes the place of the oldest of the
    address that has the most. So clients of one address cannot keep those of others out. At that address, a
    client has the time in which MOST_PENDING others connect, and its handshake takes milliseconds.
    """

    def __init__(
        self,
        listening: socket.socket,
        serve: Callable[[socket.socket], None],
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Accept from now on, in a thread.

        serve: takes over a connection, a blocking socket; it is called in that thread and returns at once.
        context: a server's; None for connections without TLS.
        """
        listening.setblocking(False)
        keep_from_children(listening)
        self._listening, self._serve, self._context = listening, serve, context
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        self._pending: dict[socket.socket, _Pending] = {}
        self._ended = False
        self._thread = Thread(target=self._run, name="acceptor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting, free the port, and close the connections that are pending."""
        self._ended = True
        self._thread.join()
        for link in list(self._pending):
            self._drop(link)
        self._selector.close()
        self._listening.close()

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(_SELECT_S):
                if key.fileobj is self._listening:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pending:
                    self._shake_hands(key.fileobj)
            now = monotonic()
            for link in [link for link, pending in self._pending.items() if now >= pending.deadline]:
                self._drop(link)

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                link, (host, *_) = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the client has already gone, or no descriptor is left for it
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                    sleep(_PAUSE_S)
                return
            if self._context is None:
                self._pass_on(link)
                continue
            if len(self._pending) >= MOST_PENDING:
                self._make_room()
            link.setblocking(False)
            self._selector.register(link, selectors.EVENT_READ)
            self._pending[link] = _Pending(source_of(host), monotonic() + HANDSHAKE_S)

    def _make_room(self) -> bool:
        """Close a pending connection, if there is one."""
        if self._pending:
            self._drop(
                oldest_of_largest_source({link: pending.source for link, pending in self._pending.items()})
            )
            return True
        return False

    def _shake_hands(self, link: socket.socket) -> None:
        """Continue a handshake, and pass the connection on if it is done."""
        assert self._context is not None
        try:
            if not isinstance(link, ssl.SSLSocket):
                pending = self._forget(link)  # those that stay silent become the oldest
                link = self._context.wrap_socket(link, server_side=True, do_handshake_on_connect=False)
                self._selector.register(link, selectors.EVENT_READ)
                self._pending[link] = pending
            link.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self._drop(link)
            return
        self._forget(link)
        self._pass_on(link)

    def _pass_on(self, link: socket.socket) -> None:
        link.settimeout(None)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._serve(link)
        except (OSError, RuntimeError):  # the client has gone, or no descriptor or thread is left for it
            link.close()

    def _forget(self, link: socket.socket) -> _Pending:
        self._selector.unregister(link)
        return self._pending.pop(link)

    def _drop(self, link: socket.socket) -> None:
        if link in self._pending:
            self._forget(link)
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
        link.close()


def source_of(host: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    return host if "." in host else IPv6Address(host.partition("%")[0]).exploded[:19]


def oldest_of_largest_source(sources: Mapping[T, str]) -> T:
    """Return the oldest connection of the source that has the most connections.

    sources: the sources of all connections, the oldest first.
    """
    counts = Counter(sources.values())
    return max(sources, key=lambda connection: counts[sources[connection]])
