"""UDP sockets that move batches: many datagrams of one size per system call, no object per packet.

Owns segmentation offload (UDP_SEGMENT) on the way out, its counterpart (UDP_GRO) on the way in, and the plain
datagrams that replace them where the kernel refuses. Refuses to know what a packet says.
"""

from __future__ import annotations

import errno
import socket
import struct
from contextlib import suppress
from typing import NamedTuple, Self

import numpy as np

from peelsum.wire.batch import Batch

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
#: How a kernel or a network device says that it will not segment after all.
_NO_OFFLOAD = (errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP)


class Burst(NamedTuple):
    """What one `receive` took: consecutive datagrams from one source.

    packets: uint8[n, packet_bytes], in order of arrival, valid until the socket's next `receive`;
        without rows for a hello.
    source: who sent them.
    """

    packets: Batch
    source: Address

    @property
    def hello(self) -> bool:
        """Whether this is an empty datagram: 'I am here', carrying nothing."""
        return not len(self.packets)


class BatchSocket:
    """A non-blocking UDP socket (IPv4) for datagrams of `packet_bytes` bytes each.

    odd: datagrams of another size that arrived and were thrown away.
    offload: whether sends are segmented by the kernel; turns false by itself where a network device refuses.
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

        buffer_bytes: wanted for each of the kernel's two buffers; it grants what it permits.
        burst: most packets that one `receive` returns, give or take one segmented datagram.
        offload: None asks the kernel; False goes without.
        Raises ValueError where `packet_bytes` fits no datagram.
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
        """From now on datagrams have `packet_bytes` bytes. Raises ValueError where that fits no datagram."""
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
    ) -> Self:
        """A socket bound to `address` (port 0: any free one). Raises OSError that names the address."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
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
        """Where this socket is bound."""
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    @property
    def overruns(self) -> int:
        """What the kernel dropped because this socket's receive buffer was full, as the kernel counts it."""
        with suppress(OSError):
            info = self._sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 64)
            if len(info) >= 4 * (_MEMINFO_DROPS + 1):
                return int(struct.unpack_from("=I", info, 4 * _MEMINFO_DROPS)[0])
        return 0

    @property
    def room(self) -> int:
        """About how many packets the receive buffer holds while nobody reads: more on the way may be lost.

        A peer on this machine got as much from the same kernel, so this bounds what to send it unanswered.
        """
        granted = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        overhead = _OVERHEAD_IN_BURSTS if self._gro and self.offload else _OVERHEAD_ALONE
        return max(1, granted // (self._size + overhead))

    @property
    def holding(self) -> bool:
        """Whether a burst was read that no `receive` has returned yet; the descriptor does not tell."""
        return self._held is not None

    def fileno(self) -> int:
        """For select, poll and epoll."""
        return self._sock.fileno()

    def connect(self, address: Address) -> None:
        """Send to `address` from now on, and receive from nobody else."""
        self._sock.connect(address)

    def close(self) -> None:
        """Free the port. Views of received packets stay valid."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, batch: Batch, address: Address | None = None) -> int:
        """Send packets, uint8[n, packet_bytes], in order; how many the kernel took.

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
            count = min(self._per_send if self.offload else 1, len(batch) - sent)
            outcome = self._send(view[sent * self._size : (sent + count) * self._size], address)
            if outcome == 0:
                sent += count
            elif outcome in _NO_OFFLOAD and self.offload:
                self._ask_less()
            elif outcome in _FULL:
                break
            else:
                raise OSError(outcome, f"udp send to {address or 'peer'}: {errno.errorcode.get(outcome)}")
        return sent

    def send_hello(self, address: Address | None = None) -> None:
        """Send one empty datagram; lost, like any other, where there is no room for it."""
        self._send(memoryview(b""), address)

    def receive(self, limit: int | None = None) -> Burst | None:
        """What has arrived, up to about `limit` packets from one source; None where nothing has.

        A hello is a burst of its own. Never blocks. Call it until it returns None, or `holding` is false,
        before waiting for the descriptor.
        """
        limit = self._burst if limit is None else min(limit, self._burst)
        count, source = self._take_held()
        if source is not None and not count:
            return Burst(self._rows(0), source)
        while count < limit and (got := self._take(count)) is not None:
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
        """Move what the last call left to the buffer's front; how many packets (0: a hello), from whom."""
        if self._held is None:
            return 0, None
        (start, count, source), self._held = self._held, None
        self._rows(count)[:] = self._rows(start + count)[start:]
        return count, source

    def _rows(self, count: int) -> Batch:
        return self._buffer[: count * self._size].reshape(count, self._size)

    def _take(self, count: int) -> tuple[int, Address] | None:
        """Read datagrams behind `count` packets in the buffer; how many (0: a hello), from whom."""
        window = self._view[count * self._size :]
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
                continue  # An earlier datagram found nobody listening: no news of this direction.
            if not got:
                return 0, source
            segment = struct.unpack("=i", ancillary[0][2])[0] if ancillary else got
            packets = got // self._size if segment == self._size else 0
            self.odd += -(-got // segment) - packets
            if packets:
                return packets, source

    def _send(self, data: memoryview, address: Address | None) -> int:
        """One system call; 0 or the errno it failed with."""
        for _ in range(2):
            try:
                if address is None:
                    self._sock.send(data)
                else:
                    self._sock.sendto(data, address)
            except ConnectionError:
                continue  # Reports an earlier datagram that met nobody; this one was not sent yet.
            except OSError as error:
                return error.errno or errno.EIO
            return 0
        return 0

    def _ask_less(self) -> None:
        """Fewer segments in a send, or none, after the kernel or a device refused as many."""
        if self._per_send > _SAFE_SEGMENTS:
            self._per_send = _SAFE_SEGMENTS
            return
        self.offload = False
        _option(self._sock, socket.SOL_UDP, _UDP_SEGMENT, 0)


def _option(sock: socket.socket, level: int, option: int, value: int) -> bool:
    """Set a socket option; whether the kernel took it."""
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
