"""A host's UDP link to its switch port: its socket, hellos, and errors that name the switch.

If the switch port is a UDP socket (`udp-port`), the host says hello, and proves the job's secret if the
switch challenges it, see `peelsum.wire.hello`. The host repeats its hello when nothing has arrived for a
while, so that a restarted switch learns the host's address. On a wire (`ethernet`) there is no hello; the
host binds the UDP port that results are sent to.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, Self

from peelsum.forks import close_in_forked_children
from peelsum.transport.errors import SwitchUnreachableError
from peelsum.wire import PROOF_BYTES, UDP_PORT, Batch
from peelsum.wire.datagrams import Address, BatchSocket
from peelsum.wire.hello import proof
from peelsum.wire.mtu import interface_mtu_error, path_mtu_error, route_interface

#: The kind of connection between a host and its switch port.
Wire = Literal["udp-port", "ethernet"]

#: Seconds between unanswered hellos.
_HELLO_GAP = 0.1
#: Seconds without an answer after which a warning is logged.
_TELL_AFTER = 2.0
#: Seconds without a datagram after which to say hello again.
_SILENCE = 1.0
_log = logging.getLogger("peelsum")


class PortLink:
    """A socket connected to one switch port, whose address is `address`."""

    def __init__(
        self,
        address: Address,
        packet_bytes: int,
        *,
        hello_s: float,
        wire: Wire = "udp-port",
        interface: str = "",
        secret: str = "",
        local_port: int = 0,
    ) -> None:
        """Open the socket and, unless on a wire, say hello until answered.

        interface: this host's, on a wire; by default the one on the way to `address`. secret: the job's, in
        hexadecimal. local_port: this host's UDP port, if it is free and not on a wire: a switch takes packets
        from where its peer was at once, and from elsewhere when the peer has been silent for a second.
        Raises SwitchUnreachableError if there is no answer within `hello_s` seconds, if packets do not fit
        the MTU, or if another program on this host uses the wire's UDP port.
        """
        self._address = address
        self._greets = wire == "udp-port"
        self._heard_at = time.monotonic()
        #: The longest time until `greet` is to be called again, in seconds.
        self.longest_turn_s = _SILENCE
        #: The job's secret, 16 bytes; empty without one.
        self.secret = bytes.fromhex(secret)
        try:
            self.socket = self._bind(packet_bytes, interface, local_port)
            close_in_forked_children(self.socket)
        except OSError as error:
            raise SwitchUnreachableError(str(error)) from error
        try:
            with self._blaming_the_network():
                why = (
                    interface_mtu_error(interface, packet_bytes)
                    if interface
                    else path_mtu_error(address, packet_bytes)
                )
                if why is not None:
                    raise SwitchUnreachableError(why)
                self.socket.connect(address)
                if self._greets:
                    self._say_hello(hello_s)
        except BaseException:
            self.close()
            raise

    def send(self, batch: Batch) -> int:
        """Send packets; return how many the kernel took."""
        with self._blaming_the_network():
            return self.socket.send(batch)

    def fail(self, number: int) -> None:
        """Raise SwitchUnreachableError for a system call's error number."""
        with self._blaming_the_network():
            raise OSError(number, os.strerror(number))

    def heard(self, at: float) -> None:
        """Note that a datagram was received at the time `at`."""
        self._heard_at = max(self._heard_at, at)

    def greet(self, now: float) -> float:
        """Say hello if nothing has been received for a while; return when to call this again."""
        if now - self._heard_at >= _SILENCE:
            self._heard_at = now
            if self._greets:
                self.socket.send_hello()
        return min(self._heard_at + _SILENCE, now + self.longest_turn_s)

    def close(self) -> None:
        """Free the port."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bind(self, packet_bytes: int, interface: str, local_port: int) -> BatchSocket:
        if self._greets:
            if local_port:
                with suppress(OSError):
                    return BatchSocket.bind(("0.0.0.0", local_port), packet_bytes)
            return BatchSocket.bind(("0.0.0.0", 0), packet_bytes)
        with self._blaming_the_network():
            interface = interface or route_interface(self._address)
        try:
            # No offload: not every switch handles a network interface's segmented sends.
            return BatchSocket.bind(("0.0.0.0", UDP_PORT), packet_bytes, offload=False, interface=interface)
        except OSError as error:
            if error.errno == errno.ENODEV:
                reason = f"interface {interface}: {os.strerror(error.errno)}; name one of this host's"
            elif error.errno == errno.EADDRINUSE:
                reason = (
                    f"interface {interface}: another worker or server of this host has UDP port {UDP_PORT} "
                    "there; give each its own interface"
                )
            else:
                raise
            raise OSError(error.errno, reason) from error

    @contextmanager
    def _blaming_the_network(self) -> Iterator[None]:
        """Turn OSError, and errors of an invalid host or port, into a SwitchUnreachableError."""
        try:
            yield
        except (OSError, OverflowError, UnicodeError) as error:
            where = f"{self._address[0]}:{self._address[1]}"
            raise SwitchUnreachableError(
                f"switch address {where}: {getattr(error, 'strerror', None) or error}; check host and port"
            ) from error

    def _say_hello(self, patience: float) -> None:
        started = time.monotonic()
        give_up_at, tell_at = started + patience, started + _TELL_AFTER
        say_at, challenged = 0.0, False
        arrived = select.poll()
        arrived.register(self.socket, select.POLLIN)
        while (now := time.monotonic()) < give_up_at:
            if now >= tell_at:
                tell_at = give_up_at
                where = f"{self._address[0]}:{self._address[1]}"
                _log.warning("switch address %s: no answer yet; waiting up to %g s", where, patience)
            if now >= say_at:
                self.socket.send_hello()
                say_at = now + _HELLO_GAP
            arrived.poll(1000 * (min(say_at, give_up_at) - now))
            while (answer := self.socket.receive_hello()) is not None:
                if not answer:
                    self._heard_at = time.monotonic()
                    return
                if len(answer) == PROOF_BYTES and self.secret:
                    self.socket.send_hello(proof=proof(self.secret, answer))
                challenged |= len(answer) == PROOF_BYTES
        where = f"switch address {self._address[0]}:{self._address[1]}"
        if challenged:
            raise SwitchUnreachableError(
                f"{where}: refused this host for {patience:g} s; check that the job was not admitted again, "
                "that this is its whole admission, with `secret`, and that no other host has this port"
            )
        raise SwitchUnreachableError(
            f"{where}: no answer in {patience:g} s; check that the switch runs, that the job is admitted, "
            "and that this is the address of this host's port"
        )
