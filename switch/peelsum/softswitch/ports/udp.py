"""Switch ports on UDP sockets, one per port; they need no privilege and no network interface.

A port learns its peer from hellos. It adds the Ethernet, IPv4 and UDP headers that the P4 program expects
around each payload, and removes them again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.runtime.frames import Frames
from peelsum.wire import FRAME_HEADER_BYTES, HEADER_BYTES, FrameAddress, encapsulation
from peelsum.wire.batch import Batch
from peelsum.wire.datagrams import MAX_DATAGRAM, Address, BatchSocket

_SWITCH_NUMBER = 0xFFFE
#: Most bursts without packets from the peer that a port reads per call.
_PATIENCE = 16


@dataclass
class PortCounts:
    """Counts of one port's datagrams since it was opened."""

    received: int = 0
    """Datagrams passed to the pipeline."""
    sent: int = 0
    """Datagrams sent to the peer."""
    hellos: int = 0
    """Hellos answered."""
    foreign: int = 0
    """Datagrams dropped because they came from another address than the peer's, or before any hello."""
    unreachable: int = 0
    """Datagrams dropped because the port had no peer yet, or because the system had no route to it."""
    full: int = 0
    """Datagrams dropped because the kernel's send buffer was full."""
    overrun: int = 0
    """Datagrams that the kernel dropped because the pipeline was too slow."""
    odd: int = 0
    """Datagrams dropped because their length is not this pipeline's."""
    lost_in: int = 0
    """Received datagrams dropped on purpose, by the configured loss."""
    lost_out: int = 0
    """Datagrams dropped on purpose before they were sent, by the configured loss."""


class Loss:
    """Chooses datagrams to lose: a random share, in which seed and n decide on the n-th datagram."""

    def __init__(self, share: float, seed: Sequence[int]) -> None:
        """share: 0 to 1. Raises ValueError otherwise."""
        if not 0 <= share <= 1:
            raise ValueError(f"loss: {share} is out of range; use 0 to 1")
        self._share = share
        self._random = np.random.default_rng(seed)

    def survivors(self, batch: Batch) -> Batch:
        """Return the rows that are not lost; the batch itself if the share is 0."""
        if not self._share:
            return batch
        return batch[self._random.random(len(batch)) >= self._share]


class UdpPort:
    """One switch port. Its peer is the source of the last hello, or the port that it was joined to."""

    def __init__(self, number: int, sock: BatchSocket, *, loss: float = 0.0, seed: int = 0) -> None:
        self.number = number
        self.socket = sock
        self.peer: Address | None = None
        self._joined = self._answered = False
        self._counts = PortCounts()
        self._loss_in = Loss(loss, (seed, number, 0))
        self._loss_out = Loss(loss, (seed, number, 1))

    @property
    def counts(self) -> PortCounts:
        """A copy of the counts so far."""
        return replace(self._counts, odd=self.socket.odd, overrun=self.socket.overruns)

    def join(self, address: Address) -> None:
        """Make another switch's port the permanent peer and send it a hello, as a host would."""
        self.peer, self._joined = address, True
        self.socket.send_hello(address)

    def receive(self, limit: int) -> Batch | None:
        """Return about `limit` packets from the peer, uint8[n, packet_bytes]; None if none wait.

        Hellos are answered, each with an empty datagram. The result is valid until the next call.
        """
        for _ in range(_PATIENCE):
            burst = self.socket.receive(limit)
            if burst is None:
                return None
            if burst.hello and not self._joined:
                self._meet(burst.source)
            elif burst.hello:
                self._answered |= burst.source == self.peer
            elif burst.source != self.peer:
                self._counts.foreign += len(burst.packets)
            else:
                packets = self._loss_in.survivors(burst.packets)
                self._counts.received += len(packets)
                self._counts.lost_in += len(burst.packets) - len(packets)
                return packets
        return None

    def send(self, batch: Batch) -> None:
        """Send packets to the peer; drop and count them if there is no peer or the send buffer is full."""
        if self.peer is None:
            self._counts.unreachable += len(batch)
            return
        if self._joined and not self._answered:
            self.socket.send_hello(self.peer)
        packets = self._loss_out.survivors(batch)
        self._counts.lost_out += len(batch) - len(packets)
        try:
            sent = self.socket.send(packets, self.peer)
        except OSError:
            self._counts.unreachable += len(packets)
            return
        self._counts.sent += sent
        self._counts.full += len(packets) - sent

    def _meet(self, source: Address) -> None:
        self.peer = source
        self._counts.hellos += 1
        self.socket.send_hello(source)


