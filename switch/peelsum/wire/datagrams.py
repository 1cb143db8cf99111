"""UDP sockets that move batches: many datagrams of one size per system call, no object per packet.

Sends use segmentation offload (UDP_SEGMENT) and receives its counterpart (UDP_GRO); if the kernel refuses
either, single datagrams.
"""

from __future__ import annotations

import errno
import socket
import struct
from contextlib import suppress
from typing import NamedTuple, Self

import numpy as np

from peelsum.wire.batch import Batch
from peelsum.wire.format import HEADER_BYTES

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
#: Segments in one send: what kernels since 6.9 take, and what all with UDP_SEGMENT do.
_MAX_SEGMENTS = 128
_SAFE_SEGMENTS = 64
#: What the kernel's accounting adds to each packet in a buffer: segmented bursts share one bookkeeping.
_OVERHEAD_IN_BURSTS = 100
_OVERHEAD_ALONE = 1280
_CMSG_SPACE = socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0
_FULL = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS)
#: Errors of a connected socket that may report an ICMP message about an earlier datagram. Strangers can send
#: one, so an error counts only if the next call has it, too.
REPORTED = (
    errno.ENONET,
    errno.EPROTO,
    errno.EMSGSIZE,
    errno.ENOPROTOOPT,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
)
#: How a kernel or a network device says that it will not segment after all.
_NO_OFFLOAD = (errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP)


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

    odd: number of datagrams of another size, which were dropped.
    offload: whether the kernel segments sends; false once a device refuses.
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
        self._sock = sock
        self._burst = burst
        self.odd = 0
        self.offload = offload is not False
        self._gro = self.offload and _option(sock, socket.SOL_UDP, _UDP_GRO, 1)
        self.resize(packet_bytes)
        _raise_buffer(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF, buffer_bytes)
        _raise_buffer(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF, buffer_bytes)

    def resize(self, packet_bytes: int) -> None:
        """Change the size of datagrams. Raises ValueError if it does not fit a datagram."""
        if not 1 <= packet_bytes <= MAX_DATAGRAM:
            raise ValueError(f"packet_bytes: {packet_bytes} fits no datagram; use 1 to {MAX_DATAGRAM}")
        self._size = packet_bytes
        self._per_send = max(1, min(_MAX_SEGMENTS, MAX_DATAGRAM // packet_bytes))
        # Room for one largest datagram behind a burst that is all but full: nothing is ever truncated.
        self._buffer = np.empty(self._burst * packet_bytes + 0x10000, np.uint8)
        self._view = self._buffer.data
        self._held: tuple[int, int, Address] | None = None
        self.offload = self.offload and _option(self._sock, socket.SOL_UDP, _UDP_SEGMENT, packet_bytes)

    @classmethod
    def bind(
        cls,
        address: Address,
        packet_bytes: int,
        *,
        buffer_bytes: int = 8 << 20,
        burst: int = 1024,
        offload: bool | None = None,
        interface: str = "",
    ) -> Self:
        """Return a socket bound to `address` (port 0: any free). Raises OSError that names the address.

        interface: the only one to send and receive by, if Linux permits it, which it does since 5.7.
        """
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            if interface:
                with suppress(PermissionError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            sock.bind(address)
            return cls(sock, packet_bytes, buffer_bytes=buffer_bytes, burst=burst, offload=offload)
        except OSError as error:
            sock.close()
            where = f"{address[0]}:{address[1]}"
            raise OSError(
                error.errno, f"udp address {where}: {error.strerror}; choose another address or port"
            ) from error
        except BaseException:
            sock.close()
            raise

    @property
    def address(self) -> Address:
        """The address to which this socket is bound."""
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    @property
    def overruns(self) -> int:
        """Packets that the kernel dropped because the receive buffer was full."""
        with suppress(OSError):
            info = self._sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 64)
            if len(info) >= 4 * (_MEMINFO_DROPS + 1):
                return int(struct.unpack_from("=I", info, 4 * _MEMINFO_DROPS)[0])
        return 0

    @property
    def room(self) -> int:
        """Approximate number of packets that the receive buffer holds; more packets in flight may be lost.

        A peer on this machine has a buffer of the same size, so this bounds the packets in flight to it, too.
        """
        granted = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        overhead = _OVERHEAD_IN_BURSTS if self._gro and self.offload else _OVERHEAD_ALONE
        return max(1, granted // (self._size + overhead))

    @property
    def segments(self) -> int:
        """The most packets in one send."""
        return self._per_send if self.offload else 1

    def fileno(self) -> int:
        """Return the file descriptor, for select, poll and epoll."""
        return self._sock.fileno()

    def connect(self, address: Address) -> None:
        """Send to `address` from now on, and receive only from there."""
        self._sock.connect(address)

    def close(self) -> None:
        """Free the port. Views of received packets stay valid."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, batch: Batch, address: Address | None = None) -> int:
        """Send packets, uint8[n, packet_bytes], in order; return how many the kernel took.

        Less than n means that its buffer is full: keep the rest, or drop it. `address` may be left out
        on a connected socket. A peer that is not there takes everything, as a wire would.
        Raises ValueError where the rows have another length, OSError for what waiting does not mend.
        """
        if batch.ndim != 2 or batch.shape[1] != self._size:
            raise ValueError(f"batch: shape {batch.shape}; this socket sends uint8[n, {self._size}]")
        if not len(batch):
            return 0
        view = np.ascontiguousarray(batch).data.cast("B")
        sent = 0
        while sent < len(batch):
            count = min(self.segments, len(batch) - sent)
            outcome = self._send(view[sent * self._size : (sent + count) * self._size], address)
            if outcome == 0:
                sent += count
            elif outcome in _NO_OFFLOAD and self.offload:
                self.ask_less()
            elif outcome in _FULL:
                break
            else:
                raise OSError(outcome, f"udp send to {address or 'peer'}: {errno.errorcode.get(outcome)}")
        return sent

    def ask_less(self) -> None:
        """Reduce the segments per send, or disable offload, after the kernel or a device refused."""
        if self._per_send > _SAFE_SEGMENTS:
            self._per_send = _SAFE_SEGMENTS
            return
        self.offload = False
        _option(self._sock, socket.SOL_UDP, _UDP_SEGMENT, 0)

    def send_hello(self, address: Address | None = None, proof: bytes = b"") -> None:
        """Send a hello, or with `proof` the answer to a challenge; lost if the kernel's buffer is full."""
        self._send(memoryview(proof), address)

    def receive_hello(self) -> bytes | None:
        """Return the next datagram that is too short for a packet, and drop those before it; or None."""
        while (got := self._take_bytes(self._view)) is not None:
            if got[0] < HEADER_BYTES:
                return bytes(self._view[: got[0]])
        return None

    def receive(self) -> Burst | None:
        """Return up to about `burst` packets that have arrived from one source, or None.

        A hello is a burst of its own. Never blocks. Call it until it returns None before waiting for the
        descriptor: it may hold a burst that it has read behind another.
        """
        count, source = self._take_held()
        if source is not None and not count:
            return Burst(self._rows(0), source)
        while count < self._burst and (got := self._take(count)) is not None:
            more, whence = got
            if source not in (None, whence) or (count and not more):
                # Another source, or a hello: it waits behind this burst for the next call.
                self._held = (count, more, whence)
                break
            count, source = count + more, whence
            if not more:
                break
        return None if source is None else Burst(self._rows(count), source)

    def _take_held(self) -> tuple[int, Address | None]:
        """Move packets left by the last call to the front; return number (0: a hello) and source."""
        if self._held is None:
            return 0, None
        (start, count, source), self._held = self._held, None
        self._rows(count)[:] = self._rows(start + count)[start:]
        return count, source

    def _rows(self, count: int) -> Batch:
        return self._buffer[: count * self._size].reshape(count, self._size)

    def _take(self, count: int) -> tuple[int, Address] | None:
        """Read datagrams after `count` packets in the buffer; return number (0: a hello) and source."""
        while (got := self._take_bytes(self._view[count * self._size :])) is not None:
            size, segment, source = got
            if not size:
                return 0, source
            packets = size // self._size if segment == self._size else 0
            self.odd += -(-size // segment) - packets
            if packets:
                return packets, source
        return None

    def _take_bytes(self, window: memoryview) -> tuple[int, int, Address] | None:
        """Read a datagram, or several of one size; return the bytes of all and of each, and the source."""
        while True:
            try:
                if self._gro:
                    got, ancillary, _, source = self._sock.recvmsg_into([window], _CMSG_SPACE)
                else:
                    got, source = self._sock.recvfrom_into(window)
                    ancillary = []
            except BlockingIOError:
                return None
            except (ConnectionError, InterruptedError):
                continue  # Reports that an earlier datagram of ours was not received.
            except OSError as error:
                if error.errno not in REPORTED:
                    raise
                continue
            return got, struct.unpack("=i", ancillary[0][2])[0] if ancillary else got, source

    def _send(self, data: memoryview, address: Address | None) -> int:
        """Send with one system call; return 0 or the errno."""
        problem = 0
        for _ in range(2):
            try:
                if address is None:
                    self._sock.send(data)
                else:
                    self._sock.sendto(data, address)
            except ConnectionError:
                problem = 0  # Reports that an earlier datagram was not received; this one was not sent yet.
            except OSError as error:
                problem = error.errno or errno.EIO
                if problem not in REPORTED:
                    break
            else:
                return 0
        return problem


def _option(sock: socket.socket, level: int, option: int, value: int) -> bool:
    """Set a socket option; return whether the kernel accepted it."""
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _raise_buffer(sock: socket.socket, forced: int, asked: int, wanted: int) -> None:
    """Get a kernel buffer of `wanted` bytes: past the system's limit where permitted, else up to it."""
    if sock.getsockopt(socket.SOL_SOCKET, asked) >= wanted:
        return
    if not _option(sock, socket.SOL_SOCKET, forced, wanted):
        _option(sock, socket.SOL_SOCKET, asked, wanted)
