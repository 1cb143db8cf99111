"""A host's UDP link to its switch port: hello, batches in and out, waiting. Knows no protocol beyond hello.

Where the switch port is a UDP socket (`udp-port`), an empty datagram says 'I am here'; the switch answers
with one. It is said again whenever nothing has come for a while, so that a switch process that was restarted
learns who is behind its ports. On a wire (`ethernet`), the switch knows who is behind its port: nothing is
said, and the host takes the port number that results are sent to.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, Protocol, Self

from peelsum.transport.errors import SwitchUnreachableError
from peelsum.wire import UDP_PORT, Batch
from peelsum.wire.datagrams import Address, BatchSocket

#: What lies between a host and its switch port.
Wire = Literal["udp-port", "ethernet"]

#: Seconds between hellos that are not answered.
_HELLO_GAP = 0.1
#: Seconds without an answer after which hellos are talked of.
_TELL_AFTER = 2.0
#: Seconds without any datagram after which the switch may have forgotten us.
_SILENCE = 1.0


_log = logging.getLogger("peelsum")


class Machine(Protocol):
    """What sends: a worker's endpoint or an aggregation server."""

    def to_send(self, now: float, limit: int = ...) -> Batch: ...


class Link:
    """A connected socket to one switch port. `address` is where the switch listens for it."""

    def __init__(
        self, address: Address, packet_bytes: int, *, hello_s: float, wire: Wire = "udp-port"
    ) -> None:
        """Open the socket and, unless on a wire, say hello until answered.

        Raises SwitchUnreachableError when nobody answers within `hello_s` seconds, or when another program
        of this host has its end of the wire.
        """
        self._address = address
        self._greets = wire == "udp-port"
        self._heard_at = time.monotonic()
        self._unsent: Batch | None = None
        self._writing = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        try:
            self._socket = self._bind(packet_bytes)
        except OSError as error:
            self._close_waiting()
            raise SwitchUnreachableError(str(error)) from error
        try:
            with self._blaming_the_network():
                self._socket.connect(address)
                self._selector.register(self._socket, selectors.EVENT_READ)
                self._selector.register(self._woken, selectors.EVENT_READ)
                if self._greets:
                    self._say_hello(hello_s)
        except BaseException:
            self.close()
            raise

    def receive(self) -> Batch | None:
        """Packets that have arrived, uint8[n, packet_bytes], valid until the next call; None without any."""
        with self._blaming_the_network():
            while (burst := self._socket.receive()) is not None:
                self._heard_at = time.monotonic()
                if not burst.hello:
                    return burst.packets
        return None

    def send_from(self, machine: Machine, now: float) -> None:
        """Send what the machine has to send, as far as the kernel takes it; the rest goes first next time."""
        while self._unsent is None or self._flushed():
            batch = machine.to_send(now)
            if not len(batch):
                return
            self._unsent = batch

    def wait(self, until: float | None) -> None:
        """Wait for a packet, for room to send what is left, for `wake`, or until that time."""
        now = time.monotonic()
        if now - self._heard_at >= _SILENCE:
            self._heard_at = now
            if self._greets:
                self._socket.send_hello()
        latest = self._heard_at + _SILENCE
        latest = latest if until is None else min(latest, until)
        self._watch(writing=self._unsent is not None)
        for key, _ in self._selector.select(max(0.0, latest - now)):
            if key.fileobj is self._woken:
                self._woken.recv(64)

    def wake(self) -> None:
        """Make `wait` return, from any thread or signal handler."""
        with suppress(OSError):
            self._waker.send(b"\0")

    @property
    def room(self) -> int:
        """About how many packets the kernel holds for a socket like this one while nobody reads."""
        return self._socket.room

    @property
    def overruns(self) -> int:
        """Packets the kernel dropped because they came faster than they were taken."""
        return self._socket.overruns

    def close(self) -> None:
        """Free the port."""
        self._close_waiting()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bind(self, packet_bytes: int) -> BatchSocket:
        if self._greets:
            return BatchSocket.bind(("0.0.0.0", 0), packet_bytes)
        # Whole datagrams only: what a network interface does with segmented ones, not every switch bears.
        return BatchSocket.bind(("0.0.0.0", UDP_PORT), packet_bytes, offload=False)

    @contextmanager
    def _blaming_the_network(self) -> Iterator[None]:
        """Raise what the operating system complains of as a SwitchUnreachableError that names the address."""
        try:
            yield
        except OSError as error:
            where = f"{self._address[0]}:{self._address[1]}"
            raise SwitchUnreachableError(
                f"switch address {where}: {error.strerror or error}; check host and port"
            ) from error

    def _close_waiting(self) -> None:
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _watch(self, *, writing: bool) -> None:
        """Have the selector report room for sending too, or no longer."""
        if writing != self._writing:
            self._writing = writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
            self._selector.modify(self._socket, events)

    def _flushed(self) -> bool:
        """Send what was kept back; whether all of it is gone."""
        assert self._unsent is not None
        with self._blaming_the_network():
            left = self._unsent[self._socket.send(self._unsent) :]
        self._unsent = left if len(left) else None
        return self._unsent is None

    def _say_hello(self, patience: float) -> None:
        started = time.monotonic()
        give_up_at, tell_at = started + patience, started + _TELL_AFTER
        say_at = 0.0
        while (now := time.monotonic()) < give_up_at:
            if now >= tell_at:
                tell_at = give_up_at
                where = f"{self._address[0]}:{self._address[1]}"
                _log.warning("switch address %s: no answer yet; waiting up to %g s", where, patience)
            if now >= say_at:
                self._socket.send_hello()
                say_at = now + _HELLO_GAP
            self._selector.select(min(say_at, give_up_at) - now)
            while (burst := self._socket.receive()) is not None:
                if burst.hello:
                    self._heard_at = time.monotonic()
                    return
        raise SwitchUnreachableError(
            f"switch address {self._address[0]}:{self._address[1]}: no answer in {patience:g} s; "
            "check that the switch runs and that this is the address of this host's port"
        )
