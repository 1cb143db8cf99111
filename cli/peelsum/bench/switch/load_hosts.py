"""The hosts of a load: workers and server behind UDP ports of the softswitch, or on interfaces."""

from __future__ import annotations

import select
from collections.abc import Mapping
from typing import Self

import numpy as np

from peelsum.softswitch import Frames
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.udp import frame_header
from peelsum.switch_settings import Method
from peelsum.topology.errors import TopologyError
from peelsum.wire import FRAME_HEADER_BYTES, Batch
from peelsum.wire.datagrams import BatchSocket

_HELLOS = 50
_HELLO_TIMEOUT_S = 0.1
#: Maximum of frames that hosts on interfaces send or receive at once.
_RING_BATCH = 4096


class UdpHosts:
    """Workers behind switch ports 1 to n, and the server behind port n + 1, all over UDP."""

    def __init__(self, host: str, udp_ports: Mapping[int, int], workers: int, packet_bytes: int) -> None:
        """Send a hello on every port. Raises TopologyError if no switch answers."""
        self._sockets: list[BatchSocket] = []
        try:
            for port in range(1, workers + 2):
                sock = BatchSocket.bind(("127.0.0.1", 0), packet_bytes)
                self._sockets.append(sock)
                sock.connect((host, udp_ports[port]))
                _say_hello(sock, udp_ports[port])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets:
            sock.close()

    def send(self, worker: int, batch: Batch) -> None:
        """See `Hosts.send`. Packets that do not fit the kernel's buffer are lost."""
        self._sockets[worker].send(batch)

    def send_results(self, batch: Batch) -> None:
        """See `Hosts.send_results`."""
        self._sockets[-1].send(batch)

    def receive_sums(self, timeout: float) -> Batch | None:
        """See `Hosts.receive_sums`."""
        select.select([self._sockets[-1]], [], [], timeout)
        burst = self._sockets[-1].receive()
        return None if burst is None else burst.packets

    def receive_results(self, expected: int, timeout: float) -> int:
        """See `Hosts.receive_results`."""
        workers, count = self._sockets[:-1], 0
        while True:
            for sock in workers:
                while (burst := sock.receive()) is not None:
                    count += len(burst.packets)
            if count >= expected or not select.select(workers, [], [], timeout)[0]:
                return count


def _say_hello(sock: BatchSocket, udp_port: int) -> None:
    """Send hellos until the switch answers one. Raises TopologyError if it does not."""
    for _ in range(_HELLOS):
        sock.send_hello()
        if select.select([sock], [], [], _HELLO_TIMEOUT_S)[0] and (burst := sock.receive()) and burst.hello:
            return
    raise TopologyError(f"udp port {udp_port}: no switch answers; is it running?")


class RingHosts:
    """Workers and server at the host ends of virtual Ethernet pairs, by AF_XDP or AF_PACKET.

    Worker w is at port w + 1, the server at the last port. They use the softswitch's own ports on interfaces.
    """

    def __init__(
        self, interfaces: Mapping[int, str], workers: int, packet_bytes: int, method: Method
    ) -> None:
        """Open the host ends, given by switch port in `interfaces`."""
        self._ports = InterfacePorts(interfaces, batch=_RING_BATCH, method=method)
        self._ports.resize(packet_bytes)
        self._server, self._workers = workers + 1, list(range(1, workers + 1))
        self._size = FRAME_HEADER_BYTES + packet_bytes
        self._frames = np.zeros((workers + 1, _RING_BATCH, self._size), np.uint8)
        for frames, port in zip(self._frames, (*self._workers, self._server), strict=True):
            frames[:, :FRAME_HEADER_BYTES] = frame_header(port, packet_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ports.close()

    def send(self, worker: int, batch: Batch) -> None:
        """See `Hosts.send`."""
        frames = self._frames[worker][: len(batch)]
        frames[:, FRAME_HEADER_BYTES:] = batch
        length = np.full(len(batch), self._size, np.int32)
        port = self._server if worker < 0 else worker + 1
        self._ports.send(Frames(frames, length, np.full_like(length, port)))

    def send_results(self, batch: Batch) -> None:
        """See `Hosts.send_results`."""
        self.send(-1, batch)

    def receive_sums(self, timeout: float) -> Batch | None:
        """See `Hosts.receive_sums`. Frame headers are removed."""
        select.select([self._ports.ports[self._server].socket], [], [], timeout)
        frames = self._ports.receive([self._server])
        return np.ascontiguousarray(frames.data[:, FRAME_HEADER_BYTES : self._size]) if len(frames) else None

    def receive_results(self, expected: int, timeout: float) -> int:
        """See `Hosts.receive_results`."""
        count = 0
        while True:
            count += len(self._ports.receive(self._workers))
            sockets = [self._ports.ports[port].socket for port in self._workers]
            if count >= expected or not select.select(sockets, [], [], timeout)[0]:
                return count
