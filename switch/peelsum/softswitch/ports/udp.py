"""The embedded switch's ports as UDP sockets, one per port: no privilege and no network interface needed.

Owns who is behind a port, and the Ethernet, IPv4 and UDP headers that the P4 program sees around each
payload. Refuses to know what a payload says or what the program does with it.
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
#: Bursts looked at in one go on a port that brings nothing but strangers and hellos.
_PATIENCE = 16


@dataclass
class PortCounts:
    """Datagrams of one port since it was opened.

    received, sent: carried into and out of the pipeline.
    hellos: answered.
    foreign: from an address that is not the peer's (or before any hello); dropped.
    unreachable: left for a port that nobody has said hello to, or for a peer that the system has no way to;
        dropped.
    full: dropped because the kernel had no room on the way out.
    overrun: dropped by the kernel because the pipeline was slower, as the kernel counts them.
    odd: of a length that is not this pipeline's; dropped.
    lost_in, lost_out: dropped on purpose, by the share of loss that was asked for.
    """

    received: int = 0
    sent: int = 0
    hellos: int = 0
    foreign: int = 0
    unreachable: int = 0
    full: int = 0
    overrun: int = 0
    odd: int = 0
    lost_in: int = 0
    lost_out: int = 0


class Loss:
    """Decides which datagrams are lost: a seeded share, the n-th datagram's fate fixed by seed and n."""

    def __init__(self, share: float, seed: Sequence[int]) -> None:
        """`share` of 0 to 1; raises ValueError otherwise."""
        if not 0 <= share <= 1:
            raise ValueError(f"loss: {share} is no share of datagrams; use 0 to 1")
        self._share = share
        self._random = np.random.default_rng(seed)

    def survivors(self, batch: Batch) -> Batch:
        """The rows that are not lost; the batch itself where no loss was asked for."""
        if not self._share:
            return batch
        return batch[self._random.random(len(batch)) >= self._share]


class UdpPort:
    """One switch port. Its peer is whoever said hello last, nobody before that; or what it was joined to."""

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
        """What this port did so far; a copy."""
        return replace(self._counts, odd=self.socket.odd, overrun=self.socket.overruns)

    def join(self, address: Address) -> None:
        """Have another switch's port as peer for good, and say hello to it, as a host would."""
        self.peer, self._joined = address, True
        self.socket.send_hello(address)

    def receive(self, limit: int) -> Batch | None:
        """About `limit` packets from the peer, uint8[n, packet_bytes]; None where nothing for us waits.

        Hellos are answered here, each with an empty datagram. Valid until the next call.
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
        """Send packets to the peer. What has no peer or no room is dropped and counted."""
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
    """All ports of a switch, and the frames between them and the pipeline.

    unframed: frames that left the pipeline as something else than one whole packet; dropped.
    no_such_port: frames that left for a port that is not here; dropped.
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

        base: switch port p listens on UDP port base + p, or base[p]; where there is none, on any free one.
        batch: about how many frames `receive` brings at most.
        loss: share of datagrams that each port loses in each direction, hellos excepted, decided by `seed`.
        Raises ValueError for a share that is none, OSError naming an address that is taken.
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
        """UDP port of each switch port."""
        return {number: port.socket.address[1] for number, port in self._ports.items()}

    def holding(self) -> list[int]:
        """Numbers of the ports that have read more than they have given up, which no select tells."""
        return self._holding

    def resize(self, packet_bytes: int) -> None:
        """Carry datagrams of `packet_bytes` from now on: the pipeline has changed."""
        self._size = packet_bytes
        self._frame_bytes = FRAME_HEADER_BYTES + packet_bytes
        for port in self._ports.values():
            port.socket.resize(packet_bytes)
        # A port may overshoot its share of a batch by what one largest datagram holds.
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
        """Frames that arrived on the ports numbered `ready`, each port's in order, in fair shares.

        May be empty. Valid until the next call. What is left waits in the kernel.
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
        # Only the ports that are sent to: a batch of one costs the same however many ports there are.
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
        """Which frames are one whole packet; the others are counted. bool[n]"""
        whole = (frames.length == self._frame_bytes) & is_udp(frames.data)
        self.unframed += int(np.count_nonzero(~whole))
        return np.asarray(whole, np.bool_)

    def close(self) -> None:
        """Free every UDP port."""
        for port in self._ports.values():
            port.socket.close()


def _udp_port(base: int | Mapping[int, int] | None, number: int) -> int:
    """Where a switch port listens; 0 for any free UDP port."""
    if base is None:
        return 0
    return base + number if isinstance(base, int) else base.get(number, 0)


def is_udp(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which frames, uint8[n, stride], hold UDP over IPv4 without options. bool[n]"""
    ethertype = (data[:, 12] == 0x08) & (data[:, 13] == 0x00)
    return np.asarray(ethertype & (data[:, 14] == 0x45) & (data[:, 23] == 17), np.bool_)


def frame_header(number: int, packet_bytes: int) -> NDArray[np.uint8]:
    """The 42 bytes before a packet that enters at switch port `number`: from host `number` to the switch."""
    return np.frombuffer(encapsulation(packet_bytes, _address(number), _address(_SWITCH_NUMBER)), np.uint8)


def _address(number: int) -> FrameAddress:
    """Host `number`: a locally administered MAC address, and 10.0.x.y."""
    return FrameAddress(struct.pack("!HI", 0x0200, number), struct.pack("!HH", 0x0A00, number))
