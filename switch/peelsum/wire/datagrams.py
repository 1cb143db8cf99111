"""UDP sockets that move batches: many datagrams of one size per system call, no object per packet.

Sends use segmentation offload (UDP_SEGMENT) and receives its counterpart (UDP_GRO); if the kernel refuses
either, single datagrams.
"""

from __future__ import annotations

import errno
import socket
import struct
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, Self

import numpy as np

from peelsum.wire import HEADER_BYTES, Batch

Address = tuple[str, int]

# linux/udp.h and asm-generic/socket.h; the `socket` module of Python 3.11 does not name them.
_UDP_SEGMENT = 103
_UDP_GRO = 104
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55
_MEMINFO_DROPS = 8

#: The most payload that one IPv4 datagram, and so one segmented send, carries.
MAX_DATAGRAM = 65507
#: Most segments of one send: the limit of kernels since 6.9, and the limit of all that have UDP_SEGMENT.
_MAX_SEGMENTS = 128
_SAFE_SEGMENTS = 64
#: Bytes that the kernel charges to a socket buffer for each packet, beyond its payload. The packets of a
#: segmented burst share one `sk_buff`.
_BURST_OVERHEAD = 100
_SINGLE_OVERHEAD = 1280
_CMSG_SPACE = socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0
_BUFFER_FULL = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS)
#: Errors of a connected socket that may report an ICMP message about an earlier datagram. Any host can send
#: such a message, so an error is ignored unless the next call returns it, too.
ICMP_ERRORS = (
    errno.ENONET,
    errno.EPROTO,
    errno.EMSGSIZE,
    errno.ENOPROTOOPT,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
)
#: Errors with which a kernel or a network device refuses to segment a send.
_OFFLOAD_REFUSED = (errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP)


class Burst(NamedTuple):
    """Consecutive datagrams from one source, as returned by one `receive`."""

    packets: Batch
    """uint8[n, packet_bytes], in order of arrival, valid until the next `receive`; n = 0 for a hello."""
    source: Address
    """The sender's address."""

    @property
    def hello(self) -> bool:
        """Whether this is a hello, an empty datagram."""
        return not len(self.packets)


