"""Answers the requests of other processes, from connections to a listening socket. Time is a parameter.

A start is answered by a lease on the job, or on a further group's, until its connection ends.
"""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from peelsum.control.errors import ControlError
from peelsum.requests import MAX_REQUEST_BYTES, encode_line, parsed_request
from peelsum.tls import Identity, Role, require_tls, tokens_equal
from peelsum.tls.acceptor import oldest_of_largest_source, source_of
from peelsum.tls.roles import role_of_peer

#: How long a client may take to send its request, and to receive the response, in seconds.
SPEAK_S = 5.0
#: How long a request waits for the lease, in seconds: longer than keep-alives need to find a lost machine.
WAIT_S = 8.0
#: Maximum number of connections.
MOST = 100
#: Bytes of the longest request, with its line end, that describes no job.
_SHORT_REQUEST = 1 << 10
#: How long no connection is accepted if the process has no file descriptor left, in seconds.
PAUSE_S = 1.0
#: (option, value) in seconds, or probes: the connection of a lost machine is closed after 5 s.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))
#: The roles that may call, with TLS.
_ROLES = {
    "start": (Role.WORKER, Role.OPERATOR),
    "admit": (Role.OPERATOR,),
    "evict": (Role.OPERATOR,),
    "list": (Role.OPERATOR, Role.VIEWER),
}
_CONTROLLED = "`peelsum job --controller` and `status --controller`"
_CLIENTS = dict.fromkeys(_ROLES, _CONTROLLED) | {"start": "a training's rank 0, by 'switch://HOST:PORT'"}


@dataclass(eq=False)
class Guest:
    """A connection. `until` is its deadline."""

    link: socket.socket
    host: str
    until: float
    heard: bytes = b""
    request: dict[str, Any] = field(default_factory=dict)
    """What it requests, as `parsed_request` returns it; empty before that."""
    role: Role | None = None
    """The role of its certificate; None without TLS."""
    secured: bool = True
    """Whether the TLS handshake, if there is one, is done."""
    served: bool = False
    """Whether it has been answered, or is about to be."""
    left: bool = False
    """Whether the connection is closed, and so its lease freed."""

    @property
    def name(self) -> str:
        """The client's name in messages."""
        return f"process {self.request.get('process', 'unknown')} of {self.host}"

    @property
    def ranks(self) -> int | None:
        """The size of the further group for which a job is requested; None for the job itself."""
        return self.request.get("ranks")

    @property
    def wants_job(self) -> bool:
        """Whether it requests the job itself, which one client may have at a time."""
        return self.request.get("call") == "start" and self.ranks is None


