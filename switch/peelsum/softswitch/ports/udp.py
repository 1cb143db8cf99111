"""Switch ports on UDP sockets, one per port; they need no privilege and no network interface.

A port learns its peer's address from hellos, which must prove the port's secret if it has one. It adds the
Ethernet, IPv4 and UDP headers that the P4 program expects to each payload, and removes them when it sends.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.ports.udp_kernels import (
    PORTS,
    SHARE,
    SendBuffers,
    Sockets,
    UdpColumn,
    UdpCount,
    lose_sent,
    new_receive_buffers,
    new_send_buffers,
    new_sockets,
    receive,
    send,
    sort,
)
from peelsum.softswitch.runtime.frames import Frames, frames_per_batch
from peelsum.switch_settings import check_loss_burst
from peelsum.wire import CPU_PORT, FRAME_HEADER_BYTES, HEADER_BYTES, FrameAddress, encapsulation
from peelsum.wire.datagrams import MAX_DATAGRAM, Address, BatchSocket

#: The longest datagram of a program that is not peelsum's: what a jumbo frame holds.
MOST_BYTES = 8972
_SWITCH_NUMBER = 0xFFFE
#: struct sockaddr_in: family, then port and address in network order.
_ADDRESS = struct.Struct("=H2s4s8x")


@dataclass
class PortCounts:
    """Counts of one port's datagrams since it was opened."""

    received: int = 0
    """Datagrams passed to the pipeline."""
    sent: int = 0
    """Datagrams sent to the peer."""
    hellos: int = 0
    """Hellos that were accepted: their source is the peer from then on."""
    challenges: int = 0
    """Hellos that were answered by a challenge to prove the port's secret."""
    refused: int = 0
    """Hellos that were refused: without a right proof, or while another host is an active peer."""
    foreign: int = 0
    """Datagrams dropped because they did not come from the peer's address."""
    unreachable: int = 0
    """Datagrams dropped because the port had no peer yet, or because the system had no route to it."""
    full: int = 0
    """Datagrams dropped because the kernel's send buffer was full."""
    overrun: int = 0
    """Datagrams that the kernel dropped because the pipeline was too slow."""
    odd: int = 0
    """Datagrams dropped because their length is not that of the pipeline's packets, or above MOST_BYTES."""
    lost_in: int = 0
    """Received datagrams that the configured loss dropped."""
    lost_out: int = 0
    """Datagrams that the configured loss dropped before they were sent."""
    late: int = 0
    """Datagrams that were sent after later ones, as configured."""


class UdpPort:
    """One switch port. Its peer is the source of the last accepted hello, or the port that it was joined to.

    Its state is a row of `Sockets`, the memory that all ports of a switch share with compiled loops.
    """

    def __init__(self, sockets: Sockets, row: int, number: int, sock: BatchSocket, *, is_open: bool) -> None:
        """is_open: whether the port accepts every hello as long as it has no secret."""
        self.socket = sock
        self._state, self._peer, self._counts = sockets.state[row], sockets.peers[row], sockets.counts[row]
        self._secret = sockets.secrets[row]
        self._state[UdpColumn.DESCRIPTOR], self._state[UdpColumn.NUMBER] = sock.fileno(), number
        self._state[UdpColumn.OPEN] = is_open
        self.sync_segments()

    @property
    def counts(self) -> PortCounts:
        """A copy of the counts so far."""
        counts = {column.name.lower(): int(self._counts[column]) for column in UdpCount}
        return PortCounts(**counts, overrun=self.socket.overruns)

    @property
    def has_secret(self) -> bool:
        """Whether hellos must prove a secret."""
        return bool(self._secret.any())

    def set_secret(self, secret: bytes) -> None:
        """Replace the secret, 16 bytes; 16 zero bytes remove it.

        If the secret changes, the port has no peer until a hello proves the new one.
        """
        replacement = np.frombuffer(secret, np.uint64)
        if not self._state[UdpColumn.JOINED] and (replacement != self._secret).any():
            self._secret[:] = replacement
            self._peer[:] = 0

    def join(self, address: Address) -> None:
        """Make another switch's port the permanent peer and send it a hello, as a host would.

        Raises OSError if the host's name is unknown.
        """
        host, port = socket.inet_aton(socket.gethostbyname(address[0])), address[1].to_bytes(2, "big")
        self._peer[:] = np.frombuffer(_ADDRESS.pack(socket.AF_INET, port, host), np.uint64)
        self._state[UdpColumn.JOINED] = 1
        self.socket.send_hello(address)

    def sync_segments(self) -> None:
        """Copy the number of packets per send from the socket to the memory of compiled loops."""
        self._state[UdpColumn.SEGMENTS], self._state[UdpColumn.OFFLOAD] = (
            self.socket.segments,
            self.socket.offload,
        )