class BatchSocket:
    """A non-blocking UDP socket (IPv4) for datagrams of `packet_bytes` bytes each.

    odd: number of received datagrams that were dropped because they had another size.
    offload: whether the kernel segments sends; False once a device has refused to.
    """

    def __init__(
        self,
        sock: socket.socket,
        packet_bytes: int,
        *,
        buffer_bytes: int = 8 << 20,
        burst: int = 1024,
        offload: bool | None = None,
    ) -> None:
        """Take over `sock`, which must be a UDP socket.

        buffer_bytes: requested size of each of the kernel's two buffers; the kernel may grant less.
        burst: most packets that one `receive` returns, plus at most one segmented datagram.
        offload: None to use it if the kernel supports it; False to never use it.
        Raises ValueError if `packet_bytes` does not fit a datagram.
        """
        sock.setblocking(False)
        self._socket = sock
        self._burst = burst
        self.odd = 0
        self.offload = self._may_merge = offload is not False
        self.resize(packet_bytes)
        _grow_buffer(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF, buffer_bytes)
        _grow_buffer(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF, buffer_bytes)

    def resize(self, packet_bytes: int, *, is_maximum: bool = False) -> None:
        """Change the size of datagrams. Raises ValueError if it does not fit a datagram.

        is_maximum: whether datagrams may be shorter. The kernel then neither merges nor segments them.
        """
        if not 1 <= packet_bytes <= MAX_DATAGRAM:
            raise ValueError(f"packet_bytes: {packet_bytes} fits no datagram; use 1 to {MAX_DATAGRAM}")
        self._size = packet_bytes
        self._most_segments = 1 if is_maximum else max(1, min(_MAX_SEGMENTS, MAX_DATAGRAM // packet_bytes))
        # One datagram of the maximum size fits behind a burst that is almost full, so none is truncated.
        self._buffer = np.empty(self._burst * packet_bytes + 0x10000, np.uint8)
        self._view = self._buffer.data
        self._pending: tuple[int, int, Address] | None = None
        segment = 0 if is_maximum else packet_bytes
        self.offload = self.offload and _set_option(self._socket, socket.SOL_UDP, _UDP_SEGMENT, segment)
        # The kernel may merge received datagrams even after a device has refused to segment those sent.
        self._gro = self._may_merge and _set_option(self._socket, socket.SOL_UDP, _UDP_GRO, not is_maximum)

    @classmethod
    def bind(cls, address: Address, packet_bytes: int, *, interface: str = "", **options: Any) -> Self:
        """Return a socket bound to `address` (port 0: any free). Raises OSError that names the address.

        interface: the only interface to send and receive by. Without privileges, this needs Linux 5.7.
        options: see `__init__`.
        """
        with ExitStack() as stack:
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            try:
                if interface:
                    with suppress(PermissionError):
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
                sock.bind(address)
                bound = cls(sock, packet_bytes, **options)
            except OSError as error:
                remedy = f"{error.strerror}; choose another address or port"
                raise OSError(error.errno, f"udp address {address[0]}:{address[1]}: {remedy}") from error
            stack.pop_all()
            return bound

    @property
    def address(self) -> Address:
        """The address to which this socket is bound."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    @property
    def overruns(self) -> int:
        """Packets that the kernel dropped because the receive buffer was full."""
        with suppress(OSError):
            info = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 64)
            if len(info) >= 4 * (_MEMINFO_DROPS + 1):
                return int(struct.unpack_from("=I", info, 4 * _MEMINFO_DROPS)[0])
        return 0

    @property
    def room(self) -> int:
        """Approximate number of packets that the receive buffer holds; more in flight may be lost.

        A peer on this machine has a buffer of the same size, so the same limit holds for packets to it.
        """
        buffer_bytes = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        overhead = _BURST_OVERHEAD if self._gro and self.offload else _SINGLE_OVERHEAD
        return max(1, buffer_bytes // (self._size + overhead))

    @property
    def segments(self) -> int:
        """The most packets in one send."""
        return self._most_segments if self.offload else 1

    def fileno(self) -> int:
        """Return the file descriptor, for select, poll and epoll."""
        return self._socket.fileno()

    def connect(self, address: Address) -> None:
        """Send to `address` from now on, and receive only from there."""
        self._socket.connect(address)

    def close(self) -> None:
        """Free the port. Views of received packets stay valid."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, batch: Batch, address: Address | None = None) -> int:
        """Send packets, uint8[n, packet_bytes], in order; return how many the kernel took.

        A smaller number than n means that the send buffer is full: send the rest later, or drop it. A
        connected socket needs no `address`. Packets to a host that does not answer count as sent. Raises
        ValueError if the rows have another length, and OSError for permanent errors.
        """
        if batch.ndim != 2 or batch.shape[1] != self._size:
            raise ValueError(f"batch: shape {batch.shape}; this socket sends uint8[n, {self._size}]")
        if not len(batch):
            return 0
        view = np.ascontiguousarray(batch).data.cast("B")
        sent = 0
        while sent < len(batch):
            count = min(self.segments, len(batch) - sent)
            error_number = self._send_once(view[sent * self._size : (sent + count) * self._size], address)
            if error_number == 0:
                sent += count
            elif error_number in _OFFLOAD_REFUSED and self.offload:
                self.reduce_segments()
            elif error_number in _BUFFER_FULL:
                break
            else:
                raise OSError(
                    error_number, f"udp send to {address or 'peer'}: {errno.errorcode.get(error_number)}"
                )
        return sent

    def reduce_segments(self) -> None:
        """Reduce the segments per send, or disable offload, after the kernel or a device refused."""
        if self._most_segments > _SAFE_SEGMENTS:
            self._most_segments = _SAFE_SEGMENTS
            return
        self.offload = False
        _set_option(self._socket, socket.SOL_UDP, _UDP_SEGMENT, 0)

    def send_hello(self, address: Address | None = None, proof: bytes = b"") -> None:
        """Send a hello, or with `proof` the answer to a challenge; lost if the kernel's buffer is full."""
        self._send_once(memoryview(proof), address)

    def receive_hello(self) -> bytes | None:
        """Return the next datagram that is shorter than a packet, or None; drop the datagrams before it."""
        while (datagram := self._receive_into(self._view)) is not None:
            if datagram[0] < HEADER_BYTES:
                return bytes(self._view[: datagram[0]])
        return None

    def receive(self) -> Burst | None:
        """Return up to about `burst` packets that have arrived from one source, or None.

        A hello is a burst of its own. Never blocks. Before you wait for the descriptor, call it until it
        returns None: a burst that was read together with another is returned by the next call.
        """
        count, source = 0, None
        if self._pending is not None:  # packets that the last call kept, or a hello; move them to the front
            (first, count, source), self._pending = self._pending, None
            self._rows(count)[:] = self._rows(first + count)[first:]
            if not count:
                return Burst(self._rows(0), source)
        while count < self._burst and (received := self._receive_packets(count)) is not None:
            packets, sender = received
            if source not in (None, sender) or (count and not packets):
                # Another source, or a hello: the next call returns it.
                self._pending = (count, packets, sender)
                break
            count, source = count + packets, sender
            if not packets:
                break
        return None if source is None else Burst(self._rows(count), source)

    def _rows(self, count: int) -> Batch:
        return self._buffer[: count * self._size].reshape(count, self._size)

    def _receive_packets(self, count: int) -> tuple[int, Address] | None:
        """Read into the buffer behind `count` packets; return how many (0: a hello) and their source."""
        while (received := self._receive_into(self._view[count * self._size :])) is not None:
            size, segment, source = received
            if not size:
                return 0, source
            packets = size // self._size if segment == self._size else 0
            self.odd += -(-size // segment) - packets
            if packets:
                return packets, source
        return None

    def _receive_into(self, buffer: memoryview) -> tuple[int, int, Address] | None:
        """Read one datagram, or several that GRO merged; return total bytes, bytes of each, and source."""
        while True:
            try:
                if self._gro:
                    size, ancillary, _, source = self._socket.recvmsg_into([buffer], _CMSG_SPACE)
                else:
                    size, source = self._socket.recvfrom_into(buffer)
                    ancillary = []
            except BlockingIOError:
                return None
            except (ConnectionError, InterruptedError):
                continue  # Reports that an earlier datagram of ours was not received.
            except OSError as error:
                if error.errno not in ICMP_ERRORS:
                    raise
                continue
            return size, struct.unpack("=i", ancillary[0][2])[0] if ancillary else size, source

    def _send_once(self, data: memoryview, address: Address | None) -> int:
        """Send with one system call; return 0 or the errno."""
        error_number = 0
        for _ in range(2):
            try:
                if address is None:
                    self._socket.send(data)
                else:
                    self._socket.sendto(data, address)
            except ConnectionError:
                error_number = 0  # about an earlier datagram: send this one again
            except OSError as error:
                error_number = error.errno or errno.EIO
                if error_number not in ICMP_ERRORS:
                    break
            else:
                return 0
        return error_number


def _set_option(sock: socket.socket, level: int, option: int, value: int) -> bool:
    """Set a socket option; return whether the kernel accepted it."""
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _grow_buffer(sock: socket.socket, forced_option: int, option: int, size: int) -> None:
    """Enlarge a kernel buffer to `size` bytes: beyond the system's limit if permitted, else up to it."""
    if sock.getsockopt(socket.SOL_SOCKET, option) >= size:
        return
    if not _set_option(sock, socket.SOL_SOCKET, forced_option, size):
        _set_option(sock, socket.SOL_SOCKET, option, size)