class Requests:
    """Connections to a listening socket, one of which may hold the job's lease. A context manager.

    Theory of operation.

    | connection    | event                         | then                                          |
    |---------------|-------------------------------|-----------------------------------------------|
    | new           | a start, one line             | it waits for the lease                        |
    | new           | another call                  | it is answered, and closed                    |
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
        self,
        listening: socket.socket,
        name: str,
        calls: Collection[str] = ("start",),
        *,
        identity: Identity | None = None,
        token: str = "",
    ) -> None:
        """name: who answers, in errors. calls: those that are answered.

        identity: with one, clients need TLS and a certificate with a role that the call permits.
        token: if not empty, what starts must contain.
        """
        self._listening, self._name, self._calls, self._token = listening, name, calls, token
        self._longest = MAX_REQUEST_BYTES if "admit" in calls else _SHORT_REQUEST
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
        """Wait up to `timeout_s`; return a client that got a lease or awaits another response, or None.

        It is answered by `tell`.
        """
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
                if guest is not None and guest.request:
                    self._hear(guest, now)
            self._next = min(self._waiting(), key=lambda guest: guest.until, default=None)
            if self._next is not None:
                self._next.served = True
                self._holder = self._next if self._next.wants_job else self._holder
        self._dismiss(now)
        return self._next

    def _waiting(self) -> list[Guest]:
        """Return the connections that can be answered now: the job itself has one holder."""
        return [
            guest
            for guest in self._guests.values()
            if guest.request and not guest.served and (self._holder is None or not guest.wants_job)
        ]

    def tell(self, answer: dict[str, Any]) -> None:
        """Send the response to whom `next` returned. An error, a refusal or a failure frees the lease."""
        assert self._next is not None
        is_lease = self._next.request["call"] == "start" and not {"error", "refused"} & answer.keys()
        if not self._say(self._next, answer) or not is_lease:
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
        silent = {guest: source_of(guest.host) for guest in self._guests.values() if not guest.request}
        if silent:
            self._close(oldest_of_largest_source(silent))
        return bool(silent)

    def _shake_hands(self, guest: Guest) -> None:
        """Continue the TLS handshake."""
        assert isinstance(guest.link, ssl.SSLSocket)
        try:
            guest.link.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self._close(guest)
            return
        guest.secured, guest.role = True, role_of_peer(guest.link)

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
        elif not guest.request:
            guest.heard += said
            line, end, _ = guest.heard.partition(b"\n")
            if end:
                self._accept(guest, parsed_request(line), now)
            elif len(guest.heard) >= self._longest:
                self._turn_away(guest)

    def _accept(self, guest: Guest, request: dict[str, Any] | None, now: float) -> None:
        """Let a client wait for the response to its request, or say why there is none."""
        if request is None or request["call"] not in self._calls:
            self._turn_away(guest)
            return
        call, roles = request["call"], _ROLES[request["call"]]
        if self._tls is not None and guest.role not in roles:
            wanted = " or ".join(roles)
            self._refuse(guest, f"{call} needs a certificate of role {wanted}; this one's is {guest.role}")
        elif call == "start" and self._token and not tokens_equal(request.get("token", ""), self._token):
            self._refuse(guest, "the token is not this job's; set PEELSUM_TOKEN to a file with the job's")
        else:
            guest.request, guest.until, guest.heard = request, now + WAIT_S, b""

    def _dismiss(self, now: float) -> None:
        """Turn away connections whose deadline has passed."""
        for guest in list(self._guests.values()):
            if now >= guest.until and not guest.served and (guest.wants_job or not guest.request):
                self._turn_away(guest)

    def _turn_away(self, guest: Guest) -> None:
        if not guest.request:
            whose = " or ".join(sorted({_CLIENTS[call] for call in self._calls}))
            why = f"takes requests of {whose}; this was not a request"
        else:
            why = f"is in use by {self.holder}; end that training, or wait for its end"
        self._refuse(guest, why)

    def _refuse(self, guest: Guest, why: str) -> None:
        self._say(guest, {"error": f"{self._name}: {why}"})
        self._close(guest)

    def _say(self, guest: Guest, answer: dict[str, Any]) -> bool:
        """Send a response; return whether that succeeded."""
        if not guest.secured:
            return False
        try:
            guest.link.settimeout(SPEAK_S)
            guest.link.sendall(encode_line(answer))
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


def listening(place: tuple[str, int], identity: Identity | None) -> socket.socket:
    """Return a socket that listens there. Raises ControlError, or TlsError beyond loopback without TLS."""
    host, port = place
    require_tls("--listen", host, identity)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise ControlError(f"--listen: {host}:{port}: {reason}; choose another") from error


def answer_all(
    requests: Requests,
    respond: Callable[[Guest], dict[str, Any]],
    look: Callable[[], None],
    ended: Callable[[], bool],
    *,
    every_s: float,
) -> None:
    """Respond to requests, and call `look` every so many seconds, until `ended` returns True."""
    looked, busy_s = time.monotonic(), 0.0
    while not ended():
        # The connections' deadlines do not run while this thread is busy, as it reads nothing then.
        guest = requests.next(time.monotonic() - busy_s, every_s)
        busy_since = time.monotonic()
        if guest is not None:
            requests.tell(respond(guest))
        if time.monotonic() - looked >= every_s:
            look()
            looked = time.monotonic()
        busy_s += time.monotonic() - busy_since
