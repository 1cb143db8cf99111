"""Connections to a served job: each holds or requests a lease, of it or of a group. Time is a parameter."""

from __future__ import annotations

import errno
import json
import selectors
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peelsum.tls import Identity, Role, same_token
from peelsum.tls.acceptor import oldest_of_largest_source, source_of
from peelsum.tls.roles import role_of_peer
from peelsum.transport.lease import LONGEST_REQUEST, parsed_request

#: How long a client may take to send its request, and to receive the response, in seconds.
SPEAK_S = 5.0
#: How long a request waits for the lease, in seconds: longer than keep-alives need to find a lost machine.
WAIT_S = 8.0
#: Maximum number of connections.
MOST = 100
#: How long no connection is accepted if the process has no file descriptor left, in seconds.
PAUSE_S = 1.0
#: (option, value) in seconds, or probes: the connection of a lost machine is closed after 5 s.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))


@dataclass(eq=False)
class Guest:
    """A connection. `until` is its deadline; `process` is the client's process id, after its request."""

    link: socket.socket
    host: str
    until: float
    heard: bytes = b""
    process: int | None = None
    secured: bool = True
    """Whether the TLS handshake, if there is one, is done."""
    ranks: int | None = None
    """The size of the further group for which a job is requested; None for the job itself."""
    served: bool = False
    """Whether it has the lease of a further group's job, or is about to be told so."""
    left: bool = False
    """Whether the connection is closed, and so its lease freed."""

    @property
    def name(self) -> str:
        """The client's name in messages."""
        return f"process {self.process} of {self.host}"


