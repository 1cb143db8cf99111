"""Who may start a job, of all who connect to where it is served. Owns the connections and whose turn it is.

Refuses to know what a start is; time is a parameter.
"""

from __future__ import annotations

import json
import selectors
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peelsum.transport.asking import LONGEST_REQUEST, asking_process

#: How long one who connects may take to say what it wants, and to take its answer in, in seconds.
SPEAK_S = 5.0
#: How long one who asks waits for the one before to go, in seconds; longer than a silent machine is believed.
WAIT_S = 8.0
#: Connections at a time.
MOST = 32
#: (option, value) in seconds, or probes: one whose machine has gone without a word is gone after 5 s.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))


@dataclass
class _Guest:
    """A connection. `until` is when it is no longer waited for; `process` is whose, once it has asked."""

    link: socket.socket
    host: str
    until: float
    heard: bytes = b""
    process: int | None = None

    @property
    def name(self) -> str:
        """Whoever asked, for people."""
        return f"process {self.process} of {self.host}"


class Requests:
    """Connections to a socket that listens, one of which may hold the job. A context manager.

    Theory of operation.

    | connection    | what comes             | then                                           |
    |---------------|------------------------|------------------------------------------------|
    | a stranger    | a request, one line    | it waits for the job                           |
    | a stranger    | anything else, SPEAK_S | it is told so, and closed                      |
    | one who waits | nobody holds the job   | the longest waiting holds it, and is started   |
    | one who waits | WAIT_S                 | it is told who holds the job, and closed       |
    | any           | its end                | it is closed; if it held the job, that is free |

    So only rank 0 of a start may end the start before, and only when the rank 0 of that has ended or left:
    the kernel closes the connection of a process that is killed, and keep-alives find machines that are lost.
    """

    def __init__(self, listening: socket.socket, job: str) -> None:
        """job: what it is called in answers."""
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
        """Who holds the job, for people."""
        return self._holder.name if self._holder else None

    def next(self, now: float, timeout_s: float) -> bool:
        """Whether somebody new holds the job, and waits to be told, after up to `timeout_s`."""
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
        """Answer who holds the job. It holds it no longer if `answer` is an error, or if it has gone."""
        assert self._holder is not None
        if not self._say(self._holder, answer) or "error" in answer:
            self._close(self._holder)

    def _let_in(self, now: float) -> None:
        try:
            link, (host, *_) = self._listening.accept()
        except OSError:  # it has gone already
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
            said = guest.link.recv(4096)  # all of it, or what was not read would take the answer away
        except OSError:
            said = b""
        if not said:
            self._close(guest)
        elif guest.process is None:
            guest.heard += said
            line, end, _ = guest.heard.partition(b"\n")
            guest.process = asking_process(line) if end else None
            if guest.process is not None:
                guest.until = now + WAIT_S
            elif end or len(guest.heard) >= LONGEST_REQUEST:
                self._turn_away(guest)

    def _dismiss(self, now: float) -> None:
        """Send away who was waited for, or has waited, for long enough."""
        for guest in list(self._guests.values()):
            if guest is not self._holder and now >= guest.until:
                self._turn_away(guest)

    def _turn_away(self, guest: _Guest) -> None:
        if guest.process is None:
            why = "is asked for by rank 0 of a training, with 'switch://HOST:PORT'; this was no request"
        else:
            why = f"is in use by {self.holder}; end that training, or wait until it has ended"
        self._say(guest, {"error": f"{self._job}: {why}"})
        self._close(guest)

    def _say(self, guest: _Guest, answer: dict[str, Any]) -> bool:
        """Whether it was taken in."""
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