class UdpPorts:
    """All ports of a switch, on UDP sockets.

    unframed: number of frames dropped because they were not one whole packet.
    no_such_port: number of frames dropped because their egress port does not exist.
    """

    def __init__(
        self,
        numbers: Iterable[int],
        *,
        host: str = "127.0.0.1",
        base: int | Mapping[int, int] | None = None,
        batch: int = 1024,
        loss: float = 0.0,
        seed: int = 0,
        offload: bool | None = None,
    ) -> None:
        """Open one socket per switch port.

        base: switch port p listens on UDP port base + p, or base[p]; by default on any free one.
        batch: about how many frames `receive` returns at most.
        loss: share of datagrams except hellos that each port loses in each direction, decided by `seed`.
        Raises ValueError for a share out of range, OSError naming an address that is in use.
        """
        self._batch = batch
        self._ports: dict[int, UdpPort] = {}
        self.unframed = 0
        self.no_such_port = 0
        try:
            for number in numbers:
                address = (host, _udp_port(base, number))
                sock = BatchSocket.bind(address, HEADER_BYTES, burst=batch, offload=offload)
                try:
                    self._ports[number] = UdpPort(number, sock, loss=loss, seed=seed)
                except ValueError:
                    sock.close()
                    raise
        except (OSError, ValueError):
            self.close()
            raise
        self.resize(HEADER_BYTES)

    @property
    def ports(self) -> Mapping[int, UdpPort]:
        """The ports by switch port number."""
        return self._ports

    @property
    def listening(self) -> dict[int, int]:
        """UDP ports by switch port."""
        return {number: port.socket.address[1] for number, port in self._ports.items()}

    def holding(self) -> list[int]:
        """Return the numbers of the ports that hold received packets, which select does not report."""
        return self._holding

    def resize(self, packet_bytes: int) -> None:
        """Accept and send datagrams of `packet_bytes` from now on, for a new pipeline."""
        self._size = packet_bytes
        self._frame_bytes = FRAME_HEADER_BYTES + packet_bytes
        for port in self._ports.values():
            port.socket.resize(packet_bytes)
        # A port may exceed its share of a batch by the contents of the largest datagram.
        rows = self._batch + len(self._ports) * (64 + MAX_DATAGRAM // packet_bytes)
        stride = -(-self._frame_bytes // 64) * 64
        self._frames = Frames(
            np.zeros((rows, stride), np.uint8),
            np.full(rows, self._frame_bytes, np.int32),
            np.zeros(rows, np.int32),
        )
        self._holding: list[int] = []
        self._headers = {number: frame_header(number, packet_bytes) for number in self._ports}

    def receive(self, ready: Sequence[int]) -> Frames:
        """Return frames that arrived on the ports `ready`, in order per port and in fair shares.

        The result may be empty and is valid until the next call. Other datagrams wait in the kernel.
        """
        frames, count = self._frames, 0
        share = max(64, self._batch // max(1, len(ready)))
        for number in ready:
            packets = self._ports[number].receive(share)
            if packets is None:
                continue
            end = count + len(packets)
            frames.data[count:end, :FRAME_HEADER_BYTES] = self._headers[number]
            frames.data[count:end, FRAME_HEADER_BYTES : self._frame_bytes] = packets
            frames.length[count:end] = self._frame_bytes
            frames.port[count:end] = number
            count = end
        self._holding = [number for number in ready if self._ports[number].socket.holding]
        return Frames(frames.data[:count], frames.length[:count], frames.port[:count])

    def send(self, frames: Frames) -> None:
        """Send the packets in `frames` to the peers of their ports, in order per port."""
        whole = self._whole(frames).nonzero()[0]
        to = frames.port[whole]
        # Visit only ports with frames: the cost of a small batch must not grow with the number of ports.
        for number in np.bincount(to).nonzero()[0].tolist():
            rows = whole[to == number]
            if number in self._ports:
                self._ports[number].send(frames.data[rows, FRAME_HEADER_BYTES : self._frame_bytes])
            else:
                self.no_such_port += rows.size

    def send_by(self, number: int, frames: Frames) -> None:
        """Send the packets in `frames`, all of which leave by port `number`, in order."""
        whole = self._whole(frames)
        if not whole.all():
            frames = frames.at(whole)
        self._ports[number].send(frames.data[:, FRAME_HEADER_BYTES : self._frame_bytes])

    def _whole(self, frames: Frames) -> NDArray[np.bool_]:
        """Return which frames are one whole packet, bool[n], and count the others."""
        whole = (frames.length == self._frame_bytes) & is_udp(frames.data)
        self.unframed += int(np.count_nonzero(~whole))
        return np.asarray(whole, np.bool_)

    def close(self) -> None:
        """Free every UDP port."""
        for port in self._ports.values():
            port.socket.close()


def _udp_port(base: int | Mapping[int, int] | None, number: int) -> int:
    """Return the UDP port of a switch port; 0 for any free one."""
    if base is None:
        return 0
    return base + number if isinstance(base, int) else base.get(number, 0)


def is_udp(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which frames (uint8[n, stride]) hold UDP over IPv4 without options: bool[n]."""
    ethertype = (data[:, 12] == 0x08) & (data[:, 13] == 0x00)
    return np.asarray(ethertype & (data[:, 14] == 0x45) & (data[:, 23] == 17), np.bool_)


def frame_header(number: int, packet_bytes: int) -> NDArray[np.uint8]:
    """Return the 42 bytes of headers, from host `number` to the switch, of packets that enter there."""
    return np.frombuffer(encapsulation(packet_bytes, _address(number), _address(_SWITCH_NUMBER)), np.uint8)


def _address(number: int) -> FrameAddress:
    """Return the addresses of host `number`: a locally administered MAC address, and 10.0.x.y."""
    return FrameAddress(struct.pack("!HI", 0x0200, number), struct.pack("!HH", 0x0A00, number))