class UdpPorts:
    """All ports of a switch, on UDP sockets.

    - `batch`: about how many frames `receive` returns at most.
    - `sockets`, `received`: for compiled loops.
    """

    def __init__(
        self,
        numbers: Iterable[int],
        *,
        host: str = "127.0.0.1",
        base: int | Mapping[int, int] | None = None,
        batch: int = 1024,
        loss: float = 0.0,
        loss_burst: float | None = None,
        late: float = 0.0,
        seed: int = 0,
        offload: bool | None = None,
        accepts_any_hello: bool = True,
        cpu_port: int = CPU_PORT,
    ) -> None:
        """Open one socket per switch port.

        base: switch port p listens on UDP port base + p, or base[p]; by default on any free one.
        batch: about how many frames `receive` returns at most.
        accepts_any_hello: whether ports without a secret accept every hello.
        cpu_port: frames to it are for the controller.
        loss: share of datagrams except hellos that each port loses in each direction, decided by `seed`.
        loss_burst: the mean number of datagrams that are lost in a row; None loses each independently.
        late: share of the datagrams sent at once that are exchanged with one up to MOST_LATE later.
        Raises ValueError for a share or a number out of range, OSError naming an address that is in use.
        """
        self.batch = self._most_frames = batch
        numbers = list(numbers)
        for number in numbers:
            if not 0 <= number < PORTS:
                raise ValueError(f"port: {number} is out of range; use 0 to {PORTS - 1}")
        self.cpu_port = cpu_port
        self.sockets = new_sockets(numbers, cpu_port)
        if not 0 <= loss <= 1:
            raise ValueError(f"loss: {loss} is out of range; use 0 to 1")
        self.sockets.loss[:] = loss
        check_loss_burst(loss, loss_burst)
        if loss_burst is not None:
            # Of two states, in the lossy one for a share `loss` of the packets, `loss_burst` at a time.
            self.sockets.loss[:] = loss / (1 - loss) / loss_burst, 1 - 1 / loss_burst
        self.sockets.late[0] = late
        for row, number in enumerate(numbers):
            self.sockets.draws[row] = np.random.SeedSequence((seed, number)).generate_state(3, np.uint64)
        #: By switch port number.
        self.ports: dict[int, UdpPort] = {}
        try:
            for row, number in enumerate(numbers):
                address = (host, _udp_port(base, number))
                sock = BatchSocket.bind(address, HEADER_BYTES, burst=1, offload=offload)
                self.ports[number] = UdpPort(self.sockets, row, number, sock, is_open=accepts_any_hello)
        except OSError:
            self.close()
            raise
        self.resize(HEADER_BYTES)

    @property
    def listening(self) -> dict[int, int]:
        """UDP ports by switch port."""
        return {number: port.socket.address[1] for number, port in self.ports.items()}

    @property
    def unsent_frames(self) -> dict[str, int]:
        """Frames from the program that no port sent, by reason.

        - malformed: not one datagram of UDP over IPv4 of a length that the port sends.
        - unknown_port: the egress port does not exist.
        """
        return dict(zip(("malformed", "unknown_port"), self.sockets.dropped.tolist(), strict=True))

    def resize(self, packet_bytes: int) -> None:
        """Accept and send datagrams of `packet_bytes` from now on, for a new pipeline.

        With a pipeline without lanes, which is not peelsum's, they may have up to MOST_BYTES.
        """
        is_fixed = packet_bytes > HEADER_BYTES
        least_bytes, packet_bytes = (packet_bytes, packet_bytes) if is_fixed else (1, MOST_BYTES)
        self.sockets.frame_bytes[:] = FRAME_HEADER_BYTES + least_bytes, FRAME_HEADER_BYTES + packet_bytes
        for port in self.ports.values():
            port.socket.resize(packet_bytes, is_maximum=not is_fixed)
            port.sync_segments()
        stride = -(-(FRAME_HEADER_BYTES + packet_bytes) // 64) * 64
        self.batch = frames_per_batch(self._most_frames, stride)
        # A port may exceed its share of a batch by the contents of the largest datagram.
        rows = self.batch + len(self.ports) * (SHARE + MAX_DATAGRAM // packet_bytes)
        headers = [frame_header(number, packet_bytes) for number in self.ports]
        self.received = new_receive_buffers(rows, stride, headers, packet_bytes)
        self._send_buffers = new_send_buffers(rows, len(self.ports))

    def receive(self, ready: Sequence[int]) -> Frames:
        """Return frames that arrived on the ports `ready`, in order per port and in fair shares.

        The result may be empty and is valid until the next call. Other datagrams wait in the kernel.
        Raises OSError for permanent errors.
        """
        batch = self.received
        rows = self.sockets.rows[list(ready)]
        count = receive(self.sockets, rows, max(SHARE, self.batch // max(1, len(rows))), batch)
        if count < 0:
            raise OSError(-count, f"udp receive: {errno.errorcode.get(-count)}")
        return Frames(batch.data[:count], batch.length[:count], batch.port[:count])

    def send(self, frames: Frames) -> None:
        """Send the packets in `frames` to the peers of their ports, in order per port.

        Drop and count them if there is no peer or the send buffer is full.
        """
        send_buffers, ports = self.send_buffers_for(len(frames)), frames.port.copy()
        lose_sent(self.sockets, ports)
        sort(self.sockets, frames.data, frames.length, ports, send_buffers)
        if (row := send(self.sockets, send_buffers)) >= 0:
            self.resend_smaller(row)

    def resend_smaller(self, row: int) -> None:
        """Send what remains in the send buffers with fewer segments, after the port in `row` refused them."""
        while row >= 0:
            port = self.ports[int(self.sockets.state[row, UdpColumn.NUMBER])]
            port.socket.reduce_segments()
            port.sync_segments()
            row = send(self.sockets, self._send_buffers)

    def send_buffers_for(self, frames: int) -> SendBuffers:
        """Return memory to send up to `frames` frames."""
        if frames > len(self._send_buffers.iovecs):
            self._send_buffers = new_send_buffers(frames, len(self.ports))
        return self._send_buffers

    def close(self) -> None:
        """Free every UDP port."""
        for port in self.ports.values():
            port.socket.close()


def _udp_port(base: int | Mapping[int, int] | None, number: int) -> int:
    """Return the UDP port of a switch port; 0 for any free one."""
    if base is None:
        return 0
    return base + number if isinstance(base, int) else base.get(number, 0)


def frame_header(number: int, packet_bytes: int) -> NDArray[np.uint8]:
    """Return the 42 bytes of headers that port `number` puts before packets: from its host to the switch."""
    return np.frombuffer(encapsulation(packet_bytes, _address(number), _address(_SWITCH_NUMBER)), np.uint8)


def _address(number: int) -> FrameAddress:
    """Return the addresses of host `number`: a locally administered MAC address, and 10.0.x.y."""
    return FrameAddress(struct.pack("!HI", 0x0200, number), struct.pack("!HH", 0x0A00, number))
