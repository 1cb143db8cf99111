"""A server for requests to a controller (`peelsum.requests`). The current time is a parameter.

The response to a request `start` is a lease: on the job, or on a job for a further group of workers. That to
`join` is the lease of one more rank of a run that starts, that to `enter` of a run that goes on. A lease
lasts until the connection is closed. Until then, the rank and the controller can send each other messages.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from peelsum.control.errors import ControlError
from peelsum.requests import MAX_REQUEST_BYTES, MESSAGE_FIELDS, encode_line, parsed_request
from peelsum.tls import Role, TlsIdentity, require_tls, tokens_equal
from peelsum.tls.acceptor import Acceptor, oldest_of_largest_source, source_of
from peelsum.tls.identity import role_of_peer

#: Seconds that a client may take to send its request, and to receive the response.
REQUEST_TIMEOUT_S = 5.0
#: Seconds that a request waits for the lease: longer than keep-alives need to detect a crashed machine.
LEASE_TIMEOUT_S = 8.0
#: The most connections at once, beside those of ranks that have joined a run.
MAX_CONNECTIONS = 100
#: The size limit of requests, including the line end, if none has a job description.
_MAX_SHORT_REQUEST_BYTES = 1 << 10
#: Options of TCP keep-alive: the connection of a crashed machine is closed after 2 + 3 * 1 seconds.
_KEEP_ALIVE_OPTIONS = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))
#: With TLS, the roles that may send each request.
_ROLES = {
    "start": (Role.WORKER, Role.OPERATOR),
    "join": (Role.WORKER, Role.OPERATOR),
    "enter": (Role.WORKER, Role.OPERATOR),
    "admit": (Role.OPERATOR,),
    "evict": (Role.OPERATOR,),
    "list": (Role.OPERATOR, Role.VIEWER),
}
_CONTROLLED = "`peelsum job --controller` and `status --controller`"
_RANK = "a training's rank 0, by 'switch://HOST:PORT'"
#: The requests whose response is a lease.
_LEASES = ("start", "join", "enter")
_EXPECTED_CLIENTS = dict.fromkeys(_ROLES, _CONTROLLED) | dict.fromkeys(_LEASES, _RANK)


@dataclass(eq=False)
class ConnectedClient:
    """A client\'s connection, and its request."""

    connection: socket.socket
    host: str
    deadline: float
    received: bytes = b""
    request: dict[str, Any] = field(default_factory=dict)
    """The request, as `parsed_request` returns it; empty until it has arrived."""
    role: Role | None = None
    """The role in the client's certificate; None without TLS."""
    answered: bool = False
    """Whether `next_client` has returned the client, so that it gets its response."""
    closed: bool = False
    """Whether the connection is closed, which ends its lease."""
    inbox: deque[dict[str, Any]] = field(default_factory=deque)
    """The messages that came after the request, oldest first, for the caller of `next_client` to remove."""
    outbox: deque[dict[str, Any]] = field(default_factory=deque)
    """Messages that the next call of `next_client` sends; the connection is then closed if one has `end`."""
    successor: Callable[[], ConnectedClient | None] = lambda: None
    """Returns the client to which the lease on the main job passes when this one is closed, if any."""

    @property
    def name(self) -> str:
        """The client's name in messages."""
        return f"process {self.request.get('process', 'unknown')} of {self.host}"

    @property
    def ranks(self) -> int | None:
        """The size of the further group that requests a job; None for a request of the main job."""
        return self.request.get("ranks")

    @property
    def has_joined(self) -> bool:
        """Whether the client is a rank that has joined a run."""
        return self.answered and self.request["call"] in ("join", "enter")

    @property
    def needs_main_lease(self) -> bool:
        """Whether the client requests the lease on the main job, which one client can have at a time."""
        return self.request.get("call") == "start" and self.ranks is None