class Requests:
    """Connections to a listening socket, one of which may hold the job's lease. A context manager.

    Theory of operation.

    | connection    | event                         | then                                          |
    |---------------|-------------------------------|-----------------------------------------------|
    | new           | a request, one line           | it waits for the lease                        |
    | new           | anything else; SPEAK_S passes | it gets an error and is closed                |
    | new           | wrong certificate or token    | likewise                                      |
    | new           | MOST others are open          | a silent one is closed, see `_make_room`      |
    | waiting       | the lease is free             | the longest waiting gets it; its run starts   |
    | waiting       | WAIT_S passes                 | it gets an error with the holder, and closes  |
    | waiting       | it is for a further group     | it gets a lease of its own; a run starts      |
    | any           | the client closes             | it is closed, and its lease, if any, is freed |

    So a run ends only when another rank 0 requests the job, and only after its own rank 0 has left or ended.
    The kernel closes the connection of a killed process, and keep-alives find lost machines.
    """

    def __init__(
        self, listening: socket.socket, job: str, *, identity: Identity | None = None, token: str = ""
    ) -> None:
        """job: the job's name in responses.

        identity: with one, clients need TLS and a certificate of role worker or operator.
        token: if not empty, what requests must contain.
        """
        self._listening, self._job, self._token = listening, job, token
        self._tls = None if identity is None else identity.context(server=True)
        self._selector = selectors.DefaultSelector()
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._guests: dict[socket.socket, Guest] = {}
        self._holder: Guest | None = None
        self._next: Guest | None = None
        self._deaf_until: float | None = None

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_: object) -> None:
        for guest in list(self._guests.values()):
            self._close(guest)
        self._selector.close()

    @property
    def holder(self) -> str | None:
        """The name of the lease's holder, or None."""
        return self._holder.name if self._holder else None

    def next(self, now: float, timeout_s: float) -> Guest | None:
        """Wait up to `timeout_s`; return a client that got a lease and awaits `tell`, or None."""
        if self._deaf_until is not None and now >= self._deaf_until:
            self._deaf_until = None
            self._selector.register(self._listening, selectors.EVENT_READ)
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listening:
                self._let_in(now)
            elif guest := self._guests.get(key.fileobj):  # type: ignore[call-overload]  # sockets only
                self._hear(guest, now)
        self._next = None
        if self._waiting():
            for key, _ in self._selector.select(0):  # who has left after its request
                guest = self._guests.get(key.fileobj)  # type: ignore[call-overload]
                if guest is not None and guest.process is not None:
                    self._hear(guest, now)
            self._next = min(self._waiting(), key=lambda guest: guest.until, default=None)
            if self._next is not None and self._next.ranks is None:
                self._holder = self._next
            elif self._next is not None:
                self._next.served = True
        self._dismiss(now)
        return self._next

    def _waiting(self) -> list[Guest]:
        """Return the connections that wait for a lease that is free."""
        return [
            guest
            for guest in self._guests.values()
            if guest.process is not None
            and not guest.served
            and (guest.ranks is not None or self._holder is None)
        ]

    def tell(self, answer: dict[str, Any]) -> None:
        """Send the response to who got a lease. An error, a refusal or a failure frees the lease."""
        assert self._next is not None
        if not self._say(self._next, answer) or {"error", "refused"} & answer.keys():
            self._close(self._next)

    def _let_in(self, now: float) -> None:
        try:
            link, (host, *_) = self._listening.accept()
        except OSError as error:  # the client has already gone, or no descriptor is left for it
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                self._deaf_until = now + PAUSE_S
                self._selector.unregister(self._listening)
            return
        if len(self._guests) == MOST and not self._make_room():
            link.close()
            return
        try:
            link = self._prepared(link)
        except OSError:  # the client has reset the connection, or sent data and closed it
            link.close()
            return
        self._selector.register(link, selectors.EVENT_READ)
        self._guests[link] = Guest(link, host, now + SPEAK_S, secured=self._tls is None)

    def _prepared(self, link: socket.socket) -> socket.socket:
        """Set a connection's options, and add TLS if there is any. Raises OSError if the client has gone."""
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            link.setsockopt(socket.IPPROTO_TCP, option, value)
        link.setblocking(False)
        if self._tls is None:
            return link
        return self._tls.wrap_socket(link, server_side=True, do_handshake_on_connect=False)

    def _make_room(self) -> bool:
        """Close the oldest silent connection of the address that has the most; return whether there was one.

        So strangers cannot keep workers out.
        """
        silent = {guest: source_of(guest.host) for guest in self._guests.values() if guest.process is None}
        if silent:
            self._close(oldest_of_largest_source(silent))
        return bool(silent)

    def _shake_hands(self, guest: Guest) -> None:
        """Continue the TLS handshake; afterwards, turn away a certificate of another role."""
        assert isinstance(guest.link, ssl.SSLSocket)
        try:
            guest.link.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self._close(guest)
            return
        guest.secured = True
        role = role_of_peer(guest.link)
        if role not in (Role.WORKER, Role.OPERATOR):
            self._refuse(guest, f"takes requests of role worker; this certificate's is {role}")

    def _hear(self, guest: Guest, now: float) -> None:
        if not guest.secured:
            self._shake_hands(guest)
            if not guest.secured or guest.link not in self._guests:
                return
        try:
            # Read all: closing with unread data would reset the response. A TLS record has up to 16 KiB.
            said = guest.link.recv(1 << 14)
        except ssl.SSLWantReadError:
            return
        except OSError:
            said = b""
        if not said:
            self._close(guest)
        elif guest.process is None:
            guest.heard += said
            line, end, _ = guest.heard.partition(b"\n")
            request = parsed_request(line) if end else None
            if request is not None and self._token and not same_token(request.token, self._token):
                self._refuse(guest, "the token is not this job's; set PEELSUM_TOKEN to a file with the job's")
            elif request is not None:
                guest.process, guest.ranks, guest.until = request.process, request.ranks, now + WAIT_S
            elif end or len(guest.heard) >= LONGEST_REQUEST:
                self._turn_away(guest)

    def _dismiss(self, now: float) -> None:
        """Turn away connections whose deadline has passed."""
        for guest in list(self._guests.values()):
            is_group = guest.process is not None and guest.ranks is not None
            if guest is not self._holder and not is_group and now >= guest.until:
                self._turn_away(guest)

    def _turn_away(self, guest: Guest) -> None:
        if guest.process is None:
            why = "takes requests of a training's rank 0, by 'switch://HOST:PORT'; this was not a request"
        else:
            why = f"is in use by {self.holder}; end that training, or wait for its end"
        self._refuse(guest, why)

    def _refuse(self, guest: Guest, why: str) -> None:
        self._say(guest, {"error": f"{self._job}: {why}"})
        self._close(guest)

    def _say(self, guest: Guest, answer: dict[str, Any]) -> bool:
        """Send a response; return whether that succeeded."""
        if not guest.secured:
            return False
        try:
            guest.link.settimeout(SPEAK_S)
            guest.link.sendall(json.dumps(answer).encode() + b"\n")
            guest.link.setblocking(False)
        except OSError:
            return False
        return True

    def _close(self, guest: Guest) -> None:
        guest.left = True
        if guest is self._holder:
            self._holder = None
        del self._guests[guest.link]
        self._selector.unregister(guest.link)
        with suppress(OSError):
            guest.link.shutdown(socket.SHUT_RDWR)
        guest.link.close()
