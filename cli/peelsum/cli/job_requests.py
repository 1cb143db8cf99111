"""Connections to a served job, one of which holds the job's lease. Time is a parameter."""

from __future__ import annotations

import json
import selectors
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peelsum.transport.lease import LONGEST_REQUEST, requesting_process

#: How long a client may take to send its request, and to receive the response, in seconds.
SPEAK_S = 5.0
#: How long a request waits for the lease, in seconds: longer than keep-alives need to find a lost machine.
WAIT_S = 8.0
#: Maximum number of connections.
MOST = 32
#: (option, value) in seconds, or probes: the connection of a lost machine is closed after 5 s.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))


@dataclass
class _Guest:
    """A connection. `until` is its deadline; `process` is the client's process id, after its request."""

    link: socket.socket
    host: str
    until: float
    heard: bytes = b""
    process: int | None = None

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
    | waiting       | the lease is free             | the longest waiting gets it; its run starts   |
    | waiting       | WAIT_S passes                 | it gets an error with the holder, and closes  |
    | any           | the client closes             | it is closed, and its lease, if any, is freed |

    So a run ends only when another rank 0 requests the job, and only after its own rank 0 has left or ended.
    The kernel closes the connection of a killed process, and keep-alives find lost machines.
    """

    def __init__(self, listening: socket.socket, job: str) -> None:
        """job: the job's name in responses."""
        self._listening, self._job = listening, job
        self._selector = selectors.DefaultSelector()
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._guests: dict[socket.socket, _Guest] = {}
        self._holder: _Guest | None = None

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

    def next(self, now: float, timeout_s: float) -> bool:
        """Wait up to `timeout_s`; return whether a new client got the lease and awaits `tell`."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listening:
                self._let_in(now)
            elif guest := self._guests.get(key.fileobj):  # type: ignore[call-overload]  # sockets only
                self._hear(guest, now)
        waiting = [guest for guest in self._guests.values() if guest.process is not None]
        started = self._holder is None and bool(waiting)
        if started:
            self._holder = min(waiting, key=lambda guest: guest.until)
        self._dismiss(now)
        return started

    def tell(self, answer: dict[str, Any]) -> None:
        """Send the holder its response. The lease is freed if `answer` is an error, or if sending fails."""
        assert self._holder is not None
        if not self._say(self._holder, answer) or "error" in answer:
            self._close(self._holder)

    def _let_in(self, now: float) -> None:
        try:
            link, (host, *_) = self._listening.accept()
        except OSError:  # the client has already gone
            return
        if len(self._guests) == MOST:
            link.close()
            return
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            link.setsockopt(socket.IPPROTO_TCP, option, value)
        link.setblocking(False)
        self._selector.register(link, selectors.EVENT_READ)
        self._guests[link] = _Guest(link, host, now + SPEAK_S)

    def _hear(self, guest: _Guest, now: float) -> None:
        try:
            said = guest.link.recv(4096)  # read all: closing with unread data would reset the response
        except OSError:
            said = b""
        if not said:
            self._close(guest)
        elif guest.process is None:
            guest.heard += said
            line, end, _ = guest.heard.partition(b"\n")
            guest.process = requesting_process(line) if end else None
            if guest.process is not None:
                guest.until = now + WAIT_S
            elif end or len(guest.heard) >= LONGEST_REQUEST:
                self._turn_away(guest)

    def _dismiss(self, now: float) -> None:
        """Turn away connections whose deadline has passed."""
        for guest in list(self._guests.values()):
            if guest is not self._holder and now >= guest.until:
                self._turn_away(guest)

    def _turn_away(self, guest: _Guest) -> None:
        if guest.process is None:
            why = "takes requests of a training's rank 0, by 'switch://HOST:PORT'; this was not a request"
        else:
            why = f"is in use by {self.holder}; end that training, or wait for its end"
        self._say(guest, {"error": f"{self._job}: {why}"})
        self._close(guest)

    def _say(self, guest: _Guest, answer: dict[str, Any]) -> bool:
        """Send a response; return whether that succeeded."""
        try:
            guest.link.settimeout(SPEAK_S)
            guest.link.sendall(json.dumps(answer).encode() + b"\n")
            guest.link.setblocking(False)
        except OSError:
            return False
        return True

    def _close(self, guest: _Guest) -> None:
        if guest is self._holder:
            self._holder = None
        del self._guests[guest.link]
        self._selector.unregister(guest.link)
        with suppress(OSError):
            guest.link.shutdown(socket.SHUT_RDWR)
        guest.link.close()