class RequestServer:
    """A server that accepts connections, reads requests and gives out leases. A context manager.

    Theory of operation.

    | connection    | event                         | action                                        |
    |---------------|-------------------------------|-----------------------------------------------|
    | new           | a request `start`             | wait for the lease                            |
    | new           | another supported request     | respond, and close                            |
    | new           | anything else, or no request  | send an error, and close                      |
    |               | within REQUEST_TIMEOUT_S      |                                               |
    | new           | wrong certificate or token    | send an error, and close                      |
    | new           | MAX_CONNECTIONS are open      | close one without a request: `_make_room`     |
    | waiting       | the lease is free             | start a run for the client that waits longest |
    | waiting       | LEASE_TIMEOUT_S passes        | send an error with the holder, and close      |
    | waiting       | it is for a further group     | start a run with a lease of its own           |
    | waiting       | it is `join` or `enter`       | let the rank join its run                     |
    | lease         | a message                     | to its inbox; if it is invalid, close         |
    | any           | the client closes             | close; its lease, if any, is free             |

    So a run ends only when another rank 0 requests the job, after the connection of its rank 0 was closed.
    In a run that survives the loss of rank 0, the lease then passes to another rank.
    The kernel closes the connection of a process that is killed; keep-alives detect crashed machines.
    """

    def __init__(
        self,
        listening_socket: socket.socket,
        name: str,
        calls: Collection[str] = _LEASES,
        *,
        identity: TlsIdentity | None = None,
        token: str = "",
    ) -> None:
        """listening_socket: the server's. name: the server's name in errors. calls: the supported requests.

        identity: if given, clients need TLS and a certificate with a role that may send the request.
        token: if not empty, requests for leases must contain it.
        """
        self._name, self._calls, self._token = name, calls, token
        self._max_bytes = MAX_REQUEST_BYTES if "admit" in calls else _MAX_SHORT_REQUEST_BYTES
        self._tls = None if identity is None else identity.context(server=True)
        self._clients: dict[socket.socket, ConnectedClient] = {}
        self._holder: ConnectedClient | None = None
        self._current: ConnectedClient | None = None
        self._accepted: SimpleQueue[socket.socket] = SimpleQueue()
        self._selector = selectors.DefaultSelector()
        #: A byte here makes `next_client` look for accepted connections.
        self._wakeup, self._notifier = socket.socketpair()
        self._notifier.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._acceptor = Acceptor(listening_socket, self._hand_over, self._tls)

    def __enter__(self) -> RequestServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._acceptor.close()
        while not self._accepted.empty():
            self._accepted.get().close()
        for client in list(self._clients.values()):
            self._close(client)
        for resource in (self._selector, self._wakeup, self._notifier):
            resource.close()

    @property
    def holder(self) -> str | None:
        """The name of the client with the lease on the main job, or None."""
        return self._holder.name if self._holder else None

    def next_client(self, now: float, timeout_s: float) -> ConnectedClient | None:
        """Wait up to `timeout_s` for events; return a client whose request can be carried out now, or None.

        The caller carries out the request, and then calls `respond`. now: the current time in seconds.
        Messages in the clients' outboxes are sent first; those that arrive go to their inboxes.
        """
        for client in [client for client in self._clients.values() if client.outbox]:
            self._send_outbox(client)
        for key, _ in self._selector.select(0.0 if self._waiting() else timeout_s):
            if key.fileobj is self._wakeup:
                self._add_accepted(now)
            elif client := self._clients.get(key.fileobj):  # type: ignore[call-overload]  # sockets only
                self._read(client, now)
        self._current = None
        if self._waiting():
            for key, _ in self._selector.select(0):  # clients that have closed their connections
                client = self._clients.get(key.fileobj)  # type: ignore[call-overload]
                if client is not None and client.request:
                    self._read(client, now)
            self._current = min(self._waiting(), key=lambda client: client.deadline, default=None)
            if self._current is not None:
                self._current.answered = True
                self._holder = self._current if self._current.needs_main_lease else self._holder
        self._reject_overdue(now)
        return self._current

    def _waiting(self) -> list[ConnectedClient]:
        """Return the clients whose requests can be carried out now: the main job has only one lease."""
        return [
            client
            for client in self._clients.values()
            if client.request
            and not client.answered
            and (self._holder is None or not client.needs_main_lease)
        ]

    def respond(self, response: dict[str, Any]) -> None:
        """Send the response to the client that `next_client` returned last.

        A response with `error` or `refused`, or a failure to send it, frees the lease.
        """
        assert self._current is not None
        is_lease = self._current.request["call"] in _LEASES and not {"error", "refused"} & response.keys()
        if not self._send(self._current, response) or not is_lease:
            self._close(self._current)

    def _hand_over(self, connection: socket.socket) -> None:
        """Take over a connection from the acceptor, in its thread."""
        self._accepted.put(connection)
        with suppress(BlockingIOError):  # there are enough bytes
            self._notifier.send(b"\0")

    def _add_accepted(self, now: float) -> None:
        """Add the accepted connections, and close others, or them, if there are too many."""
        self._wakeup.recv(1 << 12)
        while not self._accepted.empty():
            connection = self._accepted.get()
            counted = sum(not client.has_joined for client in self._clients.values())
            if counted >= MAX_CONNECTIONS and not self._make_room():
                connection.close()
                continue
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _KEEP_ALIVE_OPTIONS:
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
                host = connection.getpeername()[0]
            except OSError:  # the client has reset the connection
                connection.close()
                continue
            connection.setblocking(False)
            role = role_of_peer(connection) if isinstance(connection, ssl.SSLSocket) else None
            client = ConnectedClient(connection, host, now + REQUEST_TIMEOUT_S, role=role)
            self._clients[connection] = client
            self._selector.register(connection, selectors.EVENT_READ)

    def _make_room(self) -> bool:
        """Close the oldest connection without a request of the source with the most of them.

        Return whether there was one. So connections without requests cannot keep workers out.
        """
        silent = {client: source_of(client.host) for client in self._clients.values() if not client.request}
        if silent:
            self._close(oldest_of_largest_source(silent))
        return bool(silent)

    def _read(self, client: ConnectedClient, now: float) -> None:
        """Read what a client has sent of its request, or that it has closed the connection."""
        try:
            # If unread data remained, `close` would reset the connection. A TLS record has up to 16 KiB.
            data = client.connection.recv(1 << 14)
        except ssl.SSLWantReadError:
            return
        except OSError:
            data = b""
        client.received += data
        if not data:
            self._close(client)
        elif client.request:
            self._read_messages(client)
        else:
            line, end, _ = client.received.partition(b"\n")
            if end:
                self._check_request(client, parsed_request(line), now)
            elif len(client.received) >= self._max_bytes:
                self._reject(client)

    def _read_messages(self, client: ConnectedClient) -> None:
        """Move the complete lines that a client has sent to its inbox; close it if one is no message."""
        *lines, client.received = client.received.split(b"\n")
        messages = [parsed_request(line, MESSAGE_FIELDS) for line in lines]
        client.inbox += filter(None, messages)
        if None in messages or max(len(client.received), len(client.inbox)) >= _MAX_SHORT_REQUEST_BYTES:
            self._close(client)

    def _check_request(self, client: ConnectedClient, request: dict[str, Any] | None, now: float) -> None:
        """Accept a request, or send an error if it is invalid or not permitted."""
        if request is None or request["call"] not in self._calls:
            self._reject(client)
            return
        call, roles = request["call"], _ROLES[request["call"]]
        if self._tls is not None and client.role not in roles:
            allowed = " or ".join(roles)
            self._send_error(
                client, f"{call} needs a certificate of role {allowed}; this one's is {client.role}"
            )
        elif call in _LEASES and self._token and not tokens_equal(request.get("token", ""), self._token):
            self._send_error(
                client, "the token is not this job's; set PEELSUM_TOKEN to a file with the job's"
            )
        else:
            client.request, client.deadline, client.received = request, now + LEASE_TIMEOUT_S, b""

    def _reject_overdue(self, now: float) -> None:
        """Reject connections whose deadline has passed."""
        for client in list(self._clients.values()):
            if (
                now >= client.deadline
                and not client.answered
                and (client.needs_main_lease or not client.request)
            ):
                self._reject(client)

    def _reject(self, client: ConnectedClient) -> None:
        """Send the reason why a client gets no response, and close the connection."""
        if not client.request:
            whose = " or ".join(sorted({_EXPECTED_CLIENTS[call] for call in self._calls}))
            why = f"takes requests of {whose}; this was not a request"
        else:
            why = f"is in use by {self.holder}; end that training, or wait for its end"
        self._send_error(client, why)

    def _send_error(self, client: ConnectedClient, why: str) -> None:
        self._send(client, {"error": f"{self._name}: {why}"})
        self._close(client)

    def _send(self, client: ConnectedClient, response: dict[str, Any]) -> bool:
        """Send a response; return whether that succeeded."""
        try:
            client.connection.settimeout(REQUEST_TIMEOUT_S)
            client.connection.sendall(encode_line(response))
            client.connection.setblocking(False)
        except OSError:
            return False
        return True

    def _send_outbox(self, client: ConnectedClient) -> None:
        """Send a client's messages, without waiting for it; close its connection if it does not read them."""
        messages = [client.outbox.popleft() for _ in range(len(client.outbox))]
        if client.closed:
            return
        data = b"".join(map(encode_line, messages))
        try:
            is_sent = client.connection.send(data) == len(data)
        except OSError:  # it is gone, or its buffer is full
            is_sent = False
        if not is_sent or any("end" in message for message in messages):
            self._close(client)

    def _close(self, client: ConnectedClient) -> None:
        """Close a connection, which frees its lease, or passes it on."""
        client.closed = True
        if client is self._holder:
            successor = client.successor()
            self._holder = None if successor is None or successor.closed else successor
            if self._holder is not None:
                self._holder.successor = client.successor
        del self._clients[client.connection]
        self._selector.unregister(client.connection)
        with suppress(OSError):
            client.connection.shutdown(socket.SHUT_RDWR)
        client.connection.close()


def listening_socket(place: tuple[str, int], identity: TlsIdentity | None) -> socket.socket:
    """Return a listening socket. Raises ControlError, or TlsError beyond loopback without an identity.

    place: host and port.
    """
    host, port = place
    require_tls("--listen", host, identity)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise ControlError(f"--listen: {host}:{port}: {reason}; choose another") from error


def serve_requests(
    requests: RequestServer,
    respond: Callable[[ConnectedClient], dict[str, Any]],
    poll: Callable[[], None],
    ended: Callable[[], bool],
    *,
    every_s: float,
    after_events: Callable[[], None] = lambda: None,
) -> None:
    """Serve requests until `ended` returns True.

    respond: carries out a client's request, and returns the response. poll: called every `every_s` seconds.
    after_events: called whenever connections were read.
    """
    looked, busy_s = time.monotonic(), 0.0
    while not ended():
        # Time in which this thread is busy does not count for deadlines, because it reads no requests then.
        client = requests.next_client(time.monotonic() - busy_s, every_s)
        busy_since = time.monotonic()
        if client is not None:
            requests.respond(respond(client))
        after_events()
        if time.monotonic() - looked >= every_s:
            poll()
            looked = time.monotonic()
        busy_s += time.monotonic() - busy_since
